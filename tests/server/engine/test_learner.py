"""Test that the server learns the same as the library from the same windows and answers."""

import pytest
import torch

import bitta
from bitta.testing import toy_classifier
from small_engine import WINDOW, answer, images, running, serve, serve_settings, until

REQUEST_SIZES = (
    3,
    WINDOW - 3,
)  # requests smaller than a window, where `observe_every_request` matters
ANSWERS = (
    [(0, 0, True), (0, 2, False)],
    [],
    [(2, 1, False), (0, 1, True)],
    [(3, 0, True)],
    [(4, 2, True), (1, 1, False), (4, 0, False)],
)
"""Answers before each learning step: (window, question, correct). Some are windows late."""


def library():
    """Return a session with the settings of the engine."""
    settings = serve_settings()
    return bitta.Session(
        toy_classifier(), settings.method, preset=settings.preset, n_queries=settings.n_queries,
        audits=settings.audits, window=settings.window, observe_every_request=False,
        seed=settings.seed, **settings.settings,
    )  # fmt: skip


def run_both(engine, store, session, *, inverted=None):
    """Serve, answer and learn in both. The session gets the opposite of the answer `inverted`."""
    asked = []
    engine.pause("me", "one window at a time").result(20)
    for window, given in enumerate(ANSWERS):
        ids, n_windows = [], window + 1
        for part, n in enumerate(REQUEST_SIZES):
            number = len(REQUEST_SIZES) * window + part
            served = serve(engine, number, n)
            prediction = session.predict(torch.from_numpy(images(number, n)))
            assert served.confidence == prediction.confidence.tolist()
            ids += served.prediction_ids
        asked.append([(ids[query.index], query.id) for query in prediction.queries])
        until(lambda n=n_windows: store.counts().asked == 3 * n)
        in_server = {one.prediction_id for one in store.questions() if one.window == window}
        assert in_server == {name for name, _ in asked[window]}
        for place in given:
            name, query_id = asked[place[0]][place[1]]
            answer(store, name, correct=place[2])
            session.answer(query_id, correct=place[2] != (place == inverted))
        engine.resume("me").result(20)
        until(lambda n=n_windows: engine.status().n_learning_steps == n)
        engine.pause("me", "one window at a time").result(20)
        session.learn()
    until(lambda: len(store.events(kinds=["learned"])) == len(ANSWERS))
    learned = [len(one.body["answers"]) for one in store.events(kinds=["learned"])]
    assert learned == [len(given) for given in ANSWERS]


def differing(one, other):
    """Return the names of weights and buffers that differ."""
    one, other = one.state_dict(), other.state_dict()
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.parametrize("inverted", [None, ANSWERS[-1][-1]], ids=["same", "inverted"])
def test_server_learns_same_weights_as_library(tmp_path, inverted):
    """They differ if one answer of the last step is inverted."""
    with running(tmp_path) as (engine, store), library() as session:
        run_both(engine, store, session, inverted=inverted)
        served = engine._worker.learner._session.model
        assert engine.status().model_version == f"1.{len(ANSWERS)}"
    assert {name for name, _ in served.named_parameters()} <= differing(served, toy_classifier())
    assert bool(differing(served, session.model)) == (inverted is not None)
