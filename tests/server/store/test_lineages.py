"""Tests of learned steps, snapshots, rollbacks and restarts."""

import pytest

from bitta.errors import InputError
from bitta.server.store import LearnedStep, Rollback, UnknownSnapshot
from server.store.factories import new_answer, new_snapshot, pending_answers, served_batch


@pytest.fixture
def answered(store):
    """Predictions 0 to 5, each answered once, in this order."""
    store.log_served_batch(served_batch(range(6)))
    for number in range(6):
        store.add_answer(new_answer(number, key=f"k{number}")).result()
    return store


def ids(answers):
    return [int(one.prediction_id[1:]) for one in answers]


def learn(store, version, answers):
    store.log_learned_step(
        LearnedStep(version, [one.feedback_id for one in answers], {"loss": 0.5}, 0.1)
    ).result()


def test_learned_step_and_its_answers_are_one_change(answered):
    taken = answered.claim_answers(2).result()
    assert ids(taken) == [0, 1]
    learn(answered, "1.1", taken)
    first = answered.find_feedback(taken[0].feedback_id)
    assert (first.status, first.applied_in_version) == ("applied", "1.1")
    assert ids(pending_answers(answered)) == [2, 3, 4, 5]
    event = answered.events()[-1]
    assert event.kind == "learned"
    assert event.body == {
        "version": "1.1",
        "answers": [one.feedback_id for one in taken],
        "replacing": [],
        "losses": {"loss": 0.5},
        "seconds": 0.1,
    }


def test_step_that_is_logged_twice_is_stored_once(answered):
    taken = answered.claim_answers(2).result()
    learn(answered, "1.1", taken)
    learn(answered, "1.1", taken)
    assert len(answered.events(kinds=["learned"])) == 1


def test_step_repeated_after_a_restart_is_logged_again(answered):
    answered.add_snapshot(new_snapshot(0, "1.0")).result()
    learn(answered, "1.1", answered.claim_answers(2).result())
    assert len(answered.log_restart(f"S{0:025d}").result().pending_again) == 2
    learn(answered, "1.1", answered.claim_answers().result())
    assert [len(event.body["answers"]) for event in answered.events(kinds=["learned"])] == [2, 6]


def test_loss_that_is_not_finite_is_logged_as_null(store):
    losses = {"a": float("nan"), "b": float("inf"), "c": None}
    store.log_learned_step(LearnedStep("1.1", [], losses, 0.1)).result()
    assert store.events()[-1].body["losses"] == {"a": None, "b": None, "c": None}


def test_answer_is_claimed_once(answered):
    assert ids(answered.claim_answers(4).result()) == [0, 1, 2, 3]
    assert ids(answered.claim_answers().result()) == [4, 5]
    assert answered.claim_answers().result() == []
    assert answered.counts().pending == 6


def test_released_answers_are_pending_unless_undone_or_replaced(answered):
    taken = answered.claim_answers().result()
    answered.undo_answer(taken[0].feedback_id, by="anna").result()
    answered.add_answer(new_answer(1, "incorrect")).result()
    answered.release_answers().result()
    assert ids(pending_answers(answered)) == [2, 3, 4, 5, 1]
    assert answered.find_feedback(taken[0].feedback_id).status == "superseded"
    assert answered.find_feedback(taken[1].feedback_id).status == "superseded"


def test_released_answers_are_pending_in_their_former_order(answered):
    answered.claim_answers(4).result()
    answered.release_answers().result()
    assert ids(pending_answers(answered)) == [0, 1, 2, 3, 4, 5]


def test_restart_releases_claimed_answers(answered, reopen):
    taken = answered.claim_answers(3).result()
    answered.undo_answer(taken[0].feedback_id, by="anna").result()
    store = reopen()
    assert ids(pending_answers(store)) == [1, 2, 3, 4, 5]
    assert store.find_feedback(taken[0].feedback_id).status == "superseded"


def test_expired_answer_is_not_pending(answered):
    first = pending_answers(answered)[0].feedback_id
    answered.expire_answers([first], "its image was deleted").result()
    assert answered.find_feedback(first).status == "expired"
    assert ids(pending_answers(answered)) == [1, 2, 3, 4, 5]
    assert answered.events()[-1].body == {
        "feedback_ids": [first],
        "reason": "its image was deleted",
    }


