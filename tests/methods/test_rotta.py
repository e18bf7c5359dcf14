"""Tests of RoTTA."""

import math

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import InputError, ModelError, SettingError
from bitta.losses import entropy
from bitta.methods import rotta
from bitta.methods.rotta import TimelyMemory
from bitta.nn import RobustNorm, WrappedModel
from bitta.seeding import generator
from bitta.testing import NORMS, toy_classifier
from bitta.types import Feedback, JudgedSamples

SURE, UNSURE = 6.0, 0.1
"""Differences between two logits. Their uncertainties H / ln 2 are .025 and .998."""


def images(number=0, n=6):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def weights(wrapped):
    return {name: p.detach().clone() for name, p in wrapped.model.named_parameters()}


def statistics(wrapped):
    return {name: b.detach().clone() for name, b in wrapped.model.named_buffers()}


def offer(memory, name, label, *, margin=SURE, n_classes=2):
    """Offer a sample of one pixel. The value of the pixel is its name."""
    logits = torch.zeros(1, n_classes)
    logits[0, label] = margin
    memory.offer(torch.tensor([[float(name)]]), logits)


def held(memory):
    return memory.inputs.flatten().tolist()


def test_removal_score_adds_age_and_uncertainty():
    """1 / (1 + e^0) = .5 and 1 / (1 + e^-1) = .73106, with an uncertainty of .3."""
    memory = TimelyMemory(4)
    assert memory.removal_score(0, 0.3) == pytest.approx(0.8)
    assert memory.removal_score(4, 0.3) == pytest.approx(1.03106, abs=1e-5)
    assert TimelyMemory(4, lambda_t=2.0, lambda_u=10.0).removal_score(0, 0.3) == pytest.approx(4.0)


def test_class_at_its_share_replaces_its_worst_sample_by_a_better_one():
    memory = TimelyMemory(4)
    offer(memory, 1, 0)
    offer(memory, 2, 0, margin=UNSURE)
    assert (held(memory), memory.ages) == ([1, 2], [2, 1])
    # Class 0 has its share of two. Scores: 1 has .622 + .025, 2 .562 + .998 (worst), 3 .5 + .025.
    offer(memory, 3, 0)
    assert (held(memory), memory.ages) == ([1, 3], [3, 1])
    # Sample 1 has .679 + .025 (worst). Sample 4 has .5 + .998 and is refused. All samples age.
    offer(memory, 4, 0, margin=UNSURE)
    assert (held(memory), memory.ages, memory.labels) == ([1, 3], [4, 2], [0, 0])
    offer(memory, 5, 1, margin=UNSURE)
    offer(memory, 6, 1)
    assert (held(memory), memory.ages, memory.labels) == ([1, 3, 5, 6], [6, 4, 2, 1], [0, 0, 1, 1])


def test_oldest_of_equally_certain_samples_is_replaced():
    memory = TimelyMemory(4)
    for name in (1, 2, 3):
        offer(memory, name, 0)
    assert (held(memory), memory.ages) == ([2, 3], [2, 1])


def test_full_memory_replaces_a_sample_of_a_largest_class():
    """The share is 4 / 3. Two samples of class 0 and two of 1 fill the memory; the worst is 2."""
    memory = TimelyMemory(4)
    offer(memory, 1, 0, n_classes=3)
    offer(memory, 2, 1, n_classes=3, margin=UNSURE)
    offer(memory, 3, 0, n_classes=3)
    offer(memory, 4, 1, n_classes=3)
    offer(memory, 5, 2, n_classes=3)
    assert (held(memory), memory.labels) == ([1, 3, 4, 5], [0, 0, 1, 2])
    # Only class 0 is largest now. Its worst sample is the older one. 4 and 5 are not considered.
    offer(memory, 6, 2, n_classes=3)
    assert held(memory) == [3, 4, 5, 6]
    # No sample of the largest class (2) has a higher score than the uncertain new one.
    offer(memory, 7, 1, n_classes=3, margin=UNSURE)
    assert (held(memory), memory.ages) == ([3, 4, 5, 6], [5, 4, 3, 2])


def test_until_full_lets_a_class_exceed_its_share():
    memory = TimelyMemory(4, insertion="until_full")
    for name in (1, 2, 3):
        offer(memory, name, 0)
    offer(memory, 4, 1)
    assert (held(memory), memory.labels) == ([1, 2, 3, 4], [0, 0, 0, 1])
    # The memory is full. Class 1 is below its share of two, so the largest class loses its oldest.
    offer(memory, 5, 1)
    assert (held(memory), memory.labels) == ([2, 3, 4, 5], [0, 0, 1, 1])


def test_batch_is_offered_row_by_row():
    logits = torch.zeros(7, 3)
    logits[torch.arange(7), torch.tensor([0, 1, 0, 0, 2, 1, 0])] = torch.linspace(1, 3, 7)
    samples = torch.arange(7.0).unsqueeze(1)
    together, apart = TimelyMemory(4), TimelyMemory(4)
    together.offer(samples, logits)
    for row in range(7):
        apart.offer(samples[row : row + 1], logits[row : row + 1])
    assert held(together) == held(apart)
    assert together.ages == apart.ages


