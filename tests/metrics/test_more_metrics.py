"""Brier score, agreement, forgetting and collapse by hand."""

import pytest
import torch

from bitta.metrics import (
    Agreement,
    Forgetting,
    LabelHistograms,
    brier_sum,
    find_low_accuracy_domains,
    find_low_entropy_domains,
)


def test_brier_by_hand():
    """(.7, .2, .1) for class 0: .09 + .04 + .01 = .14; (0, 1, 0) for class 2: 0 + 1 + 1 = 2."""
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0]])
    assert brier_sum(probs, torch.tensor([0, 2])) == pytest.approx(2.14)
    assert brier_sum(probs[1:], torch.tensor([1])) == 0


def test_what_is_no_number_scores_worst():
    probs = torch.tensor([[torch.nan, torch.nan], [1.0, 0.0]])
    assert brier_sum(probs, torch.tensor([0, 0])) == 2


def test_agreement_by_hand():
    """Served 0 0 1 1, the policy's 0 1 1 0; the first, second and third are right."""
    policy = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.6, 0.4]])
    right = torch.tensor([True, True, True, False])
    agreement = Agreement.from_batch(torch.tensor([0, 0, 1, 1]), right, policy)
    assert agreement == Agreement(4, 2, 2, 3)
    assert (agreement.rate, agreement.accuracy_agreeing) == (50, 100)
    assert agreement.accuracy_disagreeing == 50


def test_agreement_that_was_not_measured_is_no_number():
    agreement = Agreement.from_batch(torch.tensor([0]), torch.tensor([True]), None)
    assert agreement == Agreement()
    assert agreement.rate is agreement.accuracy_agreeing is agreement.accuracy_disagreeing is None
    assert Agreement(3, 3, 2, 2).accuracy_disagreeing is None


def test_forgetting_is_what_was_lost():
    assert Forgetting(100, before=90.0, after=84.5).drop == 5.5


def filled(served, true, n_classes=4):
    histograms = LabelHistograms()
    for labels, truth in zip(served, true, strict=True):
        histograms.add("fog", torch.tensor(labels), torch.tensor(truth), n_classes=n_classes)
    return histograms


def test_the_spread_of_labels_by_hand():
    """Served 2 and 2 of four classes: ln 2 / ln 4 = .5; the truth has one of each."""
    entropies = filled([[0, 0], [1, 1]], [[0, 1], [2, 3]]).entropies
    assert entropies == {"fog": {"served": pytest.approx(0.5), "true": pytest.approx(1)}}
    assert find_low_entropy_domains(entropies) == []


def test_a_domain_with_nearly_one_class_is_found():
    """One of 32 apart: (.139 nats) / ln 4 = .1 is below .3."""
    labels = [0] * 31 + [1]
    assert find_low_entropy_domains(filled([labels], [list(range(4)) * 8]).entropies) == ["fog"]
    assert (
        find_low_entropy_domains(filled([labels], [labels]).entropies) == []
    )  # the truth is no different
    assert find_low_entropy_domains(filled([[0]], [[0]]).entropies) == []


def test_histograms_go_on_from_their_state():
    histograms = filled([[0, 1]], [[2, 3]])
    again = LabelHistograms.from_state_dict(histograms.state_dict())
    for each in (histograms, again):
        each.add("fog", torch.tensor([0]), torch.tensor([1]), n_classes=4)
        each.add("snow", torch.tensor([0]), torch.tensor([1]), n_classes=4)
    assert again.entropies == histograms.entropies
    assert list(again.entropies) == ["fog", "snow"]


def test_less_than_half_of_the_source_is_a_collapse():
    source = {"fog": 60.0, "snow": 40.0}
    assert find_low_accuracy_domains({"fog": 29.9, "snow": 20.0, "rain": 0.0}, source) == ["fog"]
