"""Weights with noise on them, for the length of a forward."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bitta.seeding import Chance


@contextmanager
def perturbed(model: nn.Module, *, size: float, chance: Chance, number: int = 0) -> Iterator[None]:
    """Add Gaussian noise to the weights that a forward inside sees; gradients go to the weights.

    `size` is relative to the standard deviation of each tensor; each `number` has noise of its own.
    By hooks, which a `Network` takes as a sign to replay nothing: noisy weights lie elsewhere each
    time.
    """
    noisy = {
        id(weight): _with_noise(
            weight, size, chance.at("noise", number, place, device=weight.device)
        )
        for place, weight in enumerate(model.parameters())
        if weight.is_floating_point()
    }
    own = [(module._parameters, dict(module._parameters)) for module in model.modules()]

    def put_in(*_: Any) -> None:
        for parameters, weights in own:
            found: Any = {name: noisy.get(id(weight), weight) for name, weight in weights.items()}
            parameters.update(found)

    def put_back(*_: Any) -> None:
        for parameters, weights in own:
            parameters.update(weights)

    handles = [
        model.register_forward_pre_hook(put_in, prepend=True),
        model.register_forward_hook(put_back, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        put_back()


def _with_noise(weight: Tensor, size: float, generator: torch.Generator) -> Tensor:
    noise = torch.randn(weight.shape, generator=generator, device=weight.device, dtype=weight.dtype)
    return weight + noise * (size * weight.detach().std(correction=0))
