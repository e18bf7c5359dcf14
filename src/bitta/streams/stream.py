"""Domains one after another, each shuffled, cut into batches."""

from collections.abc import Iterator, Sequence
from hashlib import sha256

import torch
from torch import Tensor

from bitta.config import require
from bitta.errors import InputError
from bitta.seeding import generator
from bitta.streams.domain import Domain
from bitta.types import Batch


class Stream:
    """A fixed sequence of batches; a batch never crosses from one domain into the next."""

    def __init__(self, domains: Sequence[Domain], *, batch_size: int = 64, seed: int = 0) -> None:
        require(batch_size >= 1, "batch_size", batch_size, "1 or more")
        if not any(len(domain.labels) for domain in domains):
            raise InputError("the stream holds no sample.")
        self.domains = tuple(domains)
        self.batch_size = batch_size
        self.seed = seed
        self._orders = [
            torch.randperm(len(d.labels), generator=generator(seed, "order", d.name))
            for d in self.domains
        ]
        self._plan = [
            (place, rows)
            for place, order in enumerate(self._orders)
            for rows in order.split(batch_size)
        ]

    def __len__(self) -> int:
        return len(self._plan)

    @property
    def truth(self) -> Tensor:
        """Every label in the order of the stream."""
        return torch.cat(
            [d.labels[order] for d, order in zip(self.domains, self._orders, strict=True)]
        )

    @property
    def fingerprint(self) -> str:
        """Hash of the labels in order and of one batch of each domain."""
        digest = sha256(self.truth.numpy().tobytes())
        for domain, order in zip(self.domains, self._orders, strict=True):
            digest.update(domain.images[order[: self.batch_size]].numpy().tobytes())
        return digest.hexdigest()

    @property
    def protocol(self) -> str:
        """Samples, order, batch and seed in a line that belongs to every result."""
        names = " > ".join(domain.name for domain in self.domains)
        return (
            f"{len(self.truth)} samples, continual {names}, shuffled within, no reset, "
            f"batch {self.batch_size}, seed {self.seed}"
        )

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batches from number `start` on."""
        for place, rows in self._plan[start:]:
            domain = self.domains[place]
            images = domain.images[rows]
            if images.dtype == torch.uint8:
                images = images.float().div_(255)
            yield Batch(images, domain.labels[rows], domain.name)
