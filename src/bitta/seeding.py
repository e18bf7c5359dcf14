"""Independent random generators from one seed, without global random state.

Random numbers are addressed by a key, such as (seed, "dropout", step, pass, site), and depend on
that key alone. So a resumed run, or one that draws in another order, gets the same numbers, and
there is no random state to save.
"""

from hashlib import blake2b
from typing import TypeAlias

import torch

Key: TypeAlias = tuple[str | int, ...]
"""Address of random numbers: the seed first, then their purpose."""


def derive_seed(*key: str | int) -> int:
    """Return a 63-bit seed for a key."""
    text = "/".join(map(str, key))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(*key: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator for a key."""
    return torch.Generator(device).manual_seed(derive_seed(*key))


class RandomKey:
    """Key prefix from which generators for longer keys are made."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def at(self, *place: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a new generator for this key followed by `place`."""
        return generator(*self.key, *place, device=device)
