"""Tests of the self-tuning method: its measurements, its steps, and what it serves."""

import pytest
import torch
from torch import nn

from bitta import Session, Simulated
from bitta.errors import SettingError
from bitta.methods.self_tuning import (
    AnswerCalibration,
    SourceComparison,
    ViewCheck,
    shift_images,
)
from bitta.nn import WrappedModel
from bitta.seeding import generator
from bitta.server.settings import load_settings
from bitta.testing import toy_classifier
from bitta.types import Answer, Query


def answer(*, correct, reason="uncertain", uncertainty=0.0, shows_served=True):
    query = Query(
        id=0, index=0, served_label=0, shown_label=0 if shows_served else 1,
        uncertainty=uncertainty, input=torch.zeros(1), step=0, version=0, position=0,
        reason=reason, n_represented=1.0,
    )  # fmt: skip
    return Answer(query, correct)


def images(number=0, n=16):
    return torch.rand(n, 3, 8, 8, generator=generator(5, number))


def make_session(**settings):
    return Session(toy_classifier(), "self_tuning", window=0, **settings)


def test_weight_of_a_bin_follows_its_answers_and_no_other():
    """Bin .15 to .3: 1.4 of 2 right at first; after 2 wrong ones 1.4 * .98² / (2 * .98² + 1.98)."""
    calibration = AnswerCalibration()
    before = calibration.row_weights()
    assert before[2] == pytest.approx((0.7 - 0.3) / 0.7)
    calibration.add(answer(correct=False, uncertainty=0.2) for _ in range(2))
    share = 1.4 * 0.98**2 / (2 * 0.98**2 + 1.98)
    after = calibration.row_weights()
    assert after[2] == pytest.approx((share - 0.3) / 0.7)
    assert after[:2] + after[3:] == before[:2] + before[3:]


def test_labels_that_are_mostly_wrong_are_not_learned_from():
    calibration = AnswerCalibration()
    calibration.add(answer(correct=False, uncertainty=0.01) for _ in range(40))
    assert calibration.row_weights()[0] == 0.0


def test_calibration_ignores_paired_audits():
    calibration = AnswerCalibration()
    calibration.add([answer(correct=False, reason="paired_audit")])
    assert calibration == AnswerCalibration()


def test_trust_and_steps_follow_the_audits():
    """Trust is Φ(.5) = .69 at first. Audits for the model raise it and the step."""
    neutral, better, worse = SourceComparison(), SourceComparison(), SourceComparison()
    better.add(answer(correct=True, reason="paired_audit") for _ in range(20))
    worse.add(answer(correct=True, reason="paired_audit", shows_served=False) for _ in range(20))
    assert neutral.trust == pytest.approx(0.6915, abs=1e-4)
    assert (neutral.step_factor(10.0), neutral.extra_pull) == (1.0, 0.0)
    assert better.trust > 0.99
    assert better.step_factor(10.0) > 9
    assert worse.trust < 0.01
    assert worse.step_factor(10.0) < 0.02
    assert worse.extra_pull > 0.09


def test_trust_returns_to_its_start_without_audits():
    comparison = SourceComparison()
    against = answer(correct=True, reason="paired_audit", shows_served=False)
    comparison.add([against] * 9)
    lowest = comparison.trust
    trusts = []
    for _ in range(400):
        comparison.add([])
        trusts.append(comparison.trust)
    assert lowest < trusts[100] < trusts[-1] == pytest.approx(0.69, abs=0.03)


def test_shift_repeats_the_edge():
    image = torch.arange(9.0).view(1, 1, 3, 3)
    assert shift_images(image, 1, 0)[0, 0].tolist() == [[0, 0, 1], [3, 3, 4], [6, 6, 7]]
    assert shift_images(image, 0, -1)[0, 0].tolist() == [[3, 4, 5], [6, 7, 8], [6, 7, 8]]


class Side(nn.Module):
    """Says on which side an image is brighter, or with `summed` whether it is bright at all."""

    def __init__(self, *, summed):
        super().__init__()
        self.summed = summed
        self.scale = nn.Parameter(torch.tensor(20.0))
        self.activation = nn.ReLU()

    def forward(self, x):
        left, right = (self.activation(part).mean((1, 2, 3)) for part in x.chunk(2, -1))
        value = left + right - 1 if self.summed else left - right
        return self.scale * torch.stack([value, -value], 1)


