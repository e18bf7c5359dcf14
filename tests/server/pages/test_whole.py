"""The pages of a whole server: a person answers, and the model learns from it."""

from threading import Event, Thread

import pytest

from server.pages.acting import open_page, press, saved, says

pytest.importorskip("fastapi", reason="fastapi is not installed; the pages are not served")

from bitta.server.store import Store
from bitta.streams import embedded_pack
from server.processes import ForkedServer, until


@pytest.fixture
def server(tmp_path, forker):
    """With traffic for as long as the test takes."""
    with ForkedServer(forker, tmp_path) as running:
        over = Event()
        traffic = Thread(target=send, args=(running, over))
        traffic.start()
        try:
            yield running
        finally:
            over.set()
            traffic.join(60)


def send(server, over):
    pictures = embedded_pack("cifar10").images
    with server.client("client") as client:
        for first in range(0, len(pictures), 4):
            if over.wait(0.1):
                return
            client.predict(list(pictures[first : first + 4].numpy().astype("float32") / 255))


def test_one_person_answers_thirty_questions_by_keyboard_and_the_model_learns_them(browser, server):
    operator, seen = open_page(browser, f"{server.url}/operate", server.keys["operator"])
    annotator, heard = open_page(browser, f"{server.url}/annotate", server.keys["annotator"])
    given = {}
    for number in range(30):
        key = "cx"[number % 3 == 0]
        given[press(annotator, key)] = {"c": "correct", "x": "incorrect"}[key]
    saved(annotator)
    learned = server.n_steps()
    until(lambda: server.n_steps() > learned + 1, seconds=60, what="it learns")
    says(operator, "#people", "30")
    says(operator, "#log", "Learned from")
    assert len(given) == 30
    assert heard == seen == []
    annotator.context.close()
    operator.context.close()
    with Store.open(None, server.data_dir, exclusive=False) as store:
        records = [one for one in store.list_feedback(limit=100) if one.standing]
        assert {one.prediction_id: one.verdict for one in records} == given
        assert {one.status for one in records} == {"applied"}
