"""Restarts: versions, answers, the guard's state and pauses."""

import pytest

from bitta.server.engine.learner import Learner
from bitta.server.engine.offline_replay import Replay
from bitta.server.store import Store
from bitta.testing import toy_classifier
from server.store.factories import pending_answers
from small_engine import WINDOW, answer, running, serve, serve_settings, until

NEVER = {"snapshot_steps": 1000, "snapshot_seconds": 1e6}


def crash(engine):
    """Let the engine stop without saving anything, as in a crash."""
    engine._worker.snapshots.take_last = lambda: None
    engine._worker.state_file.write = lambda *_, **__: None


def learn(engine, number):
    before = engine.status().n_learning_steps
    serve(engine, number)
    until(lambda: engine.status().n_learning_steps > before)


def applied(store, record):
    return lambda: store.find_feedback(record.id).status == "applied"


def memory(engine):
    held = engine._worker.learner._session.adapter.memory
    return len(held.correct), len(held.incorrect)


def versions(store):
    return [event.body["version"] for event in store.events(kinds=["learned"])]


def test_clean_restart_continues_its_lineage(tmp_path):
    for number in range(3):
        with running(tmp_path) as (engine, store):
            assert engine.model_version == f"1.{number}"
            learn(engine, number)
    with Store.open(None, tmp_path) as store:
        assert versions(store) == ["1.1", "1.2", "1.3"]


def test_crash_starts_new_lineage(tmp_path):
    with running(tmp_path / "data", **NEVER) as (engine, store):
        learn(engine, 0)
        assert serve(engine, 1, n=1).model_version == "1.1"
        crash(engine)
    with running(tmp_path / "data", **NEVER) as (engine, store):
        assert serve(engine, 2, n=1).model_version == "2.0"
        learn(engine, 3)
        engine.snapshot().result(20)
        assert versions(store) == ["1.1", "2.1"]
    with Store.open(None, tmp_path / "data") as store:
        (tmp_path / "again").mkdir()
        learner = Learner(toy_classifier(), serve_settings())
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        assert (replayed.differing, replayed.n_steps) == ((), 2)


def test_repeated_crashes_leave_no_files(tmp_path):
    for lineage in range(1, 6):
        with running(tmp_path, **NEVER) as (engine, store):
            assert engine.model_version == f"{lineage}.0"
            crash(engine)
    with Store.open(None, tmp_path) as store:
        assert [one.model_version for one in store.snapshots()] == ["1.0"]
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


def test_rollback_target_may_be_before_a_crash(tmp_path):
    """The target for version 2.3 is 1.1, not the source: only a crash is in between."""
    with running(tmp_path, snapshot_steps=1) as (engine, store):
        learn(engine, 0)
        until(lambda: engine._worker.snapshots.last.model_version == "1.1")
        learn(engine, 1)
        until(lambda: engine._worker.snapshots.last.model_version == "1.2")
        crash(engine)
    with running(tmp_path, **NEVER) as (engine, store):
        assert engine.model_version == "2.2"
        learn(engine, 2)
        target = engine._worker.snapshots.find_before(2)
        assert store.find_snapshot(target).model_version == "1.1"


def test_image_of_unasked_answer_survives_crash(tmp_path):
    """The image is stored with the answer, although there was no question about it."""
    unasked = {"keep_images": "queried", "n_queries": 0, "audits": 0}
    with running(tmp_path, **unasked) as (engine, store):
        engine.pause("ada", "so that it waits").result(20)
        name = serve(engine, 0).prediction_ids[3]
        engine.keep_answered_image(name)
        record = answer(store, name)
        crash(engine)
    with running(tmp_path, **unasked) as (engine, store):
        engine.resume("ada").result(20)
        learn(engine, 1)
        until(applied(store, record))
        assert memory(engine) == (1, 0)


@pytest.mark.parametrize("keep_images", ["none", "all"])
def test_answer_stores_no_image_if_none_or_all_are_kept(tmp_path, keep_images):
    with running(tmp_path, keep_images=keep_images) as (engine, store):
        name = serve(engine, 0, n=1).prediction_ids[0]
        until(lambda: store.find_prediction(name) is not None)
        kept = store.images.read(store.find_prediction(name).input_sha256)
        assert (kept is not None) == (keep_images == "all")
        engine.keep_answered_image(name)
        engine.keep_answered_image("no such prediction")
        store.log_event("written", {}).result(20)
        assert store.images.read(store.find_prediction(name).input_sha256) == kept


def test_answer_repeated_after_rollback_enters_memory_once(tmp_path):
    with running(tmp_path) as (engine, store):
        name = serve(engine, 0, n=WINDOW - 1).prediction_ids[3]
        first = answer(store, name, key="k0")
        learn(engine, 1)
        until(applied(store, first))
        kept = engine.snapshot().result(20)
        learn(engine, 2)
        assert engine.rollback(kept.id, by="ada", reason="to see").result(20) == "2.1"
        assert memory(engine) == (1, 0)
        again = answer(store, name, key="k1")
        learn(engine, 3)
        until(applied(store, again))
        assert memory(engine) == (1, 0)
        opposite = answer(store, name, correct=False, key="k2")
        learn(engine, 4)
        until(applied(store, opposite))
        assert memory(engine) == (0, 1)


