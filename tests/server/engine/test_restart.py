"""What a restart goes on with: versions, answers, what the guard knows, a pause."""

import pytest

from bitta.server.engine.learner import Learner
from bitta.server.engine.replay import Replay
from bitta.server.store import Store
from bitta.testing import toy_classifier
from small_engine import WINDOW, answer, running, serve, serve_settings, until

NEVER = {"snapshot_steps": 1000, "snapshot_seconds": 1e6}


def crash(engine):
    """What ends now keeps nothing more."""
    engine._worker.snapshots.take_last = lambda: None
    engine._worker.state_file.write = lambda *_, **__: None


def learn(engine, number):
    before = engine.status().n_steps
    serve(engine, number)
    until(lambda: engine.status().n_steps > before)


def applied(store, record):
    return lambda: store.find_feedback(record.id).status == "applied"


def memory(engine):
    held = engine._worker.learner._session.adapter.memory
    return len(held.correct), len(held.incorrect)


def versions(store):
    return [one.body["version"] for one in store.events(kinds=["learned"])]


def test_an_orderly_restart_goes_on_in_its_lineage(tmp_path):
    for number in range(3):
        with running(tmp_path) as (engine, store):
            assert engine.model_version == f"1.{number}"
            learn(engine, number)
    with Store.open(None, tmp_path) as store:
        assert versions(store) == ["1.1", "1.2", "1.3"]


def test_after_a_crash_no_version_names_other_weights_than_before(tmp_path):
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


def test_one_crash_after_the_other_leaves_no_files(tmp_path):
    for lineage in range(1, 6):
        with running(tmp_path, **NEVER) as (engine, store):
            assert engine.model_version == f"{lineage}.0"
            crash(engine)
    with Store.open(None, tmp_path) as store:
        assert [one.model_version for one in store.snapshots()] == ["1.0"]
    assert len(list((tmp_path / "snapshots").iterdir())) == 1


def test_the_guard_goes_back_past_a_crash(tmp_path):
    """To 1.1 from 2.3, not to the source: only a crash lies between."""
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


def test_an_answer_that_nobody_asked_for_outlives_a_crash(tmp_path):
    """Its image is kept when it comes, though no question was asked about it."""
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


@pytest.mark.parametrize("how", ["none", "all"])
def test_no_image_is_kept_for_an_answer_where_none_or_all_are(tmp_path, how):
    with running(tmp_path, keep_images=how) as (engine, store):
        name = serve(engine, 0, n=1).prediction_ids[0]
        until(lambda: store.find_prediction(name) is not None)
        kept = store.images.read(store.find_prediction(name).input_sha256)
        assert (kept is not None) == (how == "all")
        engine.keep_answered_image(name)
        engine.keep_answered_image("no such prediction")
        store.log_event("written", {}).result(20)
        assert store.images.read(store.find_prediction(name).input_sha256) == kept


def test_what_the_memory_holds_from_before_a_rollback_does_not_enter_it_again(tmp_path):
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


def test_what_was_learned_after_the_snapshot_gone_back_to_is_not_held(tmp_path):
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


@pytest.mark.parametrize("what", ["damaged", "missing"])
def test_an_answer_learned_after_a_rollback_is_learned_again_when_its_files_are_lost(
    tmp_path, what
):
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
        file.write_bytes(b"half") if what == "damaged" else file.unlink()
    with running(tmp_path, **NEVER) as (engine, store):
        assert engine.model_version == "3.0"
        assert store.find_feedback(record.id).status == "pending"
        assert memory(engine) == (0, 0)
        learn(engine, 3)
        until(applied(store, record))
        assert memory(engine) == (1, 0)


def test_what_the_guard_knows_outlives_the_process(tmp_path):
    with running(tmp_path) as (engine, _):
        for number in range(3):
            learn(engine, number)
        engine.ping().result(20)
        before, worker = engine.status(), engine._worker
        known, same = worker.monitor.state_dict(), worker.answer_statistics.state_dict()
        assert known["detector"]["reference"]["n_windows"] == 3
        assert len(same["source_agreement"]) == 3
    with running(tmp_path) as (engine, _):
        assert engine._worker.monitor.state_dict() == known
        assert engine._worker.answer_statistics.state_dict() == same
        after = engine.status()
        assert after.history == before.history
        assert after.confidence == before.confidence


def test_a_crash_loses_at_most_the_last_seconds_of_it(tmp_path):
    with running(tmp_path) as (engine, _):
        learn(engine, 0)
        engine.ping().result(20)
        crash(engine)
    with running(tmp_path) as (engine, _):
        assert len(engine.status().history["at"]) == 1


@pytest.mark.parametrize("content", ["", "[]", '{"monitor": {}}'])
def test_where_its_file_is_damaged_the_guard_begins_anew(tmp_path, caplog, content):
    with running(tmp_path) as (engine, _):
        learn(engine, 0)
    (tmp_path / "guard.json").write_text(content)
    with running(tmp_path) as (engine, _):
        assert not engine.status().history["at"]
        learn(engine, 1)
    assert "the guard starts without a state" in caplog.text


@pytest.mark.parametrize(("by", "reason"), [("ada", "a look at it"), ("ada", "")])
def test_what_was_paused_stays_so_until_an_operator_resumes(tmp_path, by, reason):
    with running(tmp_path) as (engine, _):
        engine.pause(by, reason).result(20)
    with running(tmp_path) as (engine, store):
        assert engine.status().learning == "paused"
        assert engine.status().reason == (reason or "paused by an operator")
        serve(engine, 0)
        until(lambda: store.counts().asked == 3)
        engine.resume("ada").result(20)
        until(lambda: engine.status().n_steps == 1)
    with running(tmp_path) as (engine, _):
        assert engine.status().learning == "on"


def test_a_database_that_hands_out_no_answers_keeps_nobody_waiting(tmp_path, monkeypatch):
    with running(tmp_path) as (engine, store):
        owed = []
        take = store.claim_answers

        def later():
            owed.append(type(take())())
            return owed[-1]

        monkeypatch.setattr(store, "claim_answers", later)
        serve(engine, 0)
        until(lambda: owed)
        assert serve(engine, 1, n=1).model_version == "1.0"
        assert engine.status().n_steps == 0
        owed[0].set_result([])
        until(lambda: engine.status().n_steps == 1)


def test_a_pause_gives_back_what_was_claimed(tmp_path, monkeypatch):
    """So that an undo meanwhile is told the truth."""
    with running(tmp_path) as (engine, store):
        record = answer(store, serve(engine, 0, n=WINDOW - 1).prediction_ids[0])
        take, owed = store.claim_answers, []

        def claimed():
            taken = take()
            taken.result(20)
            owed.append(type(taken)())
            return owed[-1]

        monkeypatch.setattr(store, "claim_answers", claimed)
        serve(engine, 1, n=1)
        until(lambda: owed)
        engine.pause("ada", "").result(20)
        until(lambda: len(store.pending_answers()) == 1)
        assert not store.undo_answer(record.id, "ann").result(20).applied


def test_an_image_that_is_damaged_costs_its_answer_and_no_more(tmp_path):
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


def test_questions_expire_by_themselves(tmp_path):
    with running(tmp_path, question_seconds=0.001) as (engine, store):
        serve(engine, 0)
        until(lambda: store.counts().expired == 3)
        assert store.counts().open == 0
        assert len(store.events(kinds=["expired"])) >= 1
