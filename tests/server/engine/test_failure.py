"""A step that torch cannot make: the model goes back, serves on, and waits for an operator."""

from concurrent.futures import Future

import pytest
import torch

from bitta.server.engine import worker
from bitta.server.engine.learner import Learner
from bitta.server.engine.replay import Replay
from bitta.server.store import Store, StoreBusy, StoreUnavailable
from bitta.testing import toy_classifier
from small_engine import WINDOW, answer, images, running, serve, serve_settings, until

ERRORS = [
    RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED\nand much more"),
    torch.OutOfMemoryError("no room for 3 TiB"),
]


def fail_once(engine, error, *, inside=lambda: None):
    """The second step of the optimiser fails, whichever session it is of."""
    adapter = engine._worker.learner._session.adapter
    descend, done = adapter._descend, []

    def fail(*given):
        done.append(1)
        if len(done) == 2:
            inside()
            raise error
        return descend(*given)

    adapter._descend = fail


def went_back(engine):
    until(lambda: engine.status().model_version.startswith("2."))
    engine.ping().result(20)


@pytest.fixture
def failed(tmp_path, request):
    """An engine that has learned 1.1 from an answer, and failed to learn 1.2 from another."""
    error = getattr(request, "param", ERRORS[0])
    with running(tmp_path / "data", snapshot_steps=1000) as (engine, store):
        learned = answer(store, serve(engine, 0, n=WINDOW - 1).prediction_ids[0])
        serve(engine, 9, n=1)
        until(lambda: engine.status().n_steps == 1)
        engine.pause("ada", "to break it").result(20)
        until(lambda: store.find_feedback(learned.id).status == "applied")
        waiting = answer(store, serve(engine, 1).prediction_ids[0], correct=False)
        fail_once(engine, error)
        engine.resume("ada").result(20)
        went_back(engine)
        yield engine, store, learned, waiting


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (ERRORS[0], "CUBLAS_STATUS_EXECUTION_FAILED"),
        (ERRORS[1], "does not fit into the device's memory"),
    ],
    indirect=["failed"],
)
def test_a_step_that_fails_is_a_rollback_with_its_reason_and_learning_is_paused(failed, words):
    engine, store, _, _ = failed
    (event,) = store.events(kinds=["rollback"])
    assert (event.body["by"], event.body["from_version"]) == ("guard", "1.1")
    assert event.body["reason"].startswith("learning failed: ")
    assert words in event.body["reason"]
    assert "much more" not in event.body["reason"]
    assert engine.is_alive
    status = engine.status()
    assert (status.learning, status.reason) == ("paused", event.body["reason"])
    until(lambda: len(store.events(kinds=["paused"])) == 2)
    assert store.events(kinds=["paused"])[-1].body["by"] == "guard"


def test_it_serves_by_the_weights_of_the_snapshot_it_went_back_to(failed):
    engine, store, _, _ = failed
    source, back = store.snapshots()
    assert (back.reason, back.weights_hash) == ("rollback", source.weights_hash)
    assert engine._worker.learner.weights_hash == source.weights_hash
    assert serve(engine, 2).model_version == "2.0"


def test_no_answer_is_lost_and_each_is_in_the_memory_once_after_the_operator_resumes(failed):
    engine, store, learned, waiting = failed
    assert [one.feedback_id for one in store.pending_answers()] == [learned.id, waiting.id]
    serve(engine, 2)
    assert engine.status().n_steps == 0  # paused
    engine.resume("ada").result(20)
    assert engine.status().reason is None
    serve(engine, 3)
    until(lambda: store.find_feedback(waiting.id).status == "applied")
    memory = engine._worker.learner._session.adapter.memory
    assert (len(memory.correct), len(memory.incorrect)) == (1, 1)
    assert store.find_feedback(waiting.id).applied_in_version == "2.1"


def test_a_window_asks_nothing_until_the_operator_resumes(failed):
    engine, store, _, _ = failed
    asked = store.counts().asked
    serve(engine, 2)
    engine.ping().result(20)
    store.expire_questions(0).result(20)  # behind what could have been asked
    assert store.counts().asked == asked
    engine.resume("ada").result(20)
    serve(engine, 3)
    until(lambda: store.counts().asked == asked + 3)


