"""What BiTTA's ablations put in the place of MC-dropout: N passes that differ in something else."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bitta.augment import augmented
from bitta.nn import Network, Sampling, perturbed
from bitta.seeding import Chance


def augmented_passes(network: Network, inputs: Tensor, how: Sampling, chance: Chance) -> Tensor:
    """Logits of N random views of each image, (passes, batch, classes)."""

    def one(number: int) -> Tensor:
        views = augmented(inputs, chance, "augmentation", number)
        return network(views, statistics=how.statistics)

    return _each(network, one, how.passes)


def perturbed_passes(
    network: Network, inputs: Tensor, how: Sampling, chance: Chance, *, size: float
) -> Tensor:
    """Logits of an ensemble of N models with noise on their weights, (passes, batch, classes)."""

    def one(number: int) -> Tensor:
        with perturbed(network.model, size=size, chance=chance, number=number):
            return network(inputs, statistics=how.statistics)

    return _each(network, one, how.passes)


def _each(network: Network, one: Callable[[int], Tensor], passes: int) -> Tensor:
    """Pass by pass; run a second time for its gradient where activations are not kept."""
    if network.low_memory and torch.is_grad_enabled():
        one = partial(checkpoint, one, use_reentrant=False, preserve_rng_state=False)
    return torch.stack([one(number) for number in range(passes)])
