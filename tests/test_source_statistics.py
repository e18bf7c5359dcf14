"""Tests of source statistics."""

import pytest
import torch
from torch import nn

from bitta.errors import InputError, ModelError, SettingError
from bitta.nn import SavedWeights, WrappedModel
from bitta.seeding import generator
from bitta.source_statistics import SourceStatistics
from bitta.statefile import save_state
from bitta.testing import toy_classifier


class Plain(nn.Module):
    """Model whose features are its input. The larger one is the class."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x):
        return self.head(x.flatten(1))


class Scaled(nn.Module):
    """Model of one BatchNorm layer and the identity."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2, eps=1e-12)
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.head.weight)

    def forward(self, x):
        return self.head(self.norm(x))


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def test_moments_and_prototypes_are_those_of_all_batches():
    """Rows (2,0), (4,0) are class 0, (0,3) is class 1: prototypes (3,0) and (0,3).

    Mean (2,1); covariance/3 of deviations (0,-1), (2,-1), (-2,2): [[8,-6],[-6,6]]/3.
    """
    batches = [torch.tensor([[2.0, 0.0]]), torch.tensor([[4.0, 0.0], [0.0, 3.0]])]
    found = SourceStatistics.compute(WrappedModel(Plain()), batches)
    assert torch.allclose(found.prototypes, torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
    assert torch.allclose(found.mean, torch.tensor([2.0, 1.0]))
    assert torch.allclose(found.covariance, torch.tensor([[8.0, -6.0], [-6.0, 6.0]]) / 3)
    assert found.n == 3
    assert found.fisher == {}


def test_class_that_is_never_predicted_has_a_zero_prototype():
    found = SourceStatistics.compute(WrappedModel(Plain()), [torch.tensor([[2.0, 0.0]])])
    assert found.prototypes.tolist() == [[2.0, 0.0], [0.0, 0.0]]


def test_fisher_information_is_the_mean_squared_batch_gradient():
    """Rows (5,-7), (1,1), normalised by the batch, are (1,-1), (-1,1): their own labels 0, 1.

    With p = sigmoid(2) of the label, d CE / d logits = (p-1, 1-p) and (1-p, p-1); the gradient of
    each scale is the mean of (p-1)(±1)(±1) = p-1, that of each shift the mean of ±(p-1) = 0.
    Running statistics would have given other logits.
    """
    rows = torch.tensor([[5.0, -7.0], [1.0, 1.0]])
    found = SourceStatistics.compute(WrappedModel(Scaled()), [rows, rows], fisher_samples=4)
    expected = (1 - torch.sigmoid(torch.tensor(2.0))) ** 2
    assert torch.allclose(found.fisher["norm.weight"], expected.expand(2))
    assert torch.allclose(found.fisher["norm.bias"], torch.zeros(2), atol=1e-7)


def test_fisher_information_uses_at_most_the_given_samples():
    few = SourceStatistics.compute(
        WrappedModel(toy_classifier()), [images(0), images(1)], fisher_samples=8
    )
    same = SourceStatistics.compute(WrappedModel(toy_classifier()), [images(0)])
    part = SourceStatistics.compute(WrappedModel(toy_classifier()), [images(0)], fisher_samples=5)
    cut = SourceStatistics.compute(WrappedModel(toy_classifier()), [images(0)[:5]])
    for one, other in ((few, same), (part, cut)):
        assert one.fisher.keys() == other.fisher.keys() != set()
        assert all(torch.equal(one.fisher[name], other.fisher[name]) for name in one.fisher)


def test_computing_statistics_does_not_change_the_model():
    model = toy_classifier().requires_grad_(False)
    before = SavedWeights.copy_of(model).tensors
    SourceStatistics.compute(WrappedModel(model), [images()])
    assert all(
        torch.equal(before[name], t) for name, t in SavedWeights.copy_of(model).tensors.items()
    )
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())


def test_saved_statistics_are_loaded_and_bound_to_their_model(tmp_path):
    path = tmp_path / "statistics.safetensors"
    made = SourceStatistics.compute(WrappedModel(toy_classifier()), [images()])
    made.save(path)
    found = SourceStatistics.load_for(str(path), toy_classifier(), method="eata")
    assert torch.equal(found.prototypes, made.prototypes)
    assert torch.equal(found.covariance, made.covariance)
    assert torch.equal(found.fisher["norm.weight"], made.fisher["norm.weight"])
    assert (found.n, found.weights) == (8, made.weights)
    found.require_source(toy_classifier(), path=str(path))
    found.require_source(SavedWeights.copy_of(toy_classifier()), path=str(path))


def test_unfitting_statistics_are_refused(tmp_path):
    path = str(tmp_path / "statistics.safetensors")
    SourceStatistics.compute(WrappedModel(toy_classifier()), [images()]).save(path)
    with pytest.raises(ModelError, match="8 features and 5 classes, but _ToyClassifier"):
        SourceStatistics.load_for(path, toy_classifier(width=16), method="eata")
    with pytest.raises(ModelError, match="statistics of a model with weights"):
        SourceStatistics.load(path).require_source(toy_classifier(seed=1), path=path)
    with pytest.raises(SettingError, match="eata needs source statistics"):
        SourceStatistics.load_for("", toy_classifier(), method="eata")
    with pytest.raises(InputError, match="there is no file"):
        SourceStatistics.load(tmp_path / "none")
    save_state(tmp_path / "other", {"kind": "something"})
    with pytest.raises(InputError, match="holds no source statistics"):
        SourceStatistics.load(tmp_path / "other")
    with pytest.raises(InputError, match="no images"):
        SourceStatistics.compute(WrappedModel(toy_classifier()), [])
