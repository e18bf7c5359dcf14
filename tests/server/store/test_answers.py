"""Tests of answers: added, repeated, replaced and undone."""

from dataclasses import asdict

import pytest

from bitta.errors import InputError
from bitta.records import MAX_COMMENT_LENGTH
from bitta.server.store import (
    IdempotencyConflict,
    LearnedStep,
    QuestionExpired,
    UnknownFeedback,
    UnknownPrediction,
)
from server.store.factories import (
    START,
    new_answer,
    new_question,
    pending_answers,
    prediction_id,
    served_batch,
)


@pytest.fixture
def asked(store):
    """Predictions 0 to 3, of which 0 to 2 are asked about."""
    store.log_served_batch(served_batch(range(4)))
    store.add_questions([new_question(number) for number in range(3)]).result()
    return store


def learn(store, version, *records):
    store.log_learned_step(
        LearnedStep(version, [one.id for one in records], {"loss": 0.5}, 0.1)
    ).result()


def test_record_holds_the_answer_and_its_prediction(asked, clock):
    clock.move(5)
    record = asked.add_answer(
        new_answer(
            2,
            "incorrect",
            key="k",
            comment="a dog <b>",
            metadata={"app": "x"},
            shown_at=START,
            lead_time_ms=1200,
        )
    ).result()
    assert (record.idempotency_key, record.prediction_id, record.request_id) == (
        "k",
        prediction_id(2),
        "r2",
    )
    assert (record.predicted_class, record.predicted_label) == (2, "class 2")
    assert (record.verdict, record.annotator_id, record.annotator_kind) == (
        "incorrect",
        "anna",
        "HUMAN",
    )
    assert (record.comment, record.metadata) == ("a dog <b>", {"app": "x"})
    assert (record.uncertainty, record.selection_reason) == (0.5, "uncertain")
    assert record.received_at == record.answered_at == START + 5_000_000
    assert (record.shown_at, record.lead_time_ms) == (START, 1200)
    assert (record.status, record.supersedes_id, record.applied_in_version) == (
        "pending",
        None,
        None,
    )
    assert asdict(asked.find_feedback(record.id)) | {"repeated": False} == asdict(record)
    event = asked.events()[-1]
    assert (event.seq, event.kind, event.body) == (
        record.seq,
        "answered",
        {"feedback_id": record.id},
    )


def test_same_key_and_body_return_the_stored_record(asked, clock):
    first = asked.add_answer(new_answer(0, key="k")).result()
    clock.move(7200)
    asked.expire_questions().result()
    again = asked.add_answer(new_answer(0, key="k")).result()
    assert again.repeated
    assert not first.repeated
    assert (again.id, again.received_at) == (first.id, first.received_at)
    assert len(asked.list_feedback()) == 1


def test_repetition_may_differ_in_lease_and_time_of_answer(asked):
    leased = asked.lease_question("anna", seconds=60).result()
    number = int(leased.question.prediction_id[1:])
    asked.add_answer(
        new_answer(number, key="k", lease=leased.lease.token, answered_at=START)
    ).result()
    for same in ({}, {"answered_at": START + 1}, {"lease": "another"}):
        assert asked.add_answer(new_answer(number, key="k", **same)).result().repeated


@pytest.mark.parametrize(
    "other",
    [
        new_answer(0, "incorrect", key="k"),
        new_answer(1, key="k"),
        new_answer(0, key="k", by="bert"),
        new_answer(0, key="k", comment="x"),
    ],
    ids=["verdict", "prediction", "annotator", "comment"],
)
def test_same_key_with_another_body_raises(asked, other):
    asked.add_answer(new_answer(0, key="k")).result()
    with pytest.raises(IdempotencyConflict, match="key 'k' was used for another answer"):
        asked.add_answer(other).result()
    assert [record.verdict for record in asked.list_feedback()] == ["correct"]


def test_unknown_prediction_raises(store):
    with pytest.raises(UnknownPrediction, match="no prediction has the id"):
        store.add_answer(new_answer(9)).result()


def test_answer_finds_prediction_that_is_queued_before_it(store):
    written = store.log_served_batch(served_batch([7]))
    answered = store.add_answer(new_answer(7))
    assert answered.result().prediction_id == prediction_id(7)
    assert written.done()


def test_answer_without_question_is_stored(asked):
    record = asked.add_answer(new_answer(3)).result()
    assert (record.uncertainty, record.selection_reason, record.status) == (None, None, "pending")
    (waiting,) = pending_answers(asked)
    assert (waiting.class_index, waiting.position) == (3, 3)


