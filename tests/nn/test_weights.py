"""Tests of noise on weights."""

import pytest
import torch
from torch import nn

from bitta.nn import perturbed_weights
from bitta.seeding import RandomKey

RANDOM_KEY = RandomKey((3,))


def weight_seen(model, **how):
    """Return the weight that the first linear layer used."""
    seen = []
    handle = model[0].register_forward_hook(lambda module, *_: seen.append(module.weight))
    with perturbed_weights(model, random_key=RANDOM_KEY, **how):
        model(torch.zeros(1, 300))
    handle.remove()
    return seen[0]


def test_noise_has_the_given_size():
    model = nn.Sequential(nn.Linear(300, 300))
    weight = model[0].weight
    noise = weight_seen(model, size=0.2) - weight
    assert noise.std().item() == pytest.approx(0.2 * weight.std().item(), rel=0.02)
    assert torch.equal(weight_seen(model, size=0.2) - weight, noise)
    assert not torch.equal(weight_seen(model, size=0.2, number=1) - weight, noise)


def test_gradient_at_noisy_weights_goes_to_the_weights():
    """L = (w·x)², so ∂L/∂w = 2 (w·x) x with the noisy w."""
    model = nn.Linear(3, 1, bias=False)
    x = torch.tensor([[1.0, 2.0, 3.0]])
    with perturbed_weights(model, size=0.5, random_key=RANDOM_KEY):
        out = model(x)
    out.square().sum().backward()
    assert abs(out.item() - model(x).item()) > 1e-3
    assert torch.allclose(model.weight.grad, 2 * out.detach() * x)


def test_weights_are_restored_after_an_error_and_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Flatten(7))
    model[1].weight = weight = model[0].weight
    with pytest.raises(IndexError), perturbed_weights(model, size=0.5, random_key=RANDOM_KEY):
        model(torch.zeros(1, 4))
    assert model[0].weight is weight
    assert model[1].weight is weight
    assert not model._forward_hooks
