"""BatchNorm by hand."""

import pytest
import torch
from torch import nn

from bitta.errors import ModelError
from bitta.nn import Network, batch_norms, scale_and_shift
from bitta.testing import toy_classifier


def test_observing_moves_running_statistics_by_the_momentum():
    """Values 1 and 3: mean 2, unbiased variance 2. From (0, 1), momentum .3: .6 and 1.3."""
    model = nn.BatchNorm1d(1).eval()
    Network(model).observe(torch.tensor([[1.0], [3.0]]), momentum=0.3)
    assert model.running_mean.item() == pytest.approx(0.6)
    assert model.running_var.item() == pytest.approx(1.3)
    assert not model.training


def test_batch_statistics_normalise_without_touching_buffers():
    model = nn.BatchNorm1d(1, eps=1e-12).eval()
    out = Network(model)(torch.tensor([[1.0], [3.0]]), statistics="batch")
    assert out.flatten().tolist() == pytest.approx([-1.0, 1.0])
    assert model.running_mean.item() == 0
    assert model.running_var.item() == 1


def test_one_value_per_channel_falls_back_on_running_statistics():
    model = nn.BatchNorm1d(2, eps=0.0).eval()
    out = Network(model)(torch.tensor([[5.0, 7.0]]), statistics="batch")
    assert out.flatten().tolist() == [5.0, 7.0]


def test_one_value_without_running_statistics_is_refused():
    network = Network(nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(ModelError, match="at least two images"):
        network(torch.zeros(1, 2), statistics="batch")


def test_scale_and_shift_are_those_of_the_norm_layers():
    model = toy_classifier("batch")
    expected = [p for norm in batch_norms(model) for p in (norm.weight, norm.bias)]
    assert [id(p) for p in scale_and_shift(model)] == [id(p) for p in expected]
    assert len(scale_and_shift(toy_classifier("layer"))) == len(expected)