def test_memory_continues_from_its_state_and_can_be_cleared():
    memory, other = TimelyMemory(4), TimelyMemory(4)
    for name in (1, 2, 3, 4):
        offer(memory, name, name % 2, margin=name)
    other.load_state_dict(memory.state_dict(), device=torch.device("cpu"))
    for each in (memory, other):
        offer(each, 5, 0, margin=9.0)
    assert held(memory) == held(other) == [1, 3, 4, 5]
    assert memory.ages == other.ages
    memory.clear()
    assert len(memory) == len(memory.inputs) == 0
    other.load_state_dict(TimelyMemory(4).state_dict(), device=torch.device("cpu"))
    assert len(other) == 0


def test_robust_norm_has_the_expected_values():
    """Values 1, 3 have mean 2, variance 1. Values 4, 8 have mean 6, variance 4.

    Half of the way from (0, 1) gives (1, 1) and (3, 2.5). The outputs are (1 - 1) / 1,
    (3 - 1) / 1 and (4 - 3) / 1.58114, (8 - 3) / 1.58114.
    """
    model = nn.BatchNorm1d(2, eps=0.0).eval()
    wrapped = WrappedModel(model)
    wrapped.normaliser = RobustNorm(0.5)
    out = wrapped(torch.tensor([[1.0, 4.0], [3.0, 8.0]]), statistics="batch")
    assert model.running_mean.tolist() == [1.0, 3.0]
    assert model.running_var.tolist() == [1.0, 2.5]
    assert out.flatten().tolist() == pytest.approx([0.0, 0.632456, 2.0, 3.162278], abs=1e-6)


def test_robust_norm_keeps_running_statistics_when_serving():
    model = nn.BatchNorm1d(2).eval()
    wrapped = WrappedModel(model)
    wrapped.normaliser = RobustNorm(0.5)
    wrapped(torch.tensor([[1.0, 4.0], [3.0, 8.0]]), statistics="running")
    assert model.running_mean.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("row", "expected"), [(0, [0.75, -0.25]), (1, [0.25, 0.25])])
def test_gradients_flow_through_the_share_of_the_batch(row, expected):
    """x = (1, 3), m = (x0 + x1) / 4 = 1, v = .5 + (x1 - x0)² / 8 = 1, out = (x - m) / √v.

    dm = (.25, .25), dv = (-.5, .5). Row 0: (1, 0) - dm - 0 dv / 2. Row 1: (0, 1) - dm - 2 dv / 2.
    """
    wrapped = WrappedModel(nn.BatchNorm1d(2, eps=0.0).eval())
    wrapped.normaliser = RobustNorm(0.5)
    x = torch.tensor([[1.0, 5.0], [3.0, 7.0]], requires_grad=True)
    wrapped(x, statistics="batch")[row, 0].backward()
    assert x.grad.T.tolist() == [pytest.approx(expected), [0.0, 0.0]]


def test_robust_norm_applies_scale_and_shift_per_channel():
    layer = nn.BatchNorm2d(2).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 3.0]))
        layer.bias.copy_(torch.tensor([1.0, -1.0]))
    x = torch.rand(4, 2, 3, 5, generator=generator(3))
    wrapped = WrappedModel(nn.Sequential(layer, nn.Flatten()))
    wrapped.normaliser = RobustNorm(1.0)  # the batch's own statistics
    expected = nn.functional.batch_norm(x, None, None, layer.weight, layer.bias, True)
    out = wrapped(x, statistics="batch").view_as(x)
    assert torch.allclose(out, expected, atol=1e-5)


def test_one_value_per_channel_moves_no_statistics():
    model = nn.BatchNorm1d(2).eval()
    wrapped = WrappedModel(model)
    wrapped.normaliser = RobustNorm(0.5)
    wrapped(torch.tensor([[1.0, 4.0]]), statistics="batch")
    assert (model.running_mean.tolist(), model.running_var.tolist()) == ([0, 0], [1, 1])


def test_old_samples_have_lower_weights():
    """Ages 8, 4 and 0 of 4: e^-2 / (1 + e^-2) = .1192, e^-1 / (1 + e^-1) = .26894, 1 / 2."""
    adapter = Session(toy_classifier(), "rotta", capacity=4).adapter
    state = {"inputs": torch.rand(3, 1), "labels": [0, 1, 2], "uncertainties": [0.0] * 3}
    adapter.stream_memory.load_state_dict(state | {"ages": [8, 4, 0]}, device=torch.device("cpu"))
    found = adapter.age_weights(like=torch.zeros(1)).tolist()
    assert found == pytest.approx([0.119203, 0.268941, 0.5], abs=1e-6)


