"""Tests of the client against the real app, engine and store, over a socket."""

import socket
import threading
from contextlib import contextmanager
from time import monotonic, sleep

import numpy as np
import pytest
import uvicorn
from PIL import Image

from bitta.client import AccessError, Client, NotFoundError
from bitta.client.simulated_annotator import AnswerCounts, SimulatedAnnotator
from bitta.server.api import create_app
from bitta.server.settings import load_settings
from small_engine import WINDOW, images, running

pytestmark = pytest.mark.full


@contextmanager
def listening(engine, store, folder):
    """Listen with an app around this engine and store, and yield the address."""
    settings = load_settings({"data_dir": folder, "port": 0}, environment={})
    app = create_app(engine, store, settings)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def clients(tmp_path):
    """Clients by role."""
    with running(tmp_path) as (engine, store), listening(engine, store, tmp_path) as url:
        roles = ("client", "annotator", "operator")
        clients = {role: Client(url, store.keys.create(role, role).token) for role in roles}
        yield clients
        for client in clients.values():
            client.close()


def test_thumbs_questions_and_undo_work_together(clients):
    app, annotator = clients["client"], clients["annotator"]
    served = app.predict(images(0))
    assert len({each.prediction_id for each in served}) == WINDOW
    assert {each.model_version for each in served} == {"1.0"}
    first = app.thumbs(served[0].prediction_id, up=True)
    assert app.thumbs(served[0].prediction_id, up=True).id == first.id
    down = app.thumbs(served[0].prediction_id, up=False)
    assert down.supersedes_id == first.id
    assert app.thumbs(served[0].prediction_id, up=True).standing
    again = app.thumbs(served[0].prediction_id, up=True, metadata={"page": 3})
    assert again.metadata == {"page": 3}
    assert clients["operator"].thumbs(served[0].prediction_id, up=True).id != first.id

    question = annotator.next_question(wait=60)
    assert question.prediction_id in {each.prediction_id for each in served}
    assert annotator.image(question).startswith(b"\x89PNG")
    given = annotator.answer(question, correct=False, comment="no")
    assert given.comment == "no"
    assert annotator.undo(given.id).undone == given.id
    assert annotator.answer(question.prediction_id, verdict="correct").verdict == "correct"
    assert clients["operator"].status()["questions"]["asked"] >= 3


def test_picture_and_its_array_get_the_same_prediction(clients):
    pixels = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    [one] = clients["client"].predict(Image.fromarray(pixels))
    [other] = clients["client"].predict(pixels.transpose(2, 0, 1))
    assert one.class_index == other.class_index
    assert one.confidence == pytest.approx(other.confidence, abs=1e-6)


def test_refused_calls_raise_client_errors(clients):
    with pytest.raises(NotFoundError):
        clients["client"].answer("01JCPQ8M3V5N7R9T1W3Y5Z7B9D", correct=True)
    with pytest.raises(AccessError):
        clients["client"].next_question()


def test_answers_of_the_simulated_annotator_change_the_model(clients):
    app, annotator = clients["client"], clients["annotator"]
    for number in range(3):
        app.predict(images(number))
    counts = SimulatedAnnotator(annotator, lambda question: question.class_index).run(6)
    assert counts == AnswerCounts(correct=6)
    until = monotonic() + 60
    while clients["operator"].status()["learning"]["steps"] == 0 and monotonic() < until:
        app.predict(images(9, 1))
        sleep(0.05)
    assert app.predict(images(9, 1))[0].model_version != "1.0"
