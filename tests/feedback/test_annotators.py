"""Tests of full labels, panels and judges."""

import numpy as np
import pytest
import torch

from bitta import Human, Simulated
from bitta.errors import FeedbackError, InputError, SettingError
from bitta.feedback import FeedbackRecorder, Judge, Panel, SimulatedLabels, SimulatedPeople
from bitta.types import Query

SHARED = Simulated([0])


def query(id_, label=0, position=None):
    return Query(
        id=id_, index=0, served_label=label, shown_label=label, uncertainty=0.5,
        input=torch.full((1,), float(id_)), step=0,
        version=0, position=id_ if position is None else position,
    )  # fmt: skip


def answered(source):
    return {answer.query.id: (answer.correct, answer.label) for answer in source.collect()}


def test_full_labels_name_the_class_and_judge_the_served_label():
    source = SimulatedLabels([1, 0, 2], 3)
    source.ask([query(0, label=1), query(1, label=2), query(2, label=2)])
    assert answered(source) == {0: (True, 1), 1: (False, 0), 2: (True, 2)}


def test_wrong_labels_are_uniform_over_the_other_classes():
    """4,000 answers with an error rate of .4: 1,600 are wrong, a third for each other class."""
    source = SimulatedLabels([2] * 4000, 4, error=0.4, seed=5)
    source.ask([query(id_, label=2) for id_ in range(4000)])
    answers = answered(source)
    counts = np.bincount([named for _, named in answers.values()], minlength=4)
    assert counts[2] == pytest.approx(2400, abs=100)
    assert counts[[0, 1, 3]] == pytest.approx([533] * 3, abs=70)
    assert all(correct == (named == 2) for correct, named in answers.values())


def test_full_labels_respect_delay_and_answer_every():
    source = SimulatedLabels([0] * 9, 2, delay=1, answer_every=2)
    arrived = []
    for batch in range(5):
        source.ask([query(batch)])
        arrived.append(list(answered(source)))
    assert arrived == [[], [0], [], [2], []]


def test_annotator_continues_from_its_saved_state():
    def fresh():
        return SimulatedLabels([0, 1] * 5, 3, error=0.5, delay=1, seed=2)

    whole, first, second = fresh(), fresh(), fresh()
    for source in (whole, first):
        source.ask([query(id_) for id_ in range(6)])
        assert answered(source) == {}
    second.load_state_dict(first.state_dict())
    assert answered(second) == answered(whole) != {}


def test_simulated_people_find_a_label_right_as_often_as_people_gave_it():
    """Twenty people: 16 say 0, 3 say 1 and 1 says 2. A thousand questions about each label."""
    for label, share in enumerate((0.8, 0.15, 0.05)):
        source = SimulatedPeople([0] * 1000, [[16, 3, 1]] * 1000, seed=label)
        source.ask([query(id_, label=label) for id_ in range(1000)])
        verdicts = [correct for correct, _ in answered(source).values()]
        assert np.mean(verdicts) == pytest.approx(share, abs=0.04)


