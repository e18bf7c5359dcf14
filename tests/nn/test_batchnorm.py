"""Tests of the choice of BatchNorm statistics."""

import pytest
import torch
from torch import nn

from bitta.errors import ModelError
from bitta.nn import SamplingSettings, WrappedModel, batch_norms, norm_parameters
from bitta.nn.batchnorm import RowLayout, use_statistics
from bitta.seeding import RandomKey, generator
from bitta.testing import toy_classifier


def test_observing_moves_running_statistics_by_the_momentum():
    """Values 1 and 3: mean 2, unbiased variance 2. From (0, 1), momentum .3: .6 and 1.3."""
    model = nn.BatchNorm1d(2).eval()
    WrappedModel(model).observe(torch.tensor([[1.0, 1.0], [3.0, 3.0]]), momentum=0.3)
    assert model.running_mean.tolist() == pytest.approx([0.6, 0.6])
    assert model.running_var.tolist() == pytest.approx([1.3, 1.3])
    assert not model.training


def test_batch_statistics_normalise_without_touching_buffers():
    model = nn.BatchNorm1d(2, eps=1e-12).eval()
    out = WrappedModel(model)(torch.tensor([[1.0, 4.0], [3.0, 8.0]]), statistics="batch")
    assert out.flatten().tolist() == pytest.approx([-1.0, -1.0, 1.0, 1.0])
    assert model.running_mean.tolist() == [0, 0]
    assert model.running_var.tolist() == [1, 1]


class WithActivation(nn.BatchNorm2d):
    """BatchNorm layer with an activation, as in timm."""

    def forward(self, x):
        return super().forward(x).relu()


class Functional(nn.BatchNorm2d):
    """BatchNorm layer that calls the function with positional arguments."""

    def forward(self, x):
        batch = self.training or self.running_mean is None
        return nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, batch, 0.1, self.eps
        )


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, WithActivation, Functional])
def test_code_of_a_layer_around_its_normalisation_runs(kind):
    layer = kind(4)
    model = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.randn(5, 4, 3, 3, generator=generator(0))
    expected = model.train()(x)
    layer.reset_running_stats()
    assert torch.allclose(WrappedModel(model)(x, statistics="batch"), expected, atol=1e-6)
    assert layer.running_mean.abs().max() == 0


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(4), (6, 4)),
        (nn.BatchNorm1d(4), (6, 4, 5)),
        (nn.BatchNorm2d(4, affine=False), (6, 4, 5, 5)),
        (nn.BatchNorm3d(4), (6, 4, 2, 3, 3)),
        (nn.SyncBatchNorm(4), (6, 4, 5, 5)),
        (nn.BatchNorm2d(4, track_running_stats=False), (6, 4, 5, 5)),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("statistics", ["running", "batch"])
def test_every_batch_norm_normalises_each_pass_by_itself(layer, shape, statistics):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.site, self.norm = nn.Identity(), layer

        def forward(self, x):
            return (
                self.norm(self.site(x)).flatten(2).mean(2)
                if x.dim() > 2
                else self.norm(self.site(x))
            )

    wrapped = WrappedModel(Model(), sites=["site"])
    x = torch.randn(shape, generator=generator(3))
    drawn = [
        wrapped.sample(x, SamplingSettings(statistics, 0.3, 3), RandomKey((1,)))
        for wrapped.can_fan_out in (True, False)
    ]
    assert torch.allclose(*drawn, atol=1e-6)


def test_batch_norm_over_flattened_tokens_normalises_each_pass_by_itself():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.site, self.norm = nn.Identity(), nn.BatchNorm1d(4)

        def forward(self, x):
            x = self.site(x)
            return self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)

    wrapped = WrappedModel(Tokens(), sites=["site"])
    x = torch.randn(6, 5, 4, generator=generator(0))
    drawn = [
        wrapped.sample(x, SamplingSettings("batch", 0.3, 3), RandomKey((0,)))
        for wrapped.can_fan_out in (True, False)
    ]
    assert torch.allclose(*drawn, atol=1e-6)


def test_one_value_per_channel_uses_running_statistics():
    model = nn.BatchNorm1d(2, eps=0.0).eval()
    out = WrappedModel(model)(torch.tensor([[5.0, 7.0]]), statistics="batch")
    assert out.flatten().tolist() == [5.0, 7.0]


def test_one_value_per_channel_without_running_statistics_is_refused():
    wrapped = WrappedModel(nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(ModelError, match="at least two images"):
        wrapped(torch.zeros(1, 2), statistics="batch")


def test_norm_parameters_are_scale_and_shift_of_norm_layers():
    model = toy_classifier("batch")
    expected = [p for norm in batch_norms(model) for p in (norm.weight, norm.bias)]
    assert [id(p) for p in norm_parameters(model)] == [id(p) for p in expected]
    assert len(norm_parameters(toy_classifier("layer"))) == len(expected)


def test_channels_last_on_a_cpu_is_as_precise_as_contiguous():
    """torch's own kernel for this layout is up to a percent off if it sums 200,000 values."""
    random_key = generator(1)
    x = (torch.randn(189, 16, 32, 32, generator=random_key) + 1).relu()
    slope = torch.randn(x.shape, generator=random_key) * 1e-3 + 1e-5
    weight, bias = torch.rand(16, generator=random_key) + 0.5, torch.randn(16, generator=random_key)

    def outcome(dtype, layout):
        rows = x.to(dtype).contiguous(memory_format=layout).requires_grad_()
        layer = nn.BatchNorm2d(16).to(dtype)
        layer.weight.data, layer.bias.data = weight.to(dtype), bias.to(dtype)
        with use_statistics(layer, "batch", rows=RowLayout()):
            out = layer(rows)
        slopes = slope.to(out).contiguous(memory_format=layout)
        return out, *torch.autograd.grad(out, (rows, layer.weight, layer.bias), slopes)

    exact = outcome(torch.float64, torch.contiguous_format)
    for given, wanted in zip(outcome(torch.float32, torch.channels_last), exact, strict=True):
        assert (given - wanted).abs().max() < 2e-6 * wanted.abs().max()