@pytest.mark.parametrize("verdict", ["yes", "Correct", "correct ", 1, True, None, ""])
def test_other_verdicts_raise(verdict):
    with pytest.raises(InputError, match=r"verdict is .*; allowed: 'correct', 'incorrect', 'skip'"):
        new_answer(0, verdict)


@pytest.mark.parametrize(
    "wrong",
    [
        {"comment": "nul \0"},
        {"comment": "half \ud800"},
        {"comment": "x" * (MAX_COMMENT_LENGTH + 1)},
        {"comment": 3},
        {"metadata": {"x": float("nan")}},
        {"metadata": {"x": object()}},
        {"metadata": {"x": "half \ud800"}},
        {"metadata": ["x"]},
        {"metadata": {"x": "y" * 20_000}},
        {"shown_at": -1},
        {"shown_at": 2**63},
        {"lead_time_ms": True},
        {"weight": float("inf")},
        {"annotator_kind": "ROBOT"},
        {"key": "x" * 201},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_values_that_a_database_cannot_hold_raise(wrong):
    with pytest.raises(InputError, match=next(iter(wrong)).removeprefix("idempotency_")):
        new_answer(0, **wrong)


def test_text_of_any_script_is_read_back_unchanged(asked):
    odd = "שלום 👩‍🔬 ' \" ; -- \\ \n"
    record = asked.add_answer(new_answer(0, comment=odd, metadata={odd: [odd, "\0"]})).result()
    assert asked.find_feedback(record.id).comment == odd
    assert asked.find_feedback(record.id).metadata == {odd: [odd, "\0"]}


def test_new_answer_replaces_pending_answer(asked):
    first = asked.add_answer(new_answer(0)).result()
    second = asked.add_answer(new_answer(0, "incorrect")).result()
    assert second.supersedes_id == first.id
    assert (asked.find_feedback(first.id).status, asked.find_feedback(first.id).standing) == (
        "superseded",
        False,
    )
    assert [one.feedback_id for one in pending_answers(asked)] == [second.id]


def test_new_answer_leaves_learned_answer_applied(asked):
    first = asked.add_answer(new_answer(0)).result()
    learn(asked, "1.1", first)
    second = asked.add_answer(new_answer(0, "incorrect")).result()
    stored = asked.find_feedback(first.id)
    assert (stored.status, stored.applied_in_version, stored.standing) == ("applied", "1.1", False)
    assert (second.status, second.supersedes_id) == ("pending", first.id)


def test_repeated_verdict_is_learned_once(asked):
    """A second click on the button has another idempotency key."""
    first = asked.add_answer(new_answer(0)).result()
    learn(asked, "1.1", first)
    second = asked.add_answer(new_answer(0, comment="really")).result()
    assert asked.claim_answers().result() == []
    old, new = asked.find_feedback(first.id), asked.find_feedback(second.id)
    assert (old.status, old.applied_in_version) == ("superseded", None)
    assert (new.status, new.applied_in_version, new.standing) == ("applied", "1.1", True)


def test_repeated_verdict_waits_while_the_first_is_claimed(asked):
    first = asked.add_answer(new_answer(0)).result()
    asked.claim_answers().result()
    second = asked.add_answer(new_answer(0)).result()
    assert asked.claim_answers().result() == []
    learn(asked, "1.1", first)
    assert asked.claim_answers().result() == []
    assert asked.find_feedback(second.id).applied_in_version == "1.1"


def test_last_of_three_verdicts_replaces_the_learned_one(asked):
    steps = {}
    for number, verdict in enumerate(["correct", "incorrect", "correct"], start=1):
        record = asked.add_answer(new_answer(0, verdict)).result()
        (taken,) = asked.claim_answers().result()
        assert taken.feedback_id == record.id
        steps[number] = taken.replaces_answer
        learn(asked, f"1.{number}", record)
    assert steps == {1: False, 2: True, 3: True}
    last = asked.add_answer(new_answer(0, "correct")).result()
    assert asked.claim_answers().result() == []  # the memory has this answer already
    assert asked.find_feedback(last.id).applied_in_version == "1.3"


def test_new_answer_waits_while_the_previous_one_is_claimed(asked):
    first = asked.add_answer(new_answer(0)).result()
    asked.claim_answers().result()
    asked.add_answer(new_answer(0, "incorrect")).result()
    assert asked.claim_answers().result() == []
    learn(asked, "1.1", first)
    (taken,) = asked.claim_answers().result()
    assert (taken.verdict, taken.replaces_answer) == ("incorrect", True)


def test_new_answer_does_not_replace_another_annotators_answer(asked):
    learn(asked, "1.1", asked.add_answer(new_answer(0)).result())
    asked.add_answer(new_answer(0, "incorrect", by="bert")).result()
    (taken,) = asked.claim_answers().result()
    assert not taken.replaces_answer


def test_answers_of_two_annotators_both_stand(asked):
    asked.add_answer(new_answer(0)).result()
    second = asked.add_answer(new_answer(0, "incorrect", by="bert")).result()
    assert second.supersedes_id is None
    assert len(pending_answers(asked)) == 2


def test_skip_is_stored_and_never_learned(asked):
    record = asked.add_answer(new_answer(0, "skip")).result()
    assert record.verdict == "skip"
    assert pending_answers(asked) == []
    assert asked.claim_answers().result() == []
    assert asked.counts().skipped == 1
    assert asked.find_question(prediction_id(0)).status == "open"


def test_undo_before_learning_supersedes_the_answer(asked):
    record = asked.add_answer(new_answer(0)).result()
    assert asked.find_question(prediction_id(0)).status == "closed"
    undone = asked.undo_answer(record.id, by="anna").result()
    assert not undone.applied
    stored = asked.find_feedback(record.id)
    assert (stored.status, stored.undone) == ("superseded", True)
    assert pending_answers(asked) == []
    assert asked.find_question(prediction_id(0)).status == "open"
    event = asked.events()[-1]
    assert (event.kind, event.body) == (
        "undone",
        {"feedback_id": record.id, "undoes": record.seq, "applied": False, "by": "anna"},
    )


def test_undo_after_learning_reports_applied_and_keeps_status(asked):
    record = asked.add_answer(new_answer(0)).result()
    learn(asked, "1.1", record)
    undone = asked.undo_answer(record.id, by="anna").result()
    assert undone.applied
    stored = asked.find_feedback(record.id)
    assert (stored.status, stored.undone) == ("applied", True)


def test_undo_of_claimed_answer_reports_applied(asked):
    record = asked.add_answer(new_answer(0)).result()
    asked.claim_answers().result()
    undone = asked.undo_answer(record.id, by="anna").result()
    assert undone.applied
    assert asked.find_feedback(record.id).status == "pending"
    learn(asked, "1.1", record)
    assert asked.find_feedback(record.id).status == "applied"


def test_second_undo_changes_nothing(asked):
    record = asked.add_answer(new_answer(0)).result()
    first = asked.undo_answer(record.id, by="anna").result()
    assert asked.undo_answer(record.id, by="anna").result() == first
    assert [event.kind for event in asked.events()].count("undone") == 1


def test_undo_of_unknown_answer_raises(store):
    with pytest.raises(UnknownFeedback, match="no feedback has the id 'x'"):
        store.undo_answer("x", by="anna").result()


def test_answer_after_undo_supersedes_nothing(asked):
    record = asked.add_answer(new_answer(0)).result()
    asked.undo_answer(record.id, by="anna").result()
    assert asked.add_answer(new_answer(0)).result().supersedes_id is None


def test_first_answer_to_expired_question_raises(asked, clock):
    clock.move(3600)
    with pytest.raises(QuestionExpired, match="expired before the answer came"):
        asked.add_answer(new_answer(0)).result()
    asked.expire_questions().result()
    with pytest.raises(QuestionExpired, match="expired before the answer came"):
        asked.add_answer(new_answer(0)).result()
    assert asked.list_feedback() == []


def test_replacing_answer_is_accepted_after_expiry(asked, clock):
    first = asked.add_answer(new_answer(0)).result()
    clock.move(7200)
    assert asked.add_answer(new_answer(0, "incorrect")).result().supersedes_id == first.id


def test_list_feedback_is_newest_first_and_pages_by_seq(asked):
    records = [asked.add_answer(new_answer(number)).result() for number in range(3)]
    asked.add_answer(new_answer(0, by="bert")).result()
    newest = asked.list_feedback("anna", limit=2)
    assert [one.id for one in newest] == [records[2].id, records[1].id]
    rest = asked.list_feedback("anna", before=newest[-1].seq)
    assert [one.id for one in rest] == [records[0].id]
    assert len(asked.list_feedback()) == 4


def test_agreement_counts_pairs_on_the_same_prediction(asked):
    for number, theirs in enumerate(["correct", "incorrect", "skip"]):
        asked.add_answer(new_answer(number)).result()
        asked.add_answer(new_answer(number, theirs, by="bert")).result()
    anna, bert = asked.count_by_annotator()
    assert (anna.annotator_id, anna.answered, anna.skipped) == ("anna", 3, 0)
    assert (bert.annotator_id, bert.answered, bert.skipped) == ("bert", 2, 1)
    assert (anna.compared, anna.agreed) == (bert.compared, bert.agreed) == (2, 1)
