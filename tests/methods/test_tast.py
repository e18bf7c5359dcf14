"""Tests of TAST-BN."""

import math

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import SettingError
from bitta.methods.tast import SupportSet, compute_centroids, find_neighbours
from bitta.nn import norm_parameters
from bitta.seeding import generator
from bitta.testing import toy_classifier


class Plain(nn.Module):
    """Model with two scaled features. The larger one is the class."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x):
        # Scale and shift of the layer, without its normalisation.
        return self.head(x * self.norm.weight + self.norm.bias)


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def test_most_certain_samples_of_each_class_stay_in_order():
    """Class 0 has entropies .3, .1, .2 at rows 0, 2, 3; class 1 has .9 at row 1."""
    support = SupportSet(
        torch.arange(4.0).unsqueeze(1),
        torch.tensor([0, 1, 0, 0]),
        torch.tensor([0.3, 0.9, 0.1, 0.2]),
    )
    assert support.most_certain(2).inputs.flatten().tolist() == [1, 2, 3]
    assert support.most_certain(1).labels.tolist() == [1, 0]


def test_centroids_are_unit_vectors_of_mean_features():
    """Class 0: (2,0) and (4,8), mean (3,4), so (.6,.8); class 1: (0,5), so (0,1); class 2: none."""
    features = torch.tensor([[2.0, 0.0], [4.0, 8.0], [0.0, 5.0]])
    found = compute_centroids(features, torch.tensor([0, 0, 1]), 3)
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.0, 0.0]]))


def test_neighbours_are_nearest_by_angle():
    support = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    found = find_neighbours(torch.tensor([[1.0, 0.0], [0.6, 0.8]]), support, 2)
    assert found.tolist() == [[0, 2], [2, 1]]
    assert find_neighbours(support, support, 9).shape == (3, 3)


def test_served_probabilities_are_the_mean_over_neighbours():
    """Samples (3,0), (4,3), (0,1): classes 0, 0, 1. Centroid 0 is (7,3)/√58, centroid 1 is (0,1).

    The two neighbours of (3,0) are itself and (4,3); those of (0,1) are itself and (4,3). The
    softmax(τ cos) of a neighbour over two classes is sigmoid(τ (cos0 - cos1)).
    """
    served = Session(Plain(), "tast", neighbours=2, tau=2.0).predict(
        torch.tensor([[3.0, 0.0], [4.0, 3.0], [0.0, 1.0]])
    )
    length = math.sqrt(58)
    first = 1 / (1 + math.exp(-2 * 7 / length))  # (1,0): cosines 7/√58 and 0
    middle = 1 / (1 + math.exp(-2 * ((0.8 * 7 + 0.6 * 3) / length - 0.6)))  # (.8,.6)
    last = 1 / (1 + math.exp(-2 * (3 / length - 1)))  # (0,1): cosines 3/√58 and 1
    expected = [(first + middle) / 2, (first + middle) / 2, (last + middle) / 2]
    assert served.probs[:, 0].tolist() == pytest.approx(expected)


def test_loss_is_the_mean_divergence_from_the_neighbours_classes():
    """The only neighbour is the sample itself. KL is -log p, a mean over 3 x 2 values."""
    session = Session(Plain(), "tast", neighbours=1, tau=2.0)
    session.predict(torch.tensor([[3.0, 0.0], [4.0, 3.0], [0.0, 1.0]]))
    length = math.sqrt(58)
    margins = [7 / length, (0.8 * 7 + 0.6 * 3) / length - 0.6, 1 - 3 / length]
    expected = sum(math.log1p(math.exp(-2 * margin)) for margin in margins) / 6
    assert session.learn().mean()["neighbours"] == pytest.approx(expected, rel=1e-5)


def test_support_set_is_bounded_and_holds_every_class():
    session = Session(toy_classifier(), "tast", filter_k=20, max_support=10)
    for number in range(4):
        session.step(images(number, 16))
    labels = session.adapter.support.labels
    assert labels.bincount().max() == 2  # 10 over 5 classes
    crowded = Session(toy_classifier(), "tast", max_support=1)
    crowded.step(images())
    assert crowded.adapter.support.labels.bincount().max() == 1


def test_labels_and_entropies_of_support_samples_never_change():
    session = Session(toy_classifier(), "tast", lr=0.1)
    session.step(images(0))
    before = session.adapter.support
    session.step(images(1))
    after = session.adapter.support
    kept = [row for row, x in enumerate(after.inputs) if any(torch.equal(x, y) for y in images(0))]
    assert kept
    assert all(after.entropies[row] in before.entropies for row in kept)


def test_only_scale_and_shift_are_trained_and_neighbours_agree_more():
    model = toy_classifier()
    trained = {id(parameter) for parameter in norm_parameters(model)}
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    session = Session(model, "tast", lr=0.05, epochs=8, tau=2.0)
    losses = session.step(images(n=16))[2].terms["neighbours"]
    assert losses[-1] < losses[0]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (id(parameter) not in trained)


@pytest.mark.parametrize("wrong", [{"neighbours": 0}, {"filter_k": 0}, {"tau": 0.0}], ids=str)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(SettingError, match="allowed"):
        Session(toy_classifier(), "tast", **wrong)
