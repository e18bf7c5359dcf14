"""One seed, many independent streams of chance, none of them global.

Chance is addressed, not consumed: the numbers drawn at (seed, "dropout", step, pass, site) depend
on that address alone. A resumed run, or one that draws in another order, therefore gets the same
numbers, and there is no random state to save.
"""

from hashlib import blake2b
from typing import TypeAlias

import torch

Key: TypeAlias = tuple[str | int, ...]
"""An address of chance: the seed first, then what it is for."""


def derive(*key: str | int) -> int:
    """A 63-bit seed for one address."""
    text = "/".join(map(str, key))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(*key: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator for one address."""
    return torch.Generator(device).manual_seed(derive(*key))


class RandomKey:
    """The generators under one address, found by the place they are for."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def at(self, *place: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator for one place."""
        return generator(*self.key, *place, device=device)
