"""Stochastic restoration: a few weights at a time go back to the source (CoTTA, 2022)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bitta.seeding import Key, generator


@torch.no_grad()
def restore_stochastically(
    model: nn.Module, source: Mapping[str, Tensor], *, rate: float, key: Key
) -> None:
    """Give each weight its source value back with probability `rate`."""
    for place, (name, parameter) in enumerate(model.named_parameters()):
        chance = generator(*key, place, device=parameter.device)
        drawn = torch.rand(parameter.shape, generator=chance, device=parameter.device)
        parameter.copy_(torch.where(drawn < rate, source[name], parameter))
