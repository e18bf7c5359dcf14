"""Tests of Human and Simulated."""

import pytest
import torch

from bitta import Human, Simulated
from bitta.errors import FeedbackError, InputError, SettingError
from bitta.types import Query


def query(id_, label=0, position=None):
    return Query(
        id=id_, index=0, served_label=label, shown_label=label, uncertainty=0.5,
        input=torch.zeros(1), step=0, version=0,
        position=id_ if position is None else position,
    )  # fmt: skip


def verdicts(source):
    return {answer.query.id: answer.correct for answer in source.collect()}


def test_simulated_judges_against_the_truth_at_the_position():
    source = Simulated([1, 0, 2])
    source.ask([query(0, label=1), query(1, label=2), query(2, label=2)])
    assert verdicts(source) == {0: True, 1: False, 2: True}
    assert verdicts(source) == {}


def test_delay_is_counted_in_batches():
    source = Simulated([0] * 9, delay=2)
    arrived = []
    for batch in range(5):
        source.ask([query(batch)])
        arrived.append(list(verdicts(source)))
    assert arrived == [[], [], [0], [1], [2]]


def test_skipped_batches_are_never_answered():
    source = Simulated([0] * 9, answer_every=3)
    arrived = []
    for batch in range(6):
        source.ask([query(batch)])
        arrived += verdicts(source)
    assert arrived == [0, 3]


def test_flips_have_their_rate_and_depend_on_the_seed():
    def wrong(seed):
        source = Simulated([0] * 2000, flip=0.25, seed=seed)
        source.ask([query(id_) for id_ in range(2000)])
        return [id_ for id_, correct in verdicts(source).items() if not correct]

    assert wrong(0) == wrong(0)
    assert wrong(0) != wrong(1)
    assert len(wrong(0)) == pytest.approx(500, abs=60)


def test_truth_must_cover_the_stream():
    source = Simulated([0])
    source.ask([query(0, position=7)])
    with pytest.raises(InputError, match="reached sample 7, but truth holds 1"):
        source.collect()
    with pytest.raises(InputError, match="one label per sample"):
        Simulated(torch.zeros(2, 2))
    with pytest.raises(SettingError, match=r"flip is 1\.5"):
        Simulated([0], flip=1.5)


def test_old_questions_expire():
    source = Human(capacity=2)
    source.ask([query(0), query(1), query(2)])
    assert [q.id for q in source.open] == [1, 2]
    with pytest.raises(FeedbackError, match="question 0 has expired"):
        source.answer(0, correct=True)


def test_unknown_questions_are_refused():
    with pytest.raises(FeedbackError, match="there is no question 5"):
        Human().answer(5, correct=True)


def test_human_continues_from_its_saved_state():
    source = Human()
    source.ask([query(0), query(1), query(2)])
    source.answer(0, correct=True)
    source.collect()
    source.answer(1, correct=False)
    other = Human()
    other.load_state_dict(source.state_dict())
    other.answer(0, correct=True)
    assert verdicts(other) == {1: False}
    assert [q.id for q in other.open] == [2]
