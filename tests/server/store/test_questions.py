"""A question goes to one annotator at a time, and is over when it is answered or too old."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bitta.server.store import QuestionExpired, ServedBatch
from server.store.made import START, given, name, question, served


def leased(store, annotator, **more):
    held = store.lease_question(annotator, seconds=60, **more).result()
    return None if held is None else held.question.prediction_id


@pytest.fixture
def served_ten(store):
    store.log_served_batch(served(range(10))).result()
    return store


def test_the_newest_window_comes_first_then_audits_then_the_most_uncertain(served_ten):
    served_ten.add_questions(
        [
            question(0, step=1, uncertainty=0.9),
            question(1, step=2, uncertainty=0.1),
            question(2, step=2, uncertainty=0.8),
            question(3, step=2, uncertainty=0.0, reason="audit"),
        ]
    ).result()
    order = []
    while (held := leased(served_ten, "anna")) is not None:
        order.append(int(held[1:]))
        served_ten.add_answer(given(order[-1])).result()
    assert order == [3, 2, 1, 0]


def test_a_lease_tells_what_to_show_and_until_when(served_ten, watch):
    served_ten.add_questions([question(4), question(5, seconds=30)]).result()
    held = served_ten.lease_question("anna", seconds=60, exclude=[name(5)]).result()
    assert (held.question.label, held.question.class_index) == ("class 4", 4)
    assert (held.question.model_version, held.question.input_sha256) == ("1.0", f"{4:064x}")
    assert (held.lease.until, held.left) == (START + 60_000_000, 2)
    short = served_ten.lease_question("anna", seconds=60, exclude=[name(4)]).result()
    assert short.lease.until == START + 30_000_000  # no longer than the question itself


def test_two_annotators_never_hold_the_same_question(served_ten):
    served_ten.add_questions([question(0), question(1)]).result()
    assert {leased(served_ten, "anna"), leased(served_ten, "bert")} == {name(0), name(1)}
    assert leased(served_ten, "carl") is None


def test_many_who_ask_at_once_get_a_question_each(store):
    store.log_served_batch(served(range(40)))
    store.add_questions([question(number) for number in range(40)]).result()
    with ThreadPoolExecutor(8) as pool:
        held = list(pool.map(lambda who: leased(store, f"a{who}"), range(50)))
    assert Counter(held) == {name(number): 1 for number in range(40)} | {None: 10}


def test_with_overlap_two_may_hold_it_and_it_closes_with_the_second_verdict(served_ten):
    served_ten.add_questions([question(0, overlap=2)]).result()
    assert leased(served_ten, "anna") == leased(served_ten, "bert") == name(0)
    assert leased(served_ten, "carl") is None
    served_ten.add_answer(given(0)).result()
    assert leased(served_ten, "carl") is None  # one verdict and one lease
    assert served_ten.find_question(name(0)).status == "open"
    served_ten.add_answer(given(0, by="bert")).result()
    assert served_ten.find_question(name(0)).status == "closed"


def test_asking_again_renews_the_same_lease(served_ten, watch):
    served_ten.add_questions([question(0), question(1)]).result()
    first = served_ten.lease_question("anna", seconds=60).result()
    served_ten.add_questions([question(2, step=9)]).result()
    watch.move(40)
    again = served_ten.lease_question("anna", seconds=60).result()
    assert (again.question.prediction_id, again.lease.token) == (
        first.question.prediction_id,
        first.lease.token,
    )
    assert again.lease.until == first.lease.until + 40_000_000


def test_a_lease_that_ran_out_goes_to_the_next(served_ten, watch):
    served_ten.add_questions([question(0)]).result()
    held = served_ten.lease_question("anna", seconds=60).result()
    watch.move(60)
    assert leased(served_ten, "bert") == name(0)
    with pytest.raises(QuestionExpired, match="another annotator has the question"):
        served_ten.add_answer(given(0, lease=held.lease.token)).result()
    served_ten.add_answer(given(0, by="bert")).result()
    with pytest.raises(QuestionExpired, match="another annotator has the question"):
        served_ten.add_answer(given(0, lease=held.lease.token)).result()


def test_a_lease_that_ran_out_is_no_loss_while_nobody_else_wants_it(served_ten, watch):
    served_ten.add_questions([question(0)]).result()
    held = served_ten.lease_question("anna", seconds=60).result()
    watch.move(600)
    assert served_ten.add_answer(given(0, lease=held.lease.token)).result().status == "pending"


def test_an_old_lease_is_given_anew_with_another_token(served_ten, watch):
    served_ten.add_questions([question(0)]).result()
    first = served_ten.lease_question("anna", seconds=60).result()
    watch.move(60)
    assert served_ten.lease_question("anna", seconds=60).result().lease.token != first.lease.token


def test_a_skipped_question_goes_to_somebody_else(served_ten):
    served_ten.add_questions([question(0)]).result()
    assert leased(served_ten, "anna") == name(0)
    served_ten.add_answer(given(0, "skip")).result()
    assert leased(served_ten, "anna") is None
    assert leased(served_ten, "bert") == name(0)


def test_an_undone_skip_gives_the_question_back(served_ten):
    served_ten.add_questions([question(0)]).result()
    skip = served_ten.add_answer(given(0, "skip")).result()
    served_ten.undo_answer(skip.id, by="anna").result()
    assert leased(served_ten, "anna") == name(0)


def test_expired_questions_are_marked_once_and_never_leased(served_ten, watch):
    served_ten.add_questions(
        [question(0, seconds=10), question(1, seconds=99), question(2, seconds=10)]
    )
    assert leased(served_ten, "anna") is not None
    served_ten.add_answer(given(2, by="bert")).result()
    watch.move(10)
    assert leased(served_ten, "anna") == name(1)
    assert served_ten.expire_questions().result() == [name(0)]
    assert served_ten.expire_questions().result() == []
    assert [event.body for event in served_ten.events(kinds=["expired"])] == [
        {"prediction_ids": [name(0)]}
    ]
    assert [served_ten.find_question(name(n)).status for n in range(3)] == [
        "expired",
        "open",
        "closed",
    ]
    counts = served_ten.counts()
    assert (counts.asked, counts.open, counts.closed, counts.expired) == (3, 1, 1, 1)


def test_a_question_that_was_answered_before_it_was_asked_is_closed(served_ten):
    served_ten.add_answer(given(0)).result()
    served_ten.add_questions([question(0)]).result()
    assert served_ten.find_question(name(0)).status == "closed"
    assert served_ten.count_open_questions() == 0


def test_audits_are_the_standing_verdicts_on_random_questions(served_ten):
    served_ten.add_questions([question(number, reason="audit") for number in range(4)]).result()
    served_ten.add_answer(given(0)).result()
    served_ten.add_answer(given(1, "skip")).result()
    served_ten.add_answer(given(2)).result()
    served_ten.add_answer(given(2, "incorrect")).result()
    served_ten.add_answer(given(5)).result()
    audits = served_ten.audit_answers()
    assert [(one.prediction_id, one.correct) for one in audits] == [
        (name(0), True),
        (name(2), False),
    ]
    assert len(served_ten.audit_answers(since=audits[0].seq)) == 1
    assert [one.prediction_id for one in served_ten.audit_answers(newest=1)] == [name(2)]
    assert (served_ten.count_audits(), served_ten.count_audits(since=audits[0].seq)) == (2, 1)


def test_an_audit_counts_once_however_many_judge_it(served_ten):
    served_ten.add_questions([question(n, reason="audit", overlap=3) for n in range(2)]).result()
    first = served_ten.add_answer(given(0, "incorrect", by="anna")).result()
    served_ten.add_answer(given(0, by="bert")).result()
    served_ten.add_answer(given(1, by="bert")).result()
    assert [one.correct for one in served_ten.audit_answers()] == [False, True]
    assert served_ten.count_audits() == 2
    later = {"since": first.seq}
    assert [one.prediction_id for one in served_ten.audit_answers(**later)] == [name(1)]
    assert served_ten.count_audits(**later) == 1
    served_ten.undo_answer(first.id, "anna").result()
    assert [one.correct for one in served_ten.audit_answers()] == [True, True]


def test_what_a_client_says_unasked_is_no_audit(served_ten):
    """Who has something to complain of says so: that would bias the estimate."""
    client, anna = (served_ten.keys.create(role, role).record for role in ("client", "annotator"))
    served_ten.add_questions([question(n, reason="audit", overlap=2) for n in range(2)]).result()
    served_ten.add_answer(given(0, "incorrect", by=client.id)).result()
    served_ten.add_answer(given(1, by=anna.id)).result()
    assert [(one.prediction_id, one.correct) for one in served_ten.audit_answers()] == [
        (name(1), True)
    ]
    assert served_ten.count_audits() == 1
    served_ten.add_answer(given(0, by=anna.id)).result()
    assert len(served_ten.audit_answers()) == 2


def test_the_log_tells_what_was_served_and_asked(served_ten):
    served_ten.add_questions([question(3, step=2, uncertainty=0.25)]).result()
    first, second = served_ten.events()
    assert (first.kind, first.body["first_position"]) == ("served", 0)
    assert first.body["prediction_ids"] == [name(number) for number in range(10)]
    assert first.body["during"] is None
    assert second.kind == "asked"
    assert second.body["questions"][0] | {"expires_at": 0} == {
        "prediction_id": name(3),
        "step": 2,
        "row": 3,
        "uncertainty": 0.25,
        "reason": "uncertain",
        "expires_at": 0,
        "overlap": 1,
    }
    assert served_ten.find_prediction(name(3)).event_seq == first.seq
    assert [one.position for one in served_ten.predictions(after_position=7)] == [8, 9]


def test_a_model_that_has_diverged_is_still_logged(store):
    (one,) = served([0]).predictions
    batch = ServedBatch("model", "1.9", [replace(one, confidence=float("nan"))])
    store.log_served_batch(batch)
    store.add_questions([question(0, uncertainty=float("nan"))]).result()
    stored = store.find_question(name(0))
    assert (stored.confidence, stored.uncertainty) == (0.0, 0.0)