def test_snapshots_are_listed_until_dropped(store):
    first = store.add_snapshot(new_snapshot(1, "1.0", "source")).result()
    second = store.add_snapshot(new_snapshot(2, "1.40")).result()
    assert (second.lineage, second.step, second.path) == (1, 40, "snapshots/2.safetensors")
    assert store.snapshots() == [first, second]
    store.drop_snapshots([second.id]).result()
    assert store.snapshots() == [first]
    assert store.find_snapshot(second.id).dropped_at is not None
    assert len(store.snapshots(include_dropped=True)) == 2


def test_restart_makes_answers_after_the_snapshot_pending(answered):
    """The snapshot holds answers 0 and 1. Answers 2 and 3 were learned after it, 4 and 5 never."""
    learn(answered, "1.1", answered.claim_answers(2).result())
    kept = answered.add_snapshot(new_snapshot(1, "1.1")).result()
    learn(answered, "1.2", answered.claim_answers(2).result())
    recovered = answered.log_restart(kept.id, {"threads": 2}).result()
    assert [answered.find_feedback(one).idempotency_key for one in recovered.pending_again] == [
        "k2",
        "k3",
    ]
    assert ids(pending_answers(answered)) == [2, 3, 4, 5]
    event = answered.events()[-1]
    assert (event.seq, event.kind) == (recovered.seq, "recovered")
    assert event.body == {
        "snapshot": kept.id,
        "pending_again": list(recovered.pending_again),
        "environment": {"threads": 2},
    }
    again = answered.log_restart(kept.id).result()
    assert again.pending_again == ()


def test_restart_from_earlier_lineage_repeats_later_lineages_of_restarts(answered):
    """Version 1.1 learned answer 0; 2.2, after a crash, answer 1; 3.3, after another, answer 2.

    A rollback left version 4.2, so its answer is not learned again.
    """
    learn(answered, "1.1", answered.claim_answers(1).result())
    oldest = kept = answered.add_snapshot(new_snapshot(1, "1.1")).result()
    for lineage in (2, 3):
        assert answered.log_restart(kept.id, lineage=lineage).result().pending_again == ()
        version = f"{lineage}.{kept.step + 1}"
        learn(answered, version, answered.claim_answers(1).result())
        kept = answered.add_snapshot(new_snapshot(lineage, version)).result()
    recovered = answered.log_restart(oldest.id, lineage=4).result()
    assert [answered.find_feedback(one).idempotency_key for one in recovered.pending_again] == [
        "k1",
        "k2",
    ]
    assert ids(pending_answers(answered)) == [1, 2, 3, 4, 5]
    learn(answered, "4.2", answered.claim_answers(1).result())
    answered.log_rollback(
        Rollback(
            oldest.id, new_snapshot(9, "5.1", "rollback"), from_version="4.2", reason="?", by="olga"
        )
    ).result()
    assert answered.log_restart(oldest.id).result().pending_again == ()


@pytest.mark.parametrize("snapshot_file", ["damaged", "missing"])
def test_restart_before_a_lost_rollback_snapshot_repeats_later_answers(answered, snapshot_file):
    """Versions 1.1 to 1.3 learned answers 0 to 2. After a rollback to 1.2, 2.3 learned answer 3."""
    oldest = answered.add_snapshot(new_snapshot(1, "1.0", "source")).result()
    for version in ("1.1", "1.2", "1.3"):
        learn(answered, version, answered.claim_answers(1).result())
        if version == "1.2":
            kept = answered.add_snapshot(new_snapshot(2, version)).result()
    answered.log_rollback(
        Rollback(
            kept.id, new_snapshot(3, "2.2", "rollback"), from_version="1.3", reason="?", by="olga"
        )
    ).result()
    learn(answered, "2.3", answered.claim_answers(1).result())
    if snapshot_file == "missing":
        answered.drop_snapshots([new_snapshot(3, "2.2").id], must=True).result()
    recovered = answered.log_restart(oldest.id, lineage=3).result()
    keys = [answered.find_feedback(one).idempotency_key for one in recovered.pending_again]
    assert keys == ["k0", "k1", "k3"]
    assert ids(pending_answers(answered)) == [0, 1, 3, 4, 5]


