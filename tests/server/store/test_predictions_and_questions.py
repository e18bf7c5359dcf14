"""Tests of questions, leases and audits."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bitta.server.store import QuestionExpired, ServedBatch
from server.store.factories import START, new_answer, new_question, prediction_id, served_batch


def leased(store, annotator, **more):
    held = store.lease_question(annotator, seconds=60, **more).result()
    return None if held is None else held.question.prediction_id


@pytest.fixture
def served_ten(store):
    store.log_served_batch(served_batch(range(10))).result()
    return store


def test_newest_window_is_leased_first_then_audits_then_uncertain_ones(served_ten):
    served_ten.add_questions(
        [
            new_question(0, window=1, uncertainty=0.9),
            new_question(1, window=2, uncertainty=0.1),
            new_question(2, window=2, uncertainty=0.8),
            new_question(3, window=2, uncertainty=0.0, reason="audit"),
        ]
    ).result()
    order = []
    while (held := leased(served_ten, "anna")) is not None:
        order.append(int(held[1:]))
        served_ten.add_answer(new_answer(order[-1])).result()
    assert order == [3, 2, 1, 0]


def test_order_of_audits_does_not_depend_on_uncertainty(served_ten):
    """If only the uncertain audits were answered, the accuracy would look too low."""
    uncertainties = (0.1, 0.9, 0.5)
    served_ten.add_questions(
        [
            new_question(number, uncertainty=uncertainty, reason="audit")
            for number, uncertainty in enumerate(uncertainties)
        ]
    ).result()
    found = [served_ten.lease_question(f"a{n}", seconds=60).result() for n in range(3)]
    assert [one.question.prediction_id for one in found] == [prediction_id(n) for n in range(3)]


def test_lease_holds_the_question_and_its_end(served_ten, clock):
    served_ten.add_questions([new_question(4), new_question(5, seconds=30)]).result()
    held = served_ten.lease_question("anna", seconds=60, exclude=[prediction_id(5)]).result()
    assert (held.question.label, held.question.class_index) == ("class 4", 4)
    assert (held.question.model_version, held.question.input_sha256) == ("1.0", f"{4:064x}")
    assert (held.lease.until, held.left) == (START + 60_000_000, 2)
    short = served_ten.lease_question("anna", seconds=60, exclude=[prediction_id(4)]).result()
    assert short.lease.until == START + 30_000_000  # no longer than the question itself


def test_two_annotators_get_different_questions(served_ten):
    served_ten.add_questions([new_question(0), new_question(1)]).result()
    assert {leased(served_ten, "anna"), leased(served_ten, "bert")} == {
        prediction_id(0),
        prediction_id(1),
    }
    assert leased(served_ten, "carl") is None


def test_concurrent_leases_are_distinct(store):
    store.log_served_batch(served_batch(range(40)))
    store.add_questions([new_question(number) for number in range(40)]).result()
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda who: leased(store, f"a{who}"), range(50)))
    assert Counter(held) == {prediction_id(number): 1 for number in range(40)} | {None: 10}


def test_question_with_overlap_two_closes_with_the_second_verdict(served_ten):
    served_ten.add_questions([new_question(0, overlap=2)]).result()
    assert leased(served_ten, "anna") == leased(served_ten, "bert") == prediction_id(0)
    assert leased(served_ten, "carl") is None
    served_ten.add_answer(new_answer(0)).result()
    assert leased(served_ten, "carl") is None  # one verdict and one lease
    assert served_ten.find_question(prediction_id(0)).status == "open"
    served_ten.add_answer(new_answer(0, by="bert")).result()
    assert served_ten.find_question(prediction_id(0)).status == "closed"


def test_second_lease_of_the_annotator_extends_the_first(served_ten, clock):
    served_ten.add_questions([new_question(0), new_question(1)]).result()
    first = served_ten.lease_question("anna", seconds=60).result()
    served_ten.add_questions([new_question(2, window=9)]).result()
    clock.move(40)
    again = served_ten.lease_question("anna", seconds=60).result()
    assert (again.question.prediction_id, again.lease.token) == (
        first.question.prediction_id,
        first.lease.token,
    )
    assert again.lease.until == first.lease.until + 40_000_000


def test_expired_lease_frees_the_question(served_ten, clock):
    served_ten.add_questions([new_question(0)]).result()
    held = served_ten.lease_question("anna", seconds=60).result()
    clock.move(60)
    assert leased(served_ten, "bert") == prediction_id(0)
    with pytest.raises(QuestionExpired, match="another annotator has the question"):
        served_ten.add_answer(new_answer(0, lease=held.lease.token)).result()
    served_ten.add_answer(new_answer(0, by="bert")).result()
    with pytest.raises(QuestionExpired, match="another annotator has the question"):
        served_ten.add_answer(new_answer(0, lease=held.lease.token)).result()


def test_answer_after_lease_is_accepted_if_nobody_else_has_the_question(served_ten, clock):
    served_ten.add_questions([new_question(0)]).result()
    held = served_ten.lease_question("anna", seconds=60).result()
    clock.move(600)
    assert served_ten.add_answer(new_answer(0, lease=held.lease.token)).result().status == "pending"


def test_new_lease_after_expiry_has_another_token(served_ten, clock):
    served_ten.add_questions([new_question(0)]).result()
    first = served_ten.lease_question("anna", seconds=60).result()
    clock.move(60)
    assert served_ten.lease_question("anna", seconds=60).result().lease.token != first.lease.token


def test_skipped_question_goes_to_another_annotator(served_ten):
    served_ten.add_questions([new_question(0)]).result()
    assert leased(served_ten, "anna") == prediction_id(0)
    served_ten.add_answer(new_answer(0, "skip")).result()
    assert leased(served_ten, "anna") is None
    assert leased(served_ten, "bert") == prediction_id(0)


def test_undone_skip_makes_the_question_available(served_ten):
    served_ten.add_questions([new_question(0)]).result()
    skip = served_ten.add_answer(new_answer(0, "skip")).result()
    served_ten.undo_answer(skip.id, by="anna").result()
    assert leased(served_ten, "anna") == prediction_id(0)


def test_expired_questions_are_marked_once_and_never_leased(served_ten, clock):
    served_ten.add_questions(
        [new_question(0, seconds=10), new_question(1, seconds=99), new_question(2, seconds=10)]
    )
    assert leased(served_ten, "anna") is not None
    served_ten.add_answer(new_answer(2, by="bert")).result()
    clock.move(10)
    assert leased(served_ten, "anna") == prediction_id(1)
    assert served_ten.expire_questions().result() == [prediction_id(0)]
    assert served_ten.expire_questions().result() == []
    assert [event.body for event in served_ten.events(kinds=["expired"])] == [
        {"prediction_ids": [prediction_id(0)]}
    ]
    assert [served_ten.find_question(prediction_id(n)).status for n in range(3)] == [
        "expired",
        "open",
        "closed",
    ]
    counts = served_ten.counts()
    assert (counts.asked, counts.open, counts.closed, counts.expired) == (3, 1, 1, 1)


def test_question_about_an_answered_prediction_is_closed(served_ten):
    served_ten.add_answer(new_answer(0)).result()
    served_ten.add_questions([new_question(0)]).result()
    assert served_ten.find_question(prediction_id(0)).status == "closed"
    assert served_ten.count_open_questions() == 0


def test_audit_answers_are_standing_verdicts_on_audits(served_ten):
    served_ten.add_questions([new_question(number, reason="audit") for number in range(4)]).result()
    served_ten.add_answer(new_answer(0)).result()
    served_ten.add_answer(new_answer(1, "skip")).result()
    served_ten.add_answer(new_answer(2)).result()
    served_ten.add_answer(new_answer(2, "incorrect")).result()
    served_ten.add_answer(new_answer(5)).result()
    audits = served_ten.audit_answers()
    assert [(one.prediction_id, one.correct) for one in audits] == [
        (prediction_id(0), True),
        (prediction_id(2), False),
    ]
    assert len(served_ten.audit_answers(since=audits[0].seq)) == 1
    assert [one.prediction_id for one in served_ten.audit_answers(newest=1)] == [prediction_id(2)]
    assert (served_ten.count_audits(), served_ten.count_audits(since=audits[0].seq)) == (2, 1)


def test_audit_with_several_verdicts_counts_once(served_ten):
    served_ten.add_questions(
        [new_question(n, reason="audit", overlap=3) for n in range(2)]
    ).result()
    first = served_ten.add_answer(new_answer(0, "incorrect", by="anna")).result()
    served_ten.add_answer(new_answer(0, by="bert")).result()
    served_ten.add_answer(new_answer(1, by="bert")).result()
    assert [one.correct for one in served_ten.audit_answers()] == [False, True]
    assert served_ten.count_audits() == 2
    later = {"since": first.seq}
    assert [one.prediction_id for one in served_ten.audit_answers(**later)] == [prediction_id(1)]
    assert served_ten.count_audits(**later) == 1
    served_ten.undo_answer(first.id, "anna").result()
    assert [one.correct for one in served_ten.audit_answers()] == [True, True]


def test_answer_of_an_application_is_not_an_audit(served_ten):
    """An application answers the predictions that it chooses, which would bias the estimate."""
    client, anna = (served_ten.keys.create(role, role).record for role in ("client", "annotator"))
    served_ten.add_questions(
        [new_question(n, reason="audit", overlap=2) for n in range(2)]
    ).result()
    served_ten.add_answer(new_answer(0, "incorrect", by=client.id)).result()
    served_ten.add_answer(new_answer(1, by=anna.id)).result()
    assert [(one.prediction_id, one.correct) for one in served_ten.audit_answers()] == [
        (prediction_id(1), True)
    ]
    assert served_ten.count_audits() == 1
    served_ten.add_answer(new_answer(0, by=anna.id)).result()
    assert len(served_ten.audit_answers()) == 2


def test_log_holds_served_batches_and_questions(served_ten):
    served_ten.add_questions([new_question(3, window=2, uncertainty=0.25)]).result()
    first, second = served_ten.events()
    assert (first.kind, first.body["first_position"]) == ("served", 0)
    assert first.body["prediction_ids"] == [prediction_id(number) for number in range(10)]
    assert first.body["during"] is None
    assert second.kind == "asked"
    assert second.body["questions"][0] | {"expires_at": 0} == {
        "prediction_id": prediction_id(3),
        "window": 2,
        "row": 3,
        "uncertainty": 0.25,
        "reason": "uncertain",
        "expires_at": 0,
        "overlap": 1,
    }
    assert served_ten.find_prediction(prediction_id(3)).event_seq == first.seq
    assert [one.position for one in served_ten.predictions(after_position=7)] == [8, 9]


def test_values_of_a_diverged_model_are_stored_as_zero(store):
    (one,) = served_batch([0]).predictions
    batch = ServedBatch("model", "1.9", [replace(one, confidence=float("nan"))])
    store.log_served_batch(batch)
    store.add_questions([new_question(0, uncertainty=float("nan"))]).result()
    stored = store.find_question(prediction_id(0))
    assert (stored.confidence, stored.uncertainty) == (0.0, 0.0)
