"""The pages on the server's own API and store, with an engine that has no model."""

from collections import Counter

import pytest

from server.pages.acting import ahead, open_page, press, ready, saved, says

pytest.importorskip("fastapi", reason="fastapi is not installed; the pages are not served")

from bitta.server.api import create_app
from bitta.server.settings import load_settings
from bitta.server.store import Store
from server.api.fakes import FakeEngine, running, silent_log


@pytest.fixture
def real(tmp_path):
    settings = load_settings({"data_dir": tmp_path, "port": 0}, environment={})
    with Store.open(None, tmp_path) as store:
        engine = FakeEngine(store)
        app = create_app(engine, store, settings, log=silent_log())
        with running(app, settings) as port:
            yield engine, f"http://127.0.0.1:{port}"


def test_answer_skip_undo_and_change_of_mind_reach_the_store(browser, real):
    engine, url = real
    engine.ask(8)
    key = engine.store.keys.create("annotator", "Ada")
    page, heard = open_page(browser, f"{url}/annotate", key.token)
    given = [press(page, key) for key in ("c", "x", "s", "c")]
    ready(page)
    page.keyboard.press("u")
    assert press(page, "x") == given[-1]
    saved(page)
    page.click("#history-open")
    page.click("text=Change to correct >> nth=0")
    says(page, "#history-list", "changed to correct")
    saved(page)
    records = engine.store.list_feedback(limit=50)
    standing = {one.prediction_id: one.verdict for one in records if one.standing}
    assert standing == dict(zip(given, ("correct", "incorrect", "skip", "correct"), strict=True))
    assert Counter(one.standing for one in records) == {True: 4, False: 2}
    assert page.text_content("#me") == "Ada"
    assert heard == []
    page.context.close()


def test_an_operator_keeps_a_version_and_goes_back_to_it(browser, real):
    engine, url = real
    engine.ask(3, reason="audit")
    key = engine.store.keys.create("operator", "Olga")
    page, heard = open_page(browser, f"{url}/operate", key.token)
    says(page, "#questions", "Random audit")
    page.click("#snapshot")
    page.click("#versions li button")
    page.fill("#confirm-reason", "worse than before")
    page.click("#confirm-go")
    says(page, "#version", "Version 2.0")
    says(page, "#log", "worse than before")
    page.click("#pause")
    page.click("#confirm-go")
    says(page, "#learning", "learning paused")
    assert heard == []
    page.context.close()


def test_two_people_answer_thirty_questions_and_a_lost_network_neither_loses_nor_doubles_one(
    browser, real
):
    engine, url = real
    engine.ask(36)
    people = [engine.store.keys.create("annotator", name) for name in ("Ada", "Bo")]
    pages = [open_page(browser, f"{url}/annotate", person.token) for person in people]
    (ada, ada_heard), (bo, _) = pages
    given = {ada: {}, bo: {}}

    def answer(page, keys):
        for key in keys:
            given[page][press(page, key)] = {"c": "correct", "x": "incorrect"}[key]

    answer(ada, "cxcxc")
    answer(bo, "xx")
    ready(bo)
    ahead(bo)
    bo.context.set_offline(True)
    answer(bo, "cx")
    says(bo, "#state", "Waiting for network · 2 answers kept")
    answer(ada, "xcxcxcxcxc")
    bo.context.set_offline(False)
    answer(bo, "cxcxcxcxcxc")
    for page in (ada, bo):
        saved(page)
    assert not set(given[ada]) & set(given[bo])
    records = engine.store.list_feedback(limit=100)
    assert {one.prediction_id: one.verdict for one in records} == given[ada] | given[bo]
    assert len(records) == 30
    assert ada_heard == []
    for page in (ada, bo):
        page.context.close()