def test_simulated_people_who_agree_answer_as_a_perfect_annotator():
    truth = torch.arange(30) % 3
    people = SimulatedPeople(truth, 50 * torch.eye(3)[truth])
    perfect = Simulated(truth)
    for source in (people, perfect):
        source.ask([query(id_, label=1) for id_ in range(30)])
    assert answered(people) == answered(perfect)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimulatedPeople([0, 1], [[1, 2]]), r"shape \(1, 2\), but truth holds 2 labels"),
        (lambda: SimulatedPeople([0], [[0, 0]]), "a row without people"),
        (
            lambda: SimulatedLabels([0, 5], 3),
            r"truth goes from 0 to 5, but there are 3 classes \(0 to 2\)",
        ),
        (lambda: SimulatedLabels([0], 1), "n_classes is 1; allowed: 2 or more"),
        (lambda: SimulatedLabels([0], 2, error=1.2), r"error is 1\.2; allowed: 0 to 1"),
        (lambda: Panel([]), "a panel of 0 sources"),
        (lambda: Panel([Simulated([0])], ["a", "b"]), "a panel of 1 sources with 2 names"),
        (lambda: Panel([SHARED, SHARED]), "the same source twice"),
        (lambda: Simulated(None), "truth cannot be read as labels"),
        (lambda: Simulated([0], seed="x"), "seed is 'x'; allowed: a whole number"),
        (lambda: Human(capacity=0), "capacity is 0; allowed: 1 or more"),
        (lambda: Panel([Simulated([0]), Human()]), "a panel cannot hold Human"),
        (lambda: Panel([FeedbackRecorder(Human(), "x.jsonl")]), "a panel cannot hold Human"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises((SettingError, InputError), match=message):
        make()


def test_panel_distributes_questions_by_id():
    """All labels are right; the second member always answers wrongly."""
    panel = Panel([Simulated([0] * 9), Simulated([0] * 9, flip=1.0)])
    panel.ask([query(id_) for id_ in range(5)])
    assert answered(panel) == {id_: (id_ % 2 == 0, None) for id_ in range(5)}
    assert [panel.name_for(query(id_)) for id_ in range(3)] == ["1", "2", "1"]


def test_panel_members_have_their_own_delays():
    panel = Panel([Simulated([0] * 9), Simulated([0] * 9, delay=1)])
    arrived = []
    for batch in range(3):
        panel.ask([query(2 * batch), query(2 * batch + 1)])
        arrived.append(sorted(answered(panel)))
    assert arrived == [[0], [1, 2], [3, 4]]


def test_panel_state_with_other_members_is_refused():
    def fresh():
        return Panel([Simulated([0] * 9, flip=0.5, delay=1), SimulatedLabels([0] * 9, 3, delay=1)])

    first, second = fresh(), fresh()
    first.ask([query(id_) for id_ in range(4)])
    assert answered(first) == {}
    second.load_state_dict(first.state_dict())
    assert answered(second) == answered(first) != {}
    other = Panel([Simulated([0]), Simulated([0])])
    with pytest.raises(
        InputError, match="saved with Simulated, SimulatedLabels, but is now Simulated, Sim"
    ):
        other.load_state_dict(first.state_dict())


def test_judge_gets_input_and_label_and_may_decline():
    """The verdicts on inputs 0 to 3 are None, wrong, right, wrong; the truth is 0 0 0 1."""
    seen = []

    def judge(image, label):
        seen.append((image.item(), label))
        return {0: None, 1: False, 2: np.True_, 3: torch.tensor(False)}[int(image)]

    source = Judge(judge, truth=[0, 0, 0, 1])
    assert source.error_rate is None
    source.ask([query(id_) for id_ in range(4)])
    assert seen == []
    assert answered(source) == {1: (False, None), 2: (True, None), 3: (False, None)}
    assert seen == [(0.0, 0), (1.0, 0), (2.0, 0), (3.0, 0)]
    assert (source.n_judged, source.error_rate) == (3, pytest.approx(1 / 3))
    assert answered(source) == {}


def test_judge_without_truth_has_no_error_rate():
    source = Judge(lambda image, label: True)
    source.ask([query(0)])
    assert answered(source) == {0: (True, None)}
    assert (source.n_judged, source.error_rate) == (1, None)


@pytest.mark.parametrize("verdict", ["yes", 1, 0.5, torch.tensor([True, False]), torch.tensor(1)])
def test_judge_result_that_is_not_a_verdict_is_refused(verdict):
    source = Judge(lambda image, label: verdict)
    source.ask([query(0)])
    with pytest.raises(FeedbackError, match="for question 0; allowed: True, False, or None"):
        source.collect()


def test_judge_that_is_not_callable_is_refused():
    with pytest.raises(FeedbackError, match="judge is a str; a function"):
        Judge("yes")


def test_judge_continues_from_its_saved_state():
    first = Judge(lambda image, label: False, truth=[0, 0, 1])
    first.ask([query(0)])
    first.collect()
    first.ask([query(1), query(2)])
    second = Judge(lambda image, label: False, truth=[0, 0, 1])
    second.load_state_dict(first.state_dict())
    assert list(answered(second)) == [1, 2]
    assert (second.n_judged, second.error_rate) == (3, pytest.approx(2 / 3))
