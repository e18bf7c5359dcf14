"""Tests of the self-tuning method: its measurements, its steps, and what it serves."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from bitta import Session, Simulated
from bitta.errors import SettingError
from bitta.methods.self_tuning_measurements import (
    AnswerCalibration,
    LabelRuns,
    SourceComparison,
    ViewCheck,
    shift_images,
)
from bitta.nn import WrappedModel
from bitta.seeding import generator
from bitta.server.settings import load_settings
from bitta.testing import toy_classifier
from bitta.types import Answer, Query


def answer(*, correct, reason="uncertain", uncertainty=0.0, shows_served=True, n_represented=32.0):
    query = Query(
        id=0, index=0, served_label=0, shown_label=0 if shows_served else 1,
        uncertainty=uncertainty, input=torch.zeros(1), step=0, version=0, position=0,
        reason=reason, n_represented=n_represented,
    )  # fmt: skip
    return Answer(query, correct)


def images(number=0, n=16):
    return torch.rand(n, 3, 8, 8, generator=generator(5, number))


def make_session(**settings):
    return Session(toy_classifier(), "self_tuning", window=0, **settings)


def test_weight_of_a_bin_follows_its_answers_and_no_other():
    """Bin .15 to .3: at first 1.3 of 2 are right; after 2 right ones of 2 more, fading by 2 %."""
    calibration = AnswerCalibration()
    before = calibration.row_weights()
    assert before[2] == pytest.approx((0.65 - 0.6) / 0.4)
    calibration.add(answer(correct=True, uncertainty=0.2) for _ in range(2))
    share = (1.3 * 0.98**2 + 1.98) / (2 * 0.98**2 + 1.98)
    after = calibration.row_weights()
    assert after[2] == pytest.approx((share - 0.6) / 0.4)
    assert after[:2] + after[3:] == before[:2] + before[3:]


def test_error_rate_is_the_mean_over_the_bins_of_the_samples():
    """Three quarters of the samples in a bin of 90 % right labels, a quarter in one of 35 %."""
    calibration = AnswerCalibration(n_samples=[0.0] * 6)
    calibration.add_window([48, 0, 0, 0, 0, 16])
    assert calibration.error_rate == pytest.approx(0.75 * 0.1 + 0.25 * 0.65)
    assert calibration.error_odds == pytest.approx(0.2375 / 0.7625)


def test_labels_that_are_mostly_wrong_are_not_learned_from():
    calibration = AnswerCalibration()
    calibration.add(answer(correct=False, uncertainty=0.01) for _ in range(40))
    assert calibration.row_weights()[0] == 0.0


def test_calibration_ignores_paired_audits():
    calibration = AnswerCalibration()
    calibration.add([answer(correct=False, reason="paired_audit")])
    assert calibration == AnswerCalibration()


def comparison(n, *, shows_served, **changes):
    """Evidence of n paired audits in windows of 64 samples, one in each. The label is right."""
    found = SourceComparison(error_rate=0.0)  # nothing is accepted
    audit = answer(correct=True, reason="paired_audit", shows_served=shows_served, **changes)
    for _ in range(n):
        found.add([audit], n_samples=64)
    return found


def test_standard_score_at_first_is_that_of_the_prior():
    """(.5 - .3) / sqrt(.25 / 4 + .21 / 4) = .590, and Φ(.590) = .722."""
    neutral = SourceComparison(error_rate=0.0)
    assert neutral.standard_score() == pytest.approx(0.590, abs=1e-3)
    assert neutral.trust == pytest.approx(0.722, abs=1e-3)
    assert neutral.extra_pull == 0.0


def test_trust_steps_and_pull_follow_the_audits():
    neutral = SourceComparison(error_rate=0.0)
    better, worse = comparison(40, shows_served=True), comparison(40, shows_served=False)
    assert better.trust > 0.95
    assert worse.trust < 0.05
    assert worse.extra_pull > 0.09
    factors = [found.evidence_factor(10.0) for found in (worse, neutral, better)]
    assert factors == sorted(factors)
    assert factors[0] < 0.01
    assert factors[1] == pytest.approx(10 ** (2 * 0.590 / 3 - 1), abs=1e-3)
    assert factors[2] > 1


def test_evidence_factor_has_a_lower_bound_that_harm_overrules():
    assert SourceComparison().evidence_factor(10.0, at_least=0.8) == 0.8
    assert comparison(40, shows_served=False).evidence_factor(10.0, at_least=0.8) < 0.1


def test_loss_is_accepted_in_proportion_to_the_errors():
    """2 % of the errors of all samples: the models differ on 1 of 64 in each window."""
    certain, lenient = (comparison(10, shows_served=False, n_represented=1.0) for _ in range(2))
    lenient.error_rate = 0.5
    accepted = 0.02 * 0.5 / 0.02  # 1 of 64 is below the smallest share, .02
    assert lenient.standard_score(accepted) > certain.standard_score()
    assert lenient.trust > certain.trust


def test_trust_returns_to_its_start_without_audits():
    found = comparison(9, shows_served=False)
    lowest = found.trust
    trusts = []
    for _ in range(400):
        found.add([], n_samples=64)
        trusts.append(found.trust)
    assert lowest < trusts[100] < trusts[-1] == pytest.approx(0.722, abs=0.01)


def test_runs_are_found_if_neighbours_are_equal_more_often_than_by_chance():
    rng = generator(3)
    mixed, in_runs, constant = LabelRuns(), LabelRuns(), LabelRuns()
    for window in range(6):
        mixed.add(torch.randint(10, (64,), generator=rng).tolist())
        in_runs.add([window] * 32 + [window + 1] * 32)
        constant.add([4] * 64)
    assert [runs.found for runs in (mixed, in_runs, constant)] == [False, True, False]
    assert not LabelRuns().found


def test_frequent_label_is_no_run():
    """A model that serves one label in nine of ten cases, at random places."""
    runs, rng = LabelRuns(), generator(4)
    for _ in range(6):
        runs.add((torch.rand(64, generator=rng) < 0.9).long().tolist())
    assert not runs.found


def test_silence_does_not_look_like_agreement_of_the_models():
    """Half of the labels are wrong, and audits showed harm. Then nobody answers."""
    found = comparison(20, shows_served=False)
    found.error_rate = 0.5
    for _ in range(1000):
        found.add([], n_samples=64)
    assert found.trust == pytest.approx(0.74, abs=0.02)
    assert SourceComparison(error_rate=0.5).trust == pytest.approx(0.73, abs=0.01)


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
    """At first no view is used."""
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
        session = make_session(n_queries=0, lr=1e3, trust_radius=radius, source_pull=0.0)
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
    session.adapter.comparison = comparison(50, shows_served=False)
    session.predict(images())
    session.learn()
    source = session.adapter.source_weights.tensors
    for name, parameter in session.model.named_parameters():
        assert torch.allclose(parameter - source[name], torch.full_like(parameter, 0.9), atol=0.01)


def test_session_does_not_change_the_state_that_it_was_loaded_from():
    session = make_session()
    session.step(images())
    state = session.state_dict()
    before = deepcopy(state["adapter"]["comparison"])
    again = Session.from_state(state, toy_classifier())
    for query in again.predict(images(1)).queries:
        again.answer(query.id, correct=True)
    again.learn()
    assert again.adapter.comparison != SourceComparison(**before)
    assert state["adapter"]["comparison"] == before


def test_small_requests_are_learned_from_in_windows():
    truth = torch.zeros(200, dtype=torch.long)
    session = Session(toy_classifier(), "self_tuning", feedback=Simulated(truth))
    for number in range(130):
        session.step(images(number, n=1))
    assert session.n_steps == 2
    assert session.adapter.version == 2
    assert session.n_asked == 6


def channel_model():
    """Says which of three channels is the brightest. It has a BatchNorm layer."""
    norm = nn.BatchNorm2d(3)
    nn.init.constant_(norm.weight, 10.0)
    return nn.Sequential(norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def channel_images(classes, seed):
    x = 0.1 * torch.rand(len(classes), 3, 4, 4, generator=generator(6, seed))
    x[range(len(classes)), classes] += 1.0
    return x


def test_balanced_memory_replaces_the_batch_while_labels_arrive_in_runs():
    session = Session(channel_model(), "self_tuning", window=0, n_queries=0)
    adapter = session.adapter

    def learn(classes, seed):
        session.predict(channel_images(classes, seed))
        session.learn()

    for number in range(12):
        learn([number % 3] * 32, number)
    assert adapter.uses_stream_memory
    assert adapter.policy_statistics == "running"
    assert adapter.stream_memory.labels.bincount().min() > 20
    for number in range(60):
        learn(torch.randint(3, (32,), generator=generator(7, number)).tolist(), number)
    assert not adapter.uses_stream_memory
    assert adapter.policy_statistics == "batch"
    assert len(adapter.stream_memory) == 0


def test_step_size_a_hundred_times_too_large_does_not_ruin_the_model():
    """A toy model that is right on its own labels stays right on most of them."""
    model = toy_classifier()
    inputs = torch.cat([images(number) for number in range(60)])
    with torch.no_grad():
        truth = model.eval()(inputs).argmax(-1)
    session = Session(model, "self_tuning", window=0, lr=0.1, feedback=Simulated(truth, flip=0.05))
    served = torch.cat([session.step(part)[0].labels for part in inputs.split(16)])
    right = (served == truth).float()
    assert right[480:].mean() > 0.9


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("views", 3),
        ("lr_growth", 0.5),
        ("trust_radius", -1.0),
        ("source_pull", 2.0),
        ("stream_memory", -1),
    ],
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(SettingError, match=name):
        make_session(**{name: value})


def test_server_refuses_the_method_until_it_asks_paired_audits():
    with pytest.raises(SettingError, match="paired audits"):
        load_settings({"method": "self_tuning"}, environment={})
