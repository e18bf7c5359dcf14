"""The worker after errors in learning, and its release of freed memory."""

from concurrent.futures import Future

import pytest
import torch

from bitta.server.engine import worker
from bitta.server.engine.learner import Learner
from bitta.server.engine.offline_replay import Replay
from bitta.server.engine.worker import RELEASE_SECONDS, MemoryRelease
from bitta.server.store import Store, StoreBusy, StoreUnavailable
from bitta.testing import toy_classifier
from server.store.factories import pending_answers
from small_engine import WINDOW, answer, images, running, serve, serve_settings, until

ERRORS = [
    RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED\nand much more"),
    torch.OutOfMemoryError("not enough memory for 3 TiB"),
]


def fail_once(engine, error, *, inside=lambda: None):
    """Let the second optimiser update fail."""
    adapter = engine._worker.learner._session.adapter
    update, done = adapter.update, []

    def fail(*arguments):
        done.append(1)
        if len(done) == 2:
            inside()
            raise error
        return update(*arguments)

    adapter.update = fail


def wait_for_rollback(engine):
    until(lambda: engine.status().model_version.startswith("2."))
    engine.ping().result(20)


@pytest.fixture
def failed(tmp_path, request):
    """An engine that has learned version 1.1 from an answer and failed to learn 1.2."""
    error = getattr(request, "param", ERRORS[0])
    with running(tmp_path / "data", snapshot_steps=1000) as (engine, store):
        learned = answer(store, serve(engine, 0, n=WINDOW - 1).prediction_ids[0])
        serve(engine, 9, n=1)
        until(lambda: engine.status().n_learning_steps == 1)
        engine.pause("ada", "to break it").result(20)
        until(lambda: store.find_feedback(learned.id).status == "applied")
        waiting = answer(store, serve(engine, 1).prediction_ids[0], correct=False)
        fail_once(engine, error)
        engine.resume("ada").result(20)
        wait_for_rollback(engine)
        yield engine, store, learned, waiting


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (ERRORS[0], "CUBLAS_STATUS_EXECUTION_FAILED"),
        (ERRORS[1], "does not fit into the device's memory"),
    ],
    indirect=["failed"],
)
def test_failed_step_rolls_back_with_reason_and_pauses_learning(failed, words):
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


def test_failed_step_serves_with_weights_of_snapshot(failed):
    engine, store, _, _ = failed
    source, back = store.snapshots()
    assert (back.reason, back.weights_hash) == ("rollback", source.weights_hash)
    assert engine._worker.learner.weights_hash == source.weights_hash
    assert serve(engine, 2).model_version == "2.0"


def test_answers_of_failed_step_are_learned_once_after_resume(failed):
    engine, store, learned, waiting = failed
    assert [answer.feedback_id for answer in pending_answers(store)] == [learned.id, waiting.id]
    serve(engine, 2)
    assert engine.status().n_learning_steps == 0  # paused
    engine.resume("ada").result(20)
    assert engine.status().reason is None
    serve(engine, 3)
    until(lambda: store.find_feedback(waiting.id).status == "applied")
    memory = engine._worker.learner._session.adapter.memory
    assert (len(memory.correct), len(memory.incorrect)) == (1, 1)
    assert store.find_feedback(waiting.id).applied_in_version == "2.1"


def test_windows_after_failed_step_ask_nothing_until_resume(failed):
    engine, store, _, _ = failed
    asked = store.counts().asked
    serve(engine, 2)
    engine.ping().result(20)
    store.expire_questions(0).result(20)  # written after possible questions
    assert store.counts().asked == asked
    engine.resume("ada").result(20)
    serve(engine, 3)
    until(lambda: store.counts().asked == asked + 3)


def test_replay_of_failed_step_gives_same_weights(tmp_path):
    """Requests are served between two updates of the failing step."""
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
        wait_for_rollback(engine)
        assert before.result(20).prediction_ids
        assert inside[0].result(20).model_version == "2.0"
        engine.resume("ada").result(20)
        for number in (1, 2):
            answer(store, serve(engine, number).prediction_ids[0])
            # A window that arrives before the last step is committed replaces the one before.
            until(lambda n_steps=number: engine.status().n_learning_steps == n_steps)
    with Store.open(None, tmp_path / "data") as store:
        (tmp_path / "again").mkdir()
        learner = Learner(toy_classifier(), serve_settings())
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
        assert replayed.differing == ()
        assert (newest.model_version, replayed.weights_hash) == ("2.2", newest.weights_hash)