def test_restart_leaves_undone_answers_superseded(answered):
    kept = answered.add_snapshot(new_snapshot(1, "1.0")).result()
    taken = answered.claim_answers(2).result()
    learn(answered, "1.1", taken)
    answered.undo_answer(taken[0].feedback_id, by="anna").result()
    assert answered.log_restart(kept.id).result().pending_again == (taken[1].feedback_id,)
    assert answered.find_feedback(taken[0].feedback_id).status == "superseded"


def test_snapshot_recorded_after_a_later_step_excludes_that_step(answered):
    """The file of the snapshot was written while the next step was logged."""
    learn(answered, "1.1", answered.claim_answers(1).result())
    learn(answered, "1.2", answered.claim_answers(1).result())
    kept = answered.add_snapshot(new_snapshot(1, "1.1")).result()
    (again,) = answered.log_restart(kept.id).result().pending_again
    assert answered.find_feedback(again).idempotency_key == "k1"


def test_rollback_begins_a_lineage_and_deletes_nothing(answered):
    source = answered.add_snapshot(new_snapshot(1, "1.0", "source")).result()
    learn(answered, "1.1", answered.claim_answers(1).result())
    back = answered.log_rollback(
        Rollback(
            source.id,
            new_snapshot(2, "2.0", "rollback"),
            from_version="1.1",
            reason="collapse",
            by="guard",
        )
    ).result()
    assert (back.lineage, back.step, back.reason) == (2, 0, "rollback")
    assert answered.snapshots() == [source, back]
    rollback, taken = answered.events(after=back.seq - 2)
    assert (rollback.kind, taken.kind) == ("rollback", "snapshot")
    assert rollback.body == {
        "snapshot_id": source.id,
        "from_version": "1.1",
        "version": "2.0",
        "reason": "collapse",
        "by": "guard",
    }
    assert answered.log_restart(back.id).result().pending_again == ()
    assert answered.counts().applied == 1


def test_rollback_with_repeats_answers_makes_later_answers_pending(answered):
    """The snapshot holds answer 0. Answer 1 was learned after it, and 2 was in the failed step."""
    learn(answered, "1.1", answered.claim_answers(1).result())
    kept = answered.add_snapshot(new_snapshot(1, "1.1")).result()
    learn(answered, "1.2", answered.claim_answers(1).result())
    answered.claim_answers(1).result()
    answered.log_rollback(
        Rollback(
            kept.id,
            new_snapshot(2, "2.1", "rollback"),
            from_version="1.2",
            reason="out of memory",
            by="guard",
            repeats_answers=True,
        )
    ).result()
    assert ids(pending_answers(answered)) == [1, 2, 3, 4, 5]
    (event,) = answered.events(kinds=["rollback"])
    assert [answered.find_feedback(one).idempotency_key for one in event.body["pending_again"]] == [
        "k1"
    ]


def test_dropped_rollback_snapshot_begins_no_lineage(answered):
    """The reply to the rollback was lost: its file is removed, and the old lineage continues."""
    source = answered.add_snapshot(new_snapshot(1, "1.0", "source")).result()
    first, *_ = taken = answered.claim_answers().result()
    learn(answered, "1.1", taken)
    answered.log_rollback(
        Rollback(
            source.id, new_snapshot(2, "2.0", "rollback"), from_version="1.1", reason="?", by="olga"
        )
    ).result()
    answered.drop_snapshots([new_snapshot(2, "2.0").id], must=True).result()
    answered.add_answer(new_answer(0)).result()
    assert answered.claim_answers().result() == []
    assert answered.find_feedback(first.feedback_id).status == "superseded"


def test_unknown_snapshot_and_malformed_version_raise(store):
    with pytest.raises(UnknownSnapshot, match="no snapshot has the id 'x'"):
        store.log_restart("x").result()
    with pytest.raises(InputError, match=r"version is '1'; give LINEAGE\.STEP"):
        store.add_snapshot(new_snapshot(1, "1")).result()


def test_events_of_any_kind_share_one_order(store):
    first = store.log_event("paused", {"by": "olga", "reason": "lunch"}).result()
    second = store.log_event("resumed", {"by": "olga"}).result()
    assert first < second == store.last_seq()
    assert [event.kind for event in store.events(after=first)] == ["resumed"]
