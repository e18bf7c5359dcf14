"""Tests of the prefix that two forward passes share."""

import pytest
import torch
from torch import nn

from bitta.nn import SamplingSettings, WrappedModel
from bitta.seeding import RandomKey, generator
from bitta.testing import NORMS, toy_classifier

SAMPLING = SamplingSettings("batch", 0.3, 4)


def images(n=6):
    return torch.rand(n, 3, 8, 8, generator=generator(1))


@pytest.mark.parametrize("can_fan_out", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_plain_logits_equal_those_of_a_whole_forward(norm, can_fan_out):
    wrapped = WrappedModel(toy_classifier(norm))
    wrapped.can_fan_out = can_fan_out
    sampled, plain = wrapped.sample_with_deterministic(images(), SAMPLING, RandomKey((3,)))
    with torch.no_grad():
        assert torch.equal(plain, wrapped(images(), statistics="batch"))
    assert torch.equal(sampled, wrapped.sample(images(), SAMPLING, RandomKey((3,))))
    assert sampled.requires_grad
    assert not plain.requires_grad


def test_modules_before_the_first_site_run_once_and_those_after_it_twice():
    model, calls = toy_classifier(), []
    for name in ("stem", "stage1.0.conv", "stage2.0.conv", "head"):
        layer = model.get_submodule(name)
        plain = type(layer).forward

        def counted(x, layer=layer, name=name, plain=plain):
            calls.append(name)
            return plain(layer, x)

        layer.forward = counted
    wrapped = WrappedModel(model)
    wrapped.sample_with_deterministic(images(), SAMPLING, RandomKey((3,)))  # probes once
    calls.clear()
    wrapped.sample_with_deterministic(images(), SAMPLING, RandomKey((3,)))
    assert {name: calls.count(name) for name in calls} == {
        "stem": 1, "stage1.0.conv": 1, "stage2.0.conv": 2, "head": 2,
    }  # fmt: skip


def test_shared_prefix_leaves_no_trace_on_the_model():
    model = toy_classifier()
    wrapped = WrappedModel(model)
    wrapped.sample_with_deterministic(images(), SAMPLING, RandomKey((3,)))
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert all(not module._forward_hooks for module in model.modules())


def test_module_used_before_and_after_the_site_runs_again():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.site, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.shared(self.site(self.shared(x).relu())))

    wrapped = WrappedModel(Shared(), sites=["site"])
    x = torch.randn(5, 4, generator=generator(4))
    _, plain = wrapped.sample_with_deterministic(x, SAMPLING, RandomKey((0,)))
    with torch.no_grad():
        assert torch.equal(plain, wrapped(x, statistics="batch"))


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_reach_modules_before_the_first_site(norm):
    gradients = []
    for with_plain in (True, False):
        model = toy_classifier(norm)
        wrapped = WrappedModel(model)
        wrapped.can_fan_out = True
        if with_plain:
            sampled, _ = wrapped.sample_with_deterministic(images(), SAMPLING, RandomKey((3,)))
        else:
            sampled = wrapped.sample(images(), SAMPLING, RandomKey((3,)))
        loss = sampled.softmax(-1).mean(0).square().sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(map(torch.equal, *gradients))


def test_gradients_are_tracked_again_after_an_exception():
    wrapped = WrappedModel(toy_classifier())
    wrapped.can_fan_out = True
    wrapped.model.head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        wrapped.sample_with_deterministic(images(), SAMPLING, RandomKey((3,)))
    assert torch.is_grad_enabled()
    assert all("forward" not in module.__dict__ for module in wrapped.model.modules())


class SharedActivation(nn.Module):
    """Model whose blocks share one activation module."""

    def __init__(self):
        super().__init__()
        act = nn.GELU()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), act) for _ in range(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ChangesInPlace(nn.Module):
    """Model that changes the output of a module in place, before or after the site."""

    def __init__(self, *, before):
        super().__init__()
        self.stem, self.site, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.before = before

    def forward(self, x):
        x = self.stem(x)
        if self.before:
            x += 1
            return self.head(self.site(x).relu())
        return self.head(nn.functional.silu(self.site(x), inplace=True))


def doubling_hook():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 3))
    model[2].register_forward_hook(lambda _module, _inputs, output: output * 2)
    return model


@pytest.mark.parametrize(
    ("make", "site"),
    [(SharedActivation, "blocks.1"), (lambda: ChangesInPlace(before=True), "site"),
     (lambda: ChangesInPlace(before=False), "site"), (doubling_hook, "2")],
    ids=["shared", "in place before", "in place after", "hook"],
)  # fmt: skip
@pytest.mark.parametrize("passes", [1, 3])
def test_models_whose_prefix_cannot_be_shared_run_twice(make, site, passes):
    model, x = make(), torch.randn(5, 4, generator=generator(4))
    wrapped, how = WrappedModel(model, sites=[site]), SamplingSettings("batch", 0.3, passes)
    sampled, plain = wrapped.sample_with_deterministic(x, how, RandomKey((0,)))
    sampled.sum().backward()
    assert torch.allclose(sampled, wrapped.sample(x, how, RandomKey((0,))), atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(plain, wrapped(x, statistics="batch"), atol=1e-6)
