"""The engine: serving, questions, learning, snapshots, rollback and replay."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bitta.errors import InputError
from bitta.server.collapse_detector import GuardSettings
from bitta.server.engine import EngineOverloadedError
from bitta.server.engine.learner import Learner
from bitta.server.engine.offline_replay import Replay
from bitta.server.store import NewAnswer, Store
from bitta.server.store.errors import UnknownSnapshot
from bitta.testing import toy_classifier
from small_engine import CLASSES, WINDOW, answer, images, running, serve, serve_settings, until


def learned(store):
    return store.events(kinds=["learned"])


def steps(engine, n):
    return lambda: engine.status().n_learning_steps >= n


def test_request_gets_one_row_per_image(tmp_path):
    with running(tmp_path) as (engine, store):
        served = serve(engine, 0, n=3)
        assert len(set(served.prediction_ids)) == 3
        assert served.labels == [CLASSES[index] for index in served.class_indices]
        assert served.log_probs.shape == (3, 5)
        assert served.log_probs.argmax(1).tolist() == served.class_indices
        assert np.exp(served.log_probs).sum(1) == pytest.approx(np.ones(3), abs=1e-5)
        assert served.model_version == "1.0"
        until(lambda: store.counts().served == 3)
        stored = store.find_prediction(served.prediction_ids[1])
        assert (stored.position, stored.request_id, stored.label) == (1, "r0", served.labels[1])


def test_complete_window_raises_questions_with_one_audit(tmp_path):
    with running(tmp_path) as (engine, store):
        engine.pause("me", "to look")
        engine.ping().result(10)
        serve(engine, 0, n=WINDOW - 1)
        served = serve(engine, 1, n=1)
        until(lambda: store.count_open_questions() == 3)
        questions = store.questions(status="open")
        assert sorted(question.reason for question in questions) == ["audit"] + ["uncertain"] * 2
        assert all(store.images.read(question.input_sha256) for question in questions)
        assert engine.status().n_learning_steps == 0
        assert served.model_version == "1.0"


def test_answers_are_learned_once_in_the_step_that_logs_them(tmp_path):
    with running(tmp_path) as (engine, store):
        engine.pause("me", "").result(10)
        first = serve(engine, 0)
        records = [answer(store, name) for name in first.prediction_ids[:2]]
        engine.resume("me").result(10)
        until(steps(engine, 1))
        until(lambda: len(learned(store)) == 1)
        assert learned(store)[0].body["answers"] == [record.id for record in records]
        assert store.find_feedback(records[0].id).status == "applied"
        assert store.find_feedback(records[0].id).applied_in_version == "1.1"
        serve(engine, 1)
        until(steps(engine, 2))
        until(lambda: len(learned(store)) == 2)
        assert learned(store)[1].body["answers"] == []


def test_rollback_to_snapshot_starts_new_lineage(tmp_path):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        until(steps(engine, 1))
        kept = engine.snapshot().result(10)
        assert kept.model_version == "1.1"
        serve(engine, 1)
        until(steps(engine, 2))
        assert engine.rollback(kept.id, by="me", reason="worse").result(10) == "2.1"
        newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
        assert (newest.reason, newest.weights_hash) == ("rollback", kept.weights_hash)
        assert serve(engine, 2, n=1).model_version == "2.1"
        with pytest.raises(UnknownSnapshot, match="there is no snapshot"):
            engine.rollback("nothing", by="me", reason="").result(10)


def test_restart_continues_with_same_weights_and_positions(tmp_path):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        until(steps(engine, 1))
    weights = None
    with Store.open(None, tmp_path) as store:
        weights = max(store.snapshots(), key=lambda snapshot: snapshot.seq).weights_hash
    with running(tmp_path) as (engine, store):
        assert engine.status().model_version == "1.1"
        assert engine.status().weights == weights
        served = serve(engine, 1, n=2)
        until(lambda: store.counts().served == WINDOW + 2)
        assert store.find_prediction(served.prediction_ids[0]).position == WINDOW


def test_restart_learns_again_answers_learned_after_last_snapshot(tmp_path):
    """The newest snapshot is deleted, so the source snapshot is the last one."""
    with running(tmp_path, snapshot_steps=1000, snapshot_seconds=1e6) as (engine, store):
        served = serve(engine, 0)
        record = answer(store, served.prediction_ids[3])
        until(steps(engine, 1))
        serve(engine, 1)
        until(steps(engine, 2))
        until(lambda: store.find_feedback(record.id).status == "applied")
    with Store.open(None, tmp_path) as store:
        newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
        store.drop_snapshots([newest.id]).result()
        Path(tmp_path, newest.path).unlink()
    with running(tmp_path) as (engine, store):
        assert engine.status().model_version == "2.0"
        assert store.find_feedback(record.id).status == "pending"
        serve(engine, 2)
        until(steps(engine, 1))
        until(lambda: store.find_feedback(record.id).status == "applied")
        assert learned(store)[-1].body["answers"] == [record.id]


def test_restart_skips_damaged_snapshot(tmp_path):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        until(steps(engine, 1))
    with Store.open(None, tmp_path) as store:
        newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
    Path(tmp_path, newest.path).write_bytes(b"torn")
    with running(tmp_path) as (engine, store):
        assert engine.status().model_version == "2.0"


def test_answer_without_image_expires(tmp_path):
    with running(tmp_path, keep_images="none", recent_bytes=1) as (engine, store):
        served = serve(engine, 0, n=2)
        until(lambda: store.counts().served == 2)
        record = answer(store, served.prediction_ids[0])
        serve(engine, 1)
        until(steps(engine, 1))
        until(lambda: store.find_feedback(record.id).status == "expired")


def test_requests_are_served_during_learning(tmp_path):
    with running(tmp_path, settings={"epochs": 4}) as (engine, store):
        for number in range(6):
            engine.predict(images(number), request_id="w")
        waiting = [engine.predict(images(90 + number, 1), request_id="s") for number in range(30)]
        assert all(future.result(30).prediction_ids for future in waiting)
        until(lambda: store.counts().served == 6 * WINDOW + 30)


def test_requests_above_queue_limit_are_refused(tmp_path):
    def flood(engine):
        for number in range(500):
            engine.predict(images(number, 4), request_id="r")

    with (
        running(tmp_path, max_queued_images=4) as (engine, _),
        pytest.raises(EngineOverloadedError, match="too many images wait"),
    ):
        flood(engine)


def test_request_of_other_shape_fails_without_affecting_others(tmp_path):
    with running(tmp_path) as (engine, _):
        serve(engine, 0, n=1)
        wrong = engine.predict(np.zeros((1, 3, 4, 4), np.float32), request_id="x")
        with pytest.raises(InputError, match="one session serves one shape"):
            wrong.result(10)
        assert serve(engine, 1, n=1).prediction_ids


def test_weights_stay_within_max_distance(tmp_path):
    far = {"lr": 0.5, "epochs": 3}
    with running(tmp_path, max_distance=0.01, settings=far) as (engine, _):
        for number in range(4):
            serve(engine, number)
            until(steps(engine, number + 1))
        serve(engine, 9)
        until(lambda: 0.009 < engine.status().distance["now"] <= 0.0101)


def test_memory_holds_last_of_three_answers_also_in_replay(tmp_path):
    with running(tmp_path / "data") as (engine, store):
        name = serve(engine, 0).prediction_ids[3]
        memory = engine._worker.learner._session.adapter.memory
        for number, correct in enumerate([True, False, True], start=1):
            record = answer(store, name, correct=correct, key=f"k{number}")
            serve(engine, number)
            until(lambda one=record: store.find_feedback(one.id).status == "applied")
            assert (len(memory.correct), len(memory.incorrect)) == (int(correct), int(not correct))
        assert (memory.correct.inputs[0].numpy() == images(0)[3]).all()
    with Store.open(None, tmp_path / "data") as store:
        (tmp_path / "again").mkdir()
        learner = Learner(toy_classifier(), serve_settings())
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
        assert (replayed.differing, replayed.weights_hash) == ((), newest.weights_hash)
        again = learner._session.adapter.memory
        assert (len(again.correct), len(again.incorrect)) == (1, 0)


def test_anchors_hold_last_answer_also_in_replay(tmp_path):
    simatta = {"method": "simatta", "settings": {}}
    with running(tmp_path / "data", **simatta) as (engine, store):
        names = serve(engine, 0).prediction_ids
        until(steps(engine, 1))
        answer(store, names[2], key="k0")
        for number, correct in enumerate([True, False], start=1):
            record = answer(store, names[3], correct=correct, key=f"k{number}")
            serve(engine, number)
            until(lambda one=record: store.find_feedback(one.id).status == "applied")
        anchors = engine._worker.learner._session.adapter.anchors
        assert anchors.correct.tolist() == [True, False]
        assert (anchors.inputs[1].numpy() == images(0)[3]).all()
    with Store.open(None, tmp_path / "data") as store:
        (tmp_path / "again").mkdir()
        learner = Learner(toy_classifier(), serve_settings(**simatta))
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
        assert (replayed.differing, replayed.weights_hash) == ((), newest.weights_hash)


def test_changed_answer_replaces_only_the_answer_of_the_same_person(tmp_path):
    """Two people give the same answer, and one of them changes it."""
    with running(tmp_path) as (engine, store):
        name = serve(engine, 0).prediction_ids[3]
        until(steps(engine, 1))
        memory = engine._worker.learner._session.adapter.memory
        answer(store, name)
        second = store.add_answer(NewAnswer(name, "correct", "bea", "k1")).result(10)
        serve(engine, 1)
        until(lambda: store.find_feedback(second.id).status == "applied")
        assert len(memory.correct) == 2
        third = store.add_answer(NewAnswer(name, "incorrect", "bea", "k2")).result(10)
        serve(engine, 2)
        until(lambda: store.find_feedback(third.id).status == "applied")
        assert (len(memory.correct), len(memory.incorrect)) == (1, 1)


def test_replay_uses_max_distance_of_each_start(tmp_path):
    def learned(limit, number):
        far = {"max_distance": limit, "settings": {"lr": 0.5, "epochs": 2}}
        with running(tmp_path / "data", **far) as (engine, _):
            before = engine.status().n_learning_steps
            serve(engine, number)
            until(steps(engine, before + 1))
            engine.snapshot().result(10)
        return serve_settings(**far)

    first = learned(0.01, 0)
    learned(0.0, 1)
    with Store.open(None, tmp_path / "data") as store:
        (tmp_path / "again").mkdir()
        replayed = Replay(Learner(toy_classifier(), first), store, folder=tmp_path / "again").run()
        assert (replayed.differing, replayed.n_steps) == ((), 2)


@pytest.mark.parametrize("crashed", [False, True])
def test_replay_gives_same_weights_bit_for_bit(tmp_path, crashed):
    folder = tmp_path / "data"
    with running(folder, snapshot_steps=2) as (engine, store):
        for number in range(5):
            served = serve(engine, number)
            answer(store, served.prediction_ids[number], correct=number % 2 == 0)
            for extra in range(3):
                engine.predict(images(50 + extra, 1), request_id="e")
        until(steps(engine, 2))
        kept = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
        engine.rollback(kept.id, by="me", reason="for the test").result(10)
        serve(engine, 7)
        until(lambda: engine.status().n_learning_steps > kept.step)
    if crashed:
        with Store.open(None, folder) as store:
            newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
            store.drop_snapshots([newest.id]).result()
    with running(folder) as (engine, store):
        serve(engine, 8)
        until(lambda: bool(store.events(kinds=["recovered"])))
    with Store.open(None, folder) as store:
        learner = Learner(toy_classifier(), serve_settings())
        (tmp_path / "again").mkdir()
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        newest = max(store.snapshots(), key=lambda snapshot: snapshot.seq)
        assert replayed.differing == ()
        assert replayed.n_compared >= 2
        assert replayed.weights_hash == newest.weights_hash


def test_replay_uses_number_of_threads_of_log(tmp_path):
    now = torch.get_num_threads()
    torch.set_num_threads(now + 1)
    try:
        with running(tmp_path / "data") as (engine, _):
            serve(engine, 0)
    finally:
        torch.set_num_threads(now)
    with running(tmp_path / "data") as (engine, _):
        serve(engine, 1)
    seen = []
    with Store.open(None, tmp_path / "data") as store:
        (tmp_path / "again").mkdir()
        Replay(
            Learner(toy_classifier(), serve_settings()),
            store,
            folder=tmp_path / "again",
            on_event=lambda *_: seen.append(torch.get_num_threads()),
        ).run()
    assert (seen[0], seen[-1]) == (now + 1, now)
    assert torch.get_num_threads() == now


def test_collapsed_model_is_rolled_back_with_reason(tmp_path):
    guard = GuardSettings(max_distance=1e-9)
    with running(tmp_path, guard=guard, snapshot_steps=1000) as (engine, store):
        serve(engine, 0)
        until(steps(engine, 1))
        serve(engine, 1)
        until(lambda: engine.status().model_version.startswith("2."))
        (event,) = store.events(kinds=["rollback"])
        assert event.body["by"] == "guard"
        assert "distance from the source weights" in event.body["reason"]
        assert engine.status().distance["limit"] == 1e-9


def test_collapsed_model_is_not_rolled_back_if_rollback_is_off(tmp_path):
    guard = GuardSettings(max_distance=1e-9)
    with running(tmp_path, guard=guard, rollback=False) as (engine, store):
        for number in range(3):
            serve(engine, number)
            until(steps(engine, number + 1))
        assert engine.status().collapse["state"] == "collapsed"
        assert not store.events(kinds=["rollback"])


def test_collapsed_model_is_not_rolled_back_while_paused(tmp_path):
    guard = GuardSettings(max_distance=1e-9)
    with running(tmp_path, guard=guard) as (engine, store):
        serve(engine, 0)
        until(steps(engine, 1))
        engine.pause("me", "to look").result(20)
        serve(engine, 1)
        until(lambda: engine.status().collapse["state"] == "collapsed")
        engine.ping().result(20)
        assert not store.events(kinds=["rollback"])


def test_window_raises_no_questions_at_max_open(tmp_path):
    folder = tmp_path / "data"
    with running(folder, max_open_questions=3) as (engine, store):
        for number, (asked, open_) in enumerate([(3, 3), (3, 3), (6, 5)]):
            serve(engine, number)
            until(steps(engine, number + 1))
            until(lambda n=asked: store.counts().asked == n)
            assert store.count_open_questions() == open_
            if number == 1:
                answer(store, store.questions(status="open")[0].prediction_id)
        engine.snapshot().result(10)
        skips_questions = [
            bool(event.body.get("skips_questions")) for event in store.events(kinds=["served"])
        ]
        assert skips_questions == [False, True, False]
    with Store.open(None, folder) as store:
        (tmp_path / "again").mkdir()
        learner = Learner(toy_classifier(), serve_settings())
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        assert (replayed.differing, replayed.n_steps) == ((), 3)


def test_only_one_window_raises_questions_while_duty_delays_learning(tmp_path):
    """The choice of questions counts as learning: with this share, learning waits for an hour."""
    with running(tmp_path / "data", duty=1e-6) as (engine, store):
        for number in range(3):
            serve(engine, number)
        until(lambda: len(store.events(kinds=["served"])) == 3)
        skips_questions = [
            bool(event.body.get("skips_questions")) for event in store.events(kinds=["served"])
        ]
        assert skips_questions == [False, True, True]
        until(lambda: store.counts().asked == 3)
        assert engine.status().duty > 0
        assert not store.events(kinds=["learned"])


def test_audits_compare_answers_with_source_model(tmp_path):
    """Without learning the source model serves, so it is wrong where the served class is."""
    with running(tmp_path) as (engine, store):
        engine.pause("me", "to stay with the source").result(20)
        for number in range(3):
            serve(engine, number)
            until(lambda n=number: store.counts().asked == 3 * (n + 1))
        audits = [question for question in store.questions() if question.reason == "audit"]
        for number, audit in enumerate(audits):
            answer(store, audit.prediction_id, correct=number > 0)
        engine.ping().result(20)
        audits = engine._worker.answer_statistics.audits()
        assert (audits.n, audits.n_correct) == (3, 2)
        assert (audits.n_compared, audits.n_source_wrong, audits.n_in_lineage) == (3, 1, 3)


def test_history_counts_answers_of_last_minute(tmp_path):
    with running(tmp_path) as (engine, store):
        engine.pause("me", "so that nothing is learned").result(20)
        serve(engine, 0)
        until(lambda: store.counts().asked == 3)
        until(lambda: len(engine.status().history["at"]) == 1)
        first, second, _ = store.questions(status="open")
        answer(store, first.prediction_id)
        answer(store, second.prediction_id, correct=False)
        received = list(store.all_feedback())[-1].received_at
        assert store.count_recent_verdicts(since=received) == 1
        serve(engine, 1)
        until(lambda: len(engine.status().history["at"]) == 2)
        assert engine.status().history["answers_per_minute"] == [0.0, 2.0]


def test_status_reports_accuracy_of_audits(tmp_path):
    """Two of three audits are correct: the Wilson interval of 2 in 3 is 20.8 to 93.9 %."""
    with running(tmp_path) as (engine, store):
        for number in range(3):
            serve(engine, number)
            until(lambda n=number: store.counts().asked == 3 * (n + 1))
        audits = [question for question in store.questions() if question.reason == "audit"]
        for number, audit in enumerate(audits):
            answer(store, audit.prediction_id, correct=number > 0)
        found = engine.status().audits
        assert (found["n"], found["correct"]) == (3, 2)
        assert (found["low"], found["high"]) == pytest.approx((0.2077, 0.9385), abs=1e-3)