def test_a_log_with_a_step_that_failed_lived_again_gives_the_same_weights(tmp_path):
    """Somebody is served inside the step that fails, between two steps of its optimiser."""
    with running(tmp_path / "data", snapshot_steps=1000) as (engine, store):
        engine.pause("ada", "to break it").result(20)
        answer(store, serve(engine, 0).prediction_ids[0])
        inside = []
        fail_once(
            engine,
            RuntimeError("on purpose"),
            inside=lambda: inside.append(engine.predict(images(9, 2), request_id="inside")),
        )
        before = engine.predict(images(8, 3), request_id="between")
        engine.resume("ada").result(20)
        went_back(engine)
        assert before.result(20).prediction_ids
        assert inside[0].result(20).model_version == "2.0"
        engine.resume("ada").result(20)
        for number in (1, 2):
            answer(store, serve(engine, number).prediction_ids[0])
        until(lambda: engine.status().n_steps == 2)
    with Store.open(None, tmp_path / "data") as store:
        (tmp_path / "again").mkdir()
        learner = Learner(toy_classifier(), serve_settings())
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        newest = max(store.snapshots(), key=lambda one: one.seq)
        assert replayed.differing == ()
        assert (newest.model_version, replayed.weights_hash) == ("2.2", newest.weights_hash)


def test_questions_that_fail_after_the_answer_was_given_are_such_a_failure_too(tmp_path):
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "so that nothing else fails").result(20)

        def fail(*_, **__):
            raise RuntimeError("no policy")

        engine._worker.learner._session._query_selector.select = fail
        assert serve(engine, 0).model_version == "1.0"
        went_back(engine)
        assert store.events(kinds=["rollback"])[0].body["reason"].endswith("no policy")
        assert serve(engine, 1).model_version == "2.0"


def test_a_model_that_fails_on_some_images_refuses_them_and_nothing_else_happens(tmp_path):
    with running(tmp_path) as (engine, _):
        adapter = engine._worker.learner._session.adapter

        def fail(*_):
            raise RuntimeError("index out of range")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adapter, "predict", fail)
            with pytest.raises(Exception, match="the model fails: index out of range"):
                serve(engine, 0, n=1)
        assert serve(engine, 1, n=1).model_version == "1.0"
        assert engine.status().learning == "on"


def test_while_going_back_cannot_be_logged_requests_are_refused_and_nothing_is_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(worker, "_MIN_RETRY_SECONDS", 0.0)
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "to break it").result(20)
        serve(engine, 0)
        fail_once(engine, RuntimeError("on purpose"))
        tried = []

        def refused(*_, **__):
            tried.append(Future())
            tried[-1].set_exception(StoreBusy("another program holds the database; try again"))
            return tried[-1]

        with monkeypatch.context() as locked:
            locked.setattr(store, "log_rollback", refused)
            engine.resume("ada").result(20)
            until(lambda: len(tried) > 1)
            for asked in (engine.snapshot, lambda: engine.resume("ada")):
                with pytest.raises(StoreUnavailable, match="learning failed: on purpose"):
                    asked().result(20)
            with pytest.raises(StoreUnavailable, match="learning failed: on purpose"):
                serve(engine, 1)
            assert [one.reason for one in store.snapshots()] == ["source"]
        went_back(engine)
        assert serve(engine, 2).model_version == "2.0"


def test_while_the_state_to_go_back_to_does_not_fit_no_files_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_MIN_RETRY_SECONDS", 0.0)
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "to break it").result(20)
        serve(engine, 0)
        fail_once(engine, torch.OutOfMemoryError("no room for the step"))
        tried = []

        def too_large(_):
            tried.append(1)
            raise torch.OutOfMemoryError("no room for the state")

        with monkeypatch.context() as full:
            full.setattr(engine._worker.learner, "load", too_large)
            engine.resume("ada").result(20)
            until(lambda: len(tried) > 2)
        until(lambda: engine.status().model_version != "1.0")
        assert serve(engine, 1).model_version == engine.status().model_version
        until(lambda: len(store.snapshots()) == 2)
        assert len(list((tmp_path / "snapshots").iterdir())) == 2