def test_rollback_removes_later_answers_from_memory(tmp_path):
    with running(tmp_path) as (engine, store):
        source = store.snapshots()[0]
        name = serve(engine, 0, n=WINDOW - 1).prediction_ids[3]
        first = answer(store, name, key="k0")
        learn(engine, 1)
        until(applied(store, first))
        engine.rollback(source.id, by="ada", reason="to see").result(20)
        again = answer(store, name, key="k1")
        learn(engine, 2)
        until(applied(store, again))
        assert memory(engine) == (1, 0)
        assert store.find_feedback(again.id).applied_in_version == "2.1"


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_answer_is_learned_again_if_snapshots_of_its_lineage_are_lost(tmp_path, damage):
    with running(tmp_path, **NEVER) as (engine, store):
        source = store.snapshots()[0]
        learn(engine, 0)
        engine.rollback(source.id, by="ada", reason="to see").result(20)
        name = serve(engine, 1, n=WINDOW - 1).prediction_ids[3]
        record = answer(store, name, key="k0")
        learn(engine, 2)
        until(applied(store, record))
        lost = [tmp_path / one.path for one in store.snapshots() if one.lineage == 2]
        crash(engine)
    assert lost
    for file in lost:
        file.write_bytes(b"half") if damage == "damaged" else file.unlink()
    with running(tmp_path, **NEVER) as (engine, store):
        assert engine.model_version == "3.0"
        assert store.find_feedback(record.id).status == "pending"
        assert memory(engine) == (0, 0)
        learn(engine, 3)
        until(applied(store, record))
        assert memory(engine) == (1, 0)


def test_guard_state_survives_restart(tmp_path):
    with running(tmp_path) as (engine, _):
        for number in range(3):
            learn(engine, number)
        engine.ping().result(20)
        before, worker = engine.status(), engine._worker
        monitor_state, answers_state = (
            worker.monitor.state_dict(),
            worker.answer_statistics.state_dict(),
        )
        assert monitor_state["detector"]["reference"]["n_windows"] == 3
        assert len(answers_state["source_agreement"]) == 3
    with running(tmp_path) as (engine, _):
        assert engine._worker.monitor.state_dict() == monitor_state
        assert engine._worker.answer_statistics.state_dict() == answers_state
        after = engine.status()
        assert after.history == before.history
        assert after.confidence == before.confidence


def test_guard_state_survives_crash(tmp_path):
    with running(tmp_path) as (engine, _):
        learn(engine, 0)
        engine.ping().result(20)
        crash(engine)
    with running(tmp_path) as (engine, _):
        assert len(engine.status().history["at"]) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"monitor": {}}'])
def test_guard_starts_without_state_if_file_is_damaged(tmp_path, caplog, content):
    with running(tmp_path) as (engine, _):
        learn(engine, 0)
    (tmp_path / "guard.json").write_text(content)
    with running(tmp_path) as (engine, _):
        assert not engine.status().history["at"]
        learn(engine, 1)
    assert "the guard starts without a state" in caplog.text


@pytest.mark.parametrize(("by", "reason"), [("ada", "maintenance"), ("ada", "")])
def test_pause_survives_restart_until_resume(tmp_path, by, reason):
    with running(tmp_path) as (engine, _):
        engine.pause(by, reason).result(20)
    with running(tmp_path) as (engine, store):
        assert engine.status().learning == "paused"
        assert engine.status().reason == (reason or "paused by an operator")
        serve(engine, 0)
        until(lambda: store.counts().asked == 3)
        engine.resume("ada").result(20)
        until(lambda: engine.status().n_learning_steps == 1)
    with running(tmp_path) as (engine, _):
        assert engine.status().learning == "on"


def test_slow_database_delays_learning_but_not_serving(tmp_path, monkeypatch):
    with running(tmp_path) as (engine, store):
        claims = []
        take = store.claim_answers

        def later():
            claims.append(type(take())())
            return claims[-1]

        monkeypatch.setattr(store, "claim_answers", later)
        serve(engine, 0)
        until(lambda: claims)
        assert serve(engine, 1, n=1).model_version == "1.0"
        assert engine.status().n_learning_steps == 0
        claims[0].set_result([])
        until(lambda: engine.status().n_learning_steps == 1)


def test_pause_releases_claimed_answers(tmp_path, monkeypatch):
    """An undo during the pause then reports that the answer was not learned."""
    with running(tmp_path) as (engine, store):
        record = answer(store, serve(engine, 0, n=WINDOW - 1).prediction_ids[0])
        take, claims = store.claim_answers, []

        def claimed():
            taken = take()
            taken.result(20)
            claims.append(type(taken)())
            return claims[-1]

        monkeypatch.setattr(store, "claim_answers", claimed)
        serve(engine, 1, n=1)
        until(lambda: claims)
        engine.pause("ada", "").result(20)
        until(lambda: len(pending_answers(store)) == 1)
        assert not store.undo_answer(record.id, "ann").result(20).applied


def test_answer_with_damaged_image_expires(tmp_path):
    with running(tmp_path, recent_bytes=1) as (engine, store):
        name = serve(engine, 0, n=WINDOW - 1).prediction_ids[0]
        until(lambda: store.find_prediction(name) is not None)
        path = store.images.path(store.find_prediction(name).input_sha256)
        until(path.exists)
        path.write_bytes(path.read_bytes()[:-4])
        record = answer(store, name)
        learn(engine, 1)
        until(lambda: store.find_feedback(record.id).status == "expired")
        assert engine.is_alive
        assert engine.status().learning == "on"


def test_open_questions_expire(tmp_path):
    with running(tmp_path, question_seconds=0.001) as (engine, store):
        serve(engine, 0)
        until(lambda: store.counts().expired == 3)
        assert store.counts().open == 0
        assert len(store.events(kinds=["expired"])) >= 1
