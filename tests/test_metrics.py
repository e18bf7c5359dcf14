"""Tests of metrics: calibration, Brier score, agreement, collapse and cost."""

import pytest
import torch

from bitta.metrics import (
    Agreement,
    DeviceTimer,
    Forgetting,
    LabelHistograms,
    Reliability,
    brier_sum,
    find_low_accuracy_domains,
    find_low_entropy_domains,
    peak_memory,
)


def test_brier_score_equals_hand_computation():
    """(.7, .2, .1) for class 0: .09 + .04 + .01 = .14; (0, 1, 0) for class 2: 0 + 1 + 1 = 2."""
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0]])
    assert brier_sum(probs, torch.tensor([0, 2])) == pytest.approx(2.14)
    assert brier_sum(probs[1:], torch.tensor([1])) == 0


def test_brier_score_of_nan_is_the_maximum():
    probs = torch.tensor([[torch.nan, torch.nan], [1.0, 0.0]])
    assert brier_sum(probs, torch.tensor([0, 0])) == 2


def test_agreement_equals_hand_computation():
    """Served labels 0 0 1 1, labels of the policy 0 1 1 0; the first three are right."""
    policy = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.6, 0.4]])
    right = torch.tensor([True, True, True, False])
    agreement = Agreement.from_batch(torch.tensor([0, 0, 1, 1]), right, policy)
    assert agreement == Agreement(4, 2, 2, 3)
    assert (agreement.rate, agreement.accuracy_agreeing) == (50, 100)
    assert agreement.accuracy_disagreeing == 50


def test_agreement_without_policy_is_none():
    agreement = Agreement.from_batch(torch.tensor([0]), torch.tensor([True]), None)
    assert agreement == Agreement()
    assert agreement.rate is agreement.accuracy_agreeing is agreement.accuracy_disagreeing is None
    assert Agreement(3, 3, 2, 2).accuracy_disagreeing is None


def test_forgetting_is_the_drop_in_accuracy():
    assert Forgetting(100, before=90.0, after=84.5).drop == 5.5


def filled(served, true, n_classes=4):
    histograms = LabelHistograms()
    for labels, truth in zip(served, true, strict=True):
        histograms.add("fog", torch.tensor(labels), torch.tensor(truth), n_classes=n_classes)
    return histograms


def test_label_entropy_equals_hand_computation():
    """Served 2 and 2 of four classes: ln 2 / ln 4 = .5; the truth has one of each."""
    entropies = filled([[0, 0], [1, 1]], [[0, 1], [2, 3]]).entropies
    assert entropies == {"fog": {"served": pytest.approx(0.5), "true": pytest.approx(1)}}
    assert find_low_entropy_domains(entropies) == []


def test_domain_with_nearly_one_served_class_is_found():
    """31 of 32 served labels are equal: .139 nats / ln 4 = .1 is below .3."""
    labels = [0] * 31 + [1]
    assert find_low_entropy_domains(filled([labels], [list(range(4)) * 8]).entropies) == ["fog"]
    assert (
        find_low_entropy_domains(filled([labels], [labels]).entropies) == []
    )  # the true labels are the same
    assert find_low_entropy_domains(filled([[0]], [[0]]).entropies) == []


def test_histograms_continue_from_their_saved_state():
    histograms = filled([[0, 1]], [[2, 3]])
    again = LabelHistograms.from_state_dict(histograms.state_dict())
    for each in (histograms, again):
        each.add("fog", torch.tensor([0]), torch.tensor([1]), n_classes=4)
        each.add("snow", torch.tensor([0]), torch.tensor([1]), n_classes=4)
    assert again.entropies == histograms.entropies
    assert list(again.entropies) == ["fog", "snow"]


def test_accuracy_below_half_of_the_source_is_found():
    source = {"fog": 60.0, "snow": 40.0}
    assert find_low_accuracy_domains({"fog": 29.9, "snow": 20.0, "rain": 0.0}, source) == ["fog"]


def test_ece_equals_hand_computation():
    """Two in the bin around .9 (one right), one in the bin around .5 (right).

    Gaps: |1.8 - 1| = .8 and |.5 - 1| = .5, so ECE = 1.3 / 3.
    """
    confidence, correct = torch.tensor([0.9, 0.9, 0.5]), torch.tensor([True, False, True])
    reliability = Reliability().add(confidence, correct)
    assert reliability.ece == pytest.approx(100 * 1.3 / 3, abs=1e-4)


def test_ece_does_not_depend_on_batches():
    confidence, correct = torch.linspace(0, 1, 40), torch.arange(40) % 3 == 0
    whole = Reliability().add(confidence, correct)
    parts = Reliability()
    for sure, right in zip(confidence.split(7), correct.split(7), strict=True):
        parts = parts.add(sure, right)
    assert parts.ece == pytest.approx(whole.ece)
    assert sum(parts.count) == 40


def test_confidences_zero_and_one_fall_into_the_outer_bins():
    reliability = Reliability().add(torch.tensor([0.0, 0.05, 1.0]), torch.ones(3))
    assert reliability.count[0] == 2
    assert reliability.count[-1] == 1
    assert Reliability().ece == 0


def test_stopwatch_and_peak_memory_are_positive():
    watch = DeviceTimer(torch.device("cpu"))
    watch.start()
    assert watch.stop() >= 0
    assert peak_memory(torch.device("cpu")) > 1e6