@pytest.mark.parametrize("summed", [True, False])
def test_mirrored_views_are_used_if_the_model_gives_them_the_same_label(summed):
    wrapped, check = WrappedModel(Side(summed=summed)), ViewCheck()
    rng = generator(1)
    x = torch.rand(64, 1, 8, 8, generator=rng) * torch.rand(64, 1, 1, 1, generator=rng)
    x[..., :4] *= torch.rand(64, 1, 1, 1, generator=rng)
    check.add(wrapped, x, statistics="running")
    mirrored = shift_images(x.flip(-1), 1, 0)
    assert [torch.equal(view, mirrored) for view in check.make_views(x, 2)] == [False, summed]


def test_views_are_not_used_before_they_were_checked():
    x = images()
    assert len(ViewCheck().make_views(x, 4)) == 1


def test_served_probabilities_are_a_mean_of_both_models_and_both_statistics():
    """At first, trust is Φ(.5), and no view is used."""
    session = make_session(n_queries=0)
    x = images()
    served = session.predict(x).probs
    adapter, trust = session.adapter, session.adapter.comparison.trust
    with torch.no_grad():
        learned = sum(
            adapter.wrapped(x, statistics=statistics).softmax(-1) / 2
            for statistics in ("running", "batch")
        )
        source = adapter.source_logits(x).softmax(-1)
    assert torch.allclose(served, trust * learned + (1 - trust) * source, atol=1e-6)


def test_update_never_changes_predictions_by_more_than_the_trust_radius():
    """With a huge step size the KL divergence is near the radius, far below that of a full step."""

    def divergence(radius):
        session = make_session(n_queries=0, lr=1.0, trust_radius=radius, source_pull=0.0)
        session.predict(images())
        wrapped = session.adapter.wrapped
        with torch.no_grad():
            before = wrapped(images(), statistics="batch").log_softmax(-1)
            session.learn()
            after = wrapped(images(), statistics="batch").log_softmax(-1)
        return (before.exp() * (before - after)).sum(-1).mean().item()

    assert divergence(0.0) > 0.1
    assert divergence(0.001) < 0.003


def test_update_without_finite_numbers_is_undone():
    session = make_session(n_queries=0, lr=1e30)
    before = [parameter.clone() for parameter in session.model.parameters()]
    for number in range(3):
        session.predict(images(number))
        session.learn()
    assert all(parameter.isfinite().all() for parameter in session.model.parameters())
    pairs = zip(before, session.model.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=0.1) for a, b in pairs)


def test_weights_return_to_the_source_if_audits_favour_it():
    """Weights that were moved away come back by 10 % and more per step."""
    session = make_session(n_queries=0, lr=1e-12)
    with torch.no_grad():
        for parameter in session.model.parameters():
            parameter.add_(1.0)
    session.adapter.comparison.add(
        answer(correct=True, reason="paired_audit", shows_served=False) for _ in range(50)
    )
    session.predict(images())
    session.learn()
    source = session.adapter.source_weights.tensors
    for name, parameter in session.model.named_parameters():
        assert torch.allclose(parameter - source[name], torch.full_like(parameter, 0.9), atol=0.01)


def test_small_requests_are_learned_from_in_windows():
    truth = torch.zeros(200, dtype=torch.long)
    session = Session(toy_classifier(), "self_tuning", feedback=Simulated(truth))
    for number in range(130):
        session.step(images(number, n=1))
    assert session.n_steps == 2
    assert session.adapter.version == 2
    assert session.n_asked == 6


def test_step_size_a_hundred_times_too_large_does_not_ruin_the_model():
    """A toy model that is right on its own labels stays right on most of them."""
    model = toy_classifier()
    inputs = torch.cat([images(number) for number in range(60)])
    with torch.no_grad():
        truth = model.eval()(inputs).argmax(-1)
    session = Session(model, "self_tuning", window=0, lr=3e-2, feedback=Simulated(truth))
    served = torch.cat([session.step(part)[0].labels for part in inputs.split(16)])
    right = (served == truth).float()
    assert right[480:].mean() > 0.9


@pytest.mark.parametrize(
    ("name", "value"),
    [("views", 3), ("lr_growth", 0.5), ("trust_radius", -1.0), ("source_pull", 2.0)],
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(SettingError, match=name):
        make_session(**{name: value})


def test_server_refuses_the_method_until_it_asks_paired_audits():
    with pytest.raises(SettingError, match="paired audits"):
        load_settings({"method": "self_tuning"}, environment={})