def test_failed_choice_of_questions_rolls_back(tmp_path):
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "so that nothing else fails").result(20)

        def fail(*_, **__):
            raise RuntimeError("no policy")

        engine._worker.learner._session._query_selector.select = fail
        assert serve(engine, 0).model_version == "1.0"
        wait_for_rollback(engine)
        assert store.events(kinds=["rollback"])[0].body["reason"].endswith("no policy")
        assert serve(engine, 1).model_version == "2.0"


def test_failed_forward_pass_refuses_its_request_only(tmp_path):
    with running(tmp_path) as (engine, _):
        adapter = engine._worker.learner._session.adapter

        def fail(*_):
            raise RuntimeError("index out of range")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adapter, "predict", fail)
            with pytest.raises(Exception, match="index out of range"):
                serve(engine, 0, n=1)
        assert serve(engine, 1, n=1).model_version == "1.0"
        assert engine.status().learning == "on"


def test_requests_are_refused_while_rollback_cannot_be_logged(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_MIN_RETRY_SECONDS", 0.0)
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "to break it").result(20)
        serve(engine, 0)
        fail_once(engine, RuntimeError("on purpose"))
        attempts = []

        def refuse(*_, **__):
            attempts.append(Future())
            attempts[-1].set_exception(StoreBusy("another program locks the database; try again"))
            return attempts[-1]

        with monkeypatch.context() as locked:
            locked.setattr(store, "log_rollback", refuse)
            engine.resume("ada").result(20)
            until(lambda: len(attempts) > 1)
            for request in (engine.snapshot, lambda: engine.resume("ada")):
                with pytest.raises(StoreUnavailable, match="learning failed: on purpose"):
                    request().result(20)
            with pytest.raises(StoreUnavailable, match="learning failed: on purpose"):
                serve(engine, 1)
            assert [snapshot.reason for snapshot in store.snapshots()] == ["source"]
        wait_for_rollback(engine)
        assert serve(engine, 2).model_version == "2.0"


def test_repeated_failed_rollbacks_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_MIN_RETRY_SECONDS", 0.0)
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "to break it").result(20)
        serve(engine, 0)
        fail_once(engine, torch.OutOfMemoryError("not enough memory for the step"))
        attempts = []

        def too_large(_):
            attempts.append(1)
            raise torch.OutOfMemoryError("not enough memory for the state")

        with monkeypatch.context() as full:
            full.setattr(engine._worker.learner, "load", too_large)
            engine.resume("ada").result(20)
            until(lambda: len(attempts) > 2)
        until(lambda: engine.status().model_version != "1.0")
        assert serve(engine, 1).model_version == engine.status().model_version
        until(lambda: len(store.snapshots()) == 2)
        assert len(list((tmp_path / "snapshots").iterdir())) == 2


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def released_at(now):
    return []


@pytest.fixture
def release(now, released_at):
    return MemoryRelease(release=lambda: released_at.append(now[0]), clock=lambda: now[0])


def test_memory_is_released_after_interval(release, now, released_at):
    release.record_work()
    release.release_if_due()
    now[0] += RELEASE_SECONDS - 1
    release.release_if_due()
    assert released_at == []
    now[0] += 1
    release.release_if_due()
    assert released_at == [100.0 + RELEASE_SECONDS]


def test_memory_is_not_released_without_work(release, now, released_at):
    now[0] += RELEASE_SECONDS
    release.release_if_due()
    assert released_at == []
    release.record_work()
    release.release_if_due()
    now[0] += 5 * RELEASE_SECONDS
    release.release_if_due()
    assert released_at == [100.0 + RELEASE_SECONDS]


def test_interval_restarts_with_each_release(release, now, released_at):
    for _ in range(int(3 * RELEASE_SECONDS)):
        now[0] += 1
        release.record_work()
        release.release_if_due()
    assert released_at == [
        100 + RELEASE_SECONDS,
        100 + 2 * RELEASE_SECONDS,
        100 + 3 * RELEASE_SECONDS,
    ]


@pytest.mark.parametrize("learns", [True, False])
def test_worker_releases_memory_after_serving_or_learning(tmp_path, learns):
    with running(tmp_path) as (engine, _):
        now, released_at = [0.0], []
        worker = engine._worker
        worker.memory_release = MemoryRelease(
            release=lambda: released_at.append(worker.learner.step), clock=lambda: now[0]
        )
        if not learns:
            engine.pause("me", "").result(10)
        serve(engine, 0)
        until(lambda: engine.status().n_learning_steps == learns)
        assert released_at == []
        now[0] = RELEASE_SECONDS
        until(lambda: released_at)
        assert released_at == [int(learns)]
        engine.ping().result(10)
        assert len(released_at) == 1, "there was no work since"
