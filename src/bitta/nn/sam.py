"""Sharpness-aware minimisation: a gradient taken where the loss is nearly worst nearby.

Foret et al., ICLR 2021, https://openreview.net/forum?id=6Tm1mposlrM
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def uphill(parameters: Sequence[nn.Parameter], *, rho: float) -> Iterator[None]:
    """θ + ρ g / ‖g‖ inside, g being the gradient left in the parameters; exactly θ afterwards."""
    gradients = [(p, p.grad) for p in parameters if p.grad is not None]
    kept = [(parameter, parameter.detach().clone()) for parameter, _ in gradients]
    # One norm over all parameters; without any gradient nothing moves.
    norm = nn.utils.get_total_norm([gradient for _, gradient in gradients])
    try:
        with torch.no_grad():
            for parameter, gradient in gradients:
                parameter.add_(gradient * (rho / (norm + 1e-12)))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