def test_first_loss_is_the_entropy_weighted_by_age(monkeypatch):
    """Without augmentation teacher and student agree. The six samples have the ages 6 to 1."""
    monkeypatch.setattr(rotta, "augment_images", lambda x, random_key, place: x)
    session = Session(toy_classifier("group"), "rotta")
    each = entropy(session.adapter.logits(images()))
    ages = torch.arange(6, 0, -1) / 64
    expected = (each * torch.exp(-ages) / (1 + torch.exp(-ages))).mean().item()
    *_, losses = session.step(images())
    assert losses.mean() == {"consistency": pytest.approx(expected, rel=1e-5)}


def test_memory_is_learned_from_instead_of_the_batch():
    session = Session(toy_classifier(), "rotta")
    session.step(images(0))
    session.step(images(1))
    assert torch.equal(session.adapter.stream_memory.inputs, torch.cat([images(0), images(1)]))
    assert session.adapter.wrapped.counts.backwards == 6 + 12


def test_statistics_move_while_learning_and_not_while_serving():
    """The teacher's first layer gets the memory without augmentation: 0 + .05 of the batch mean."""
    session = Session(toy_classifier(), "rotta")
    adapter = session.adapter
    with torch.no_grad():
        batch_mean = session.model.stem(images()).mean((0, 2, 3))
    session.predict(images())
    assert session.model.norm.running_mean.abs().max() == 0
    session.learn()
    assert torch.allclose(session.model.norm.running_mean, 0.05 * batch_mean, atol=1e-6)
    student = adapter.trained_model.model.norm.running_mean
    assert student.abs().max() > 0
    assert not torch.allclose(student, session.model.norm.running_mean, atol=1e-4)


def test_answered_samples_train_the_student_and_move_no_statistics():
    session = Session(toy_classifier(), "rotta", n_queries=2)
    adapter = session.adapter
    before = (
        statistics(adapter.wrapped),
        statistics(adapter.trained_model),
        weights(adapter.trained_model),
    )
    judged = JudgedSamples(images(3, 2), torch.tensor([0, 1]))
    losses = adapter.adapt(
        images()[:0], Feedback(judged, JudgedSamples(images()[:0], judged.labels[:0]))
    )
    assert losses.terms.keys() == {"correct"}
    after = (
        statistics(adapter.wrapped),
        statistics(adapter.trained_model),
        weights(adapter.trained_model),
    )
    for place, same in ((0, True), (1, True), (2, False)):
        assert all(map(torch.equal, before[place].values(), after[place].values())) == same


@pytest.mark.parametrize("norm", NORMS)
def test_teacher_parameters_move_a_thousandth_towards_the_student(norm):
    session = Session(toy_classifier(norm), "rotta", lr=0.1)
    before = weights(session.adapter.wrapped)
    session.step(images())
    student, teacher = weights(session.adapter.trained_model), weights(session.adapter.wrapped)
    moved = {name for name in before if not torch.equal(before[name], student[name])}
    assert moved == {name for name in before if "norm" in name}
    for name in before:
        assert torch.allclose(teacher[name], 0.999 * before[name] + 0.001 * student[name])


def test_answers_about_the_teacher_change_nothing():
    ends = []
    for correct in (True, False):
        session = Session(toy_classifier(), "rotta", n_queries=2, preset="reference")
        for query in session.predict(images()).queries:
            session.answer(query.id, correct=correct)
        assert session.learn().terms.keys() == {"consistency"}
        ends.append(weights(session.adapter.trained_model) | statistics(session.adapter.wrapped))
    assert not session.adapter.learns_from_feedback
    assert all(map(torch.equal, ends[0].values(), ends[1].values()))


def test_unsupported_models_and_settings_are_refused_at_once():
    with pytest.raises(ModelError, match="it trains norm layers"):
        Session(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), "rotta")
    with pytest.raises(SettingError, match=r"micro_batch is 2; allowed: 0 .*BatchNorm"):
        Session(toy_classifier(), "rotta", micro_batch=2)
    Session(toy_classifier("layer"), "rotta", micro_batch=2).step(images())
    with pytest.raises(InputError, match="cannot be augmented"):
        Session(nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), "rotta").step(torch.rand(4, 6))


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", 1.5), ("teacher_rate", -0.1), ("capacity", 0), ("lambda_t", -1.0),
     ("lambda_u", -1.0), ("insertion", "always"), ("feedback_on", "both")],
)  # fmt: skip
def test_settings_outside_their_range_are_refused(name, value):
    with pytest.raises(SettingError, match=name):
        Session(toy_classifier(), "rotta", **{name: value})


def test_uncertainty_is_entropy_divided_by_its_maximum():
    """Two equal logits: H = ln 2, an uncertainty of 1. Four equal logits: H = ln 4, also 1."""
    for n_classes in (2, 4):
        memory = TimelyMemory(4)
        memory.offer(torch.zeros(1, 1), torch.zeros(1, n_classes))
        assert memory.state_dict()["uncertainties"] == [pytest.approx(1.0)]
    offered = TimelyMemory(4)
    offered.offer(torch.zeros(1, 1), torch.tensor([[math.log(3), 0.0]]))
    # H(.75, .25) = .56234, and ln 2 = .69315.
    assert offered.state_dict()["uncertainties"] == [pytest.approx(0.811278, abs=1e-5)]
