"""The pages with the real API and store: with a fake engine, and with a whole server."""

from collections import Counter
from threading import Event, Thread

import pytest

from server.pages.page_actions import (
    open_page,
    press_key,
    wait_for_question,
    wait_for_text,
    wait_until_prefetched,
    wait_until_saved,
)

pytest.importorskip("fastapi", reason="fastapi is not installed; the pages are not served")

from bitta.server.api import create_app
from bitta.server.settings import load_settings
from bitta.server.store import Store
from bitta.streams import embedded_pack
from server.api.fakes import FakeEngine, running, silent_log
from server.processes import ForkedServer, until


@pytest.fixture
def api(tmp_path):
    settings = load_settings({"data_dir": tmp_path, "port": 0}, environment={})
    with Store.open(None, tmp_path) as store:
        engine = FakeEngine(store)
        app = create_app(engine, store, settings, log=silent_log())
        with running(app, settings) as port:
            yield engine, f"http://127.0.0.1:{port}"


def test_answer_skip_undo_and_change_reach_the_store(browser, api):
    engine, url = api
    engine.ask(8)
    key = engine.store.keys.create("annotator", "Ada")
    page, console_errors = open_page(browser, f"{url}/annotate", key.token)
    given = [press_key(page, key) for key in ("c", "x", "s", "c")]
    wait_for_question(page)
    page.keyboard.press("u")
    assert press_key(page, "x") == given[-1]
    wait_until_saved(page)
    page.click("#history-open")
    page.click("text=Change to correct >> nth=0")
    wait_for_text(page, "#history-list", "changed to correct")
    wait_until_saved(page)
    records = engine.store.list_feedback(limit=50)
    standing = {one.prediction_id: one.verdict for one in records if one.standing}
    assert standing == dict(zip(given, ("correct", "incorrect", "skip", "correct"), strict=True))
    assert Counter(one.standing for one in records) == {True: 4, False: 2}
    assert page.text_content("#me") == "Ada"
    assert console_errors == []
    page.context.close()


@pytest.mark.full
def test_operator_takes_a_snapshot_and_rolls_back(browser, api):
    engine, url = api
    engine.ask(3, reason="audit")
    key = engine.store.keys.create("operator", "Olga")
    page, console_errors = open_page(browser, f"{url}/operate", key.token)
    wait_for_text(page, "#questions", "Random audit")
    page.click("#snapshot")
    page.click("#versions li button")
    page.fill("#confirm-reason", "worse than before")
    page.click("#confirm-go")
    wait_for_text(page, "#version", "Version 2.0")
    wait_for_text(page, "#log", "worse than before")
    page.click("#pause")
    page.click("#confirm-go")
    wait_for_text(page, "#learning", "learning paused")
    assert console_errors == []
    page.context.close()


@pytest.mark.full
def test_thirty_answers_of_two_people_survive_a_lost_network(browser, api):
    engine, url = api
    engine.ask(36)
    people = [engine.store.keys.create("annotator", name) for name in ("Ada", "Bo")]
    pages = [open_page(browser, f"{url}/annotate", person.token) for person in people]
    (ada, ada_heard), (bo, _) = pages
    given = {ada: {}, bo: {}}

    def answer(page, keys):
        for key in keys:
            given[page][press_key(page, key)] = {"c": "correct", "x": "incorrect"}[key]

    answer(ada, "cxcxc")
    answer(bo, "xx")
    wait_for_question(bo)
    wait_until_prefetched(bo)
    bo.context.set_offline(True)
    answer(bo, "cx")
    wait_for_text(bo, "#state", "Waiting for the network · 2 answers kept")
    answer(ada, "xcxcxcxcxc")
    bo.context.set_offline(False)
    answer(bo, "cxcxcxcxcxc")
    for page in (ada, bo):
        wait_until_saved(page)
    assert not set(given[ada]) & set(given[bo])
    records = engine.store.list_feedback(limit=100)
    assert {one.prediction_id: one.verdict for one in records} == given[ada] | given[bo]
    assert len(records) == 30
    assert ada_heard == []
    for page in (ada, bo):
        page.context.close()


@pytest.fixture
def server(tmp_path, forker):
    """Yield a server that gets images during the whole test."""
    with ForkedServer(forker, tmp_path) as running:
        is_over = Event()
        traffic = Thread(target=send_images, args=(running, is_over))
        traffic.start()
        try:
            yield running
        finally:
            is_over.set()
            traffic.join(60)


def send_images(server, is_over):
    pictures = embedded_pack("cifar10").images
    with server.client("client") as client:
        for first in range(0, len(pictures), 4):
            if is_over.wait(0.1):
                return
            client.predict(list(pictures[first : first + 4].numpy().astype("float32") / 255))


@pytest.mark.full
def test_model_learns_from_thirty_answers_by_keyboard(browser, server):
    operator, seen = open_page(browser, f"{server.url}/operate", server.keys["operator"])
    annotator, console_errors = open_page(
        browser, f"{server.url}/annotate", server.keys["annotator"]
    )
    given = {}
    for number in range(30):
        key = "cx"[number % 3 == 0]
        given[press_key(annotator, key)] = {"c": "correct", "x": "incorrect"}[key]
    wait_until_saved(annotator)
    learned = server.n_steps()
    until(lambda: server.n_steps() > learned + 1, seconds=60, what="it learns")
    wait_for_text(operator, "#people", "30")
    wait_for_text(operator, "#log", "Learned from")
    assert len(given) == 30
    assert console_errors == seen == []
    annotator.context.close()
    operator.context.close()
    with Store.open(None, server.data_dir, exclusive=False) as store:
        records = [one for one in store.list_feedback(limit=100) if one.standing]
        assert {one.prediction_id: one.verdict for one in records} == given
        assert {one.status for one in records} == {"applied"}
