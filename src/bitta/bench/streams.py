"""The streams an experiment can ask for."""

from dataclasses import dataclass
from typing import Literal

import torch

from bitta.config import Config, require
from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.errors import SettingError, unknown
from bitta.seeding import generator
from bitta.streams import CHANCES, Domain, Stream, coloured_digits, embedded_pack, read_arrays

_DEMO_CORRUPTIONS = "gaussian_noise,defocus_blur,fog,contrast,jpeg_compression"


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Config):
    """What is streamed, in which order."""

    kind: Literal["digits", "corruptions", "arrays"]
    """digits and corruptions ship with bitta; arrays reads an .npz."""
    batch_size: int = 64
    """Samples per batch."""
    window: int = -1
    """Samples whose statistics and questions count together; -1 for 64 at batch size 1, else 0."""
    path: str = ""
    """arrays: the .npz with inputs, labels and, if there are several, domains."""
    n_samples: int = 0
    """At most so many samples of each domain; 0 for all."""
    corruptions: str = _DEMO_CORRUPTIONS
    """corruptions: which, in order, separated by commas."""
    severity: int = 5
    """corruptions: 1 to 5."""
    colour_flip: float = CHANCES["target"]
    """digits: how often the colour lies."""

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(self.n_samples >= 0, "n_samples", self.n_samples, "0 or more")
        require(1 <= self.severity <= 5, "severity", self.severity, "1 to 5")
        require(0 <= self.colour_flip <= 1, "colour_flip", self.colour_flip, "0 to 1")
        if (self.kind == "arrays") != bool(self.path):
            raise SettingError('stream.path goes with stream.kind = "arrays", and only with it.')
        for name in self.corruption_names:
            if name not in CORRUPTIONS:
                raise unknown("corruption", name, CORRUPTIONS)

    @property
    def window_size(self) -> int:
        """Samples that statistics and learning see at once, where batches are too small; 0: none."""
        return (64 if self.batch_size == 1 else 0) if self.window < 0 else self.window

    @property
    def corruption_names(self) -> list[str]:
        """The corruptions, in order."""
        return [name.strip() for name in self.corruptions.split(",")]


def build_stream(config: StreamConfig, *, seed: int) -> Stream:
    """The batches of an experiment; the same for every method."""
    domains = {"digits": _digits, "corruptions": _corruptions, "arrays": _arrays}[config.kind](
        config, seed
    )
    return Stream(domains, batch_size=config.batch_size, seed=seed)


def _digits(config: StreamConfig, seed: int) -> list[Domain]:
    pack = embedded_pack("digits")
    rows = _some(len(pack.labels), config.n_samples, seed, "digits")
    images, clean, _ = coloured_digits(
        pack.images[rows], pack.labels[rows], colour_flip=config.colour_flip, seed=seed
    )
    return [Domain("target", images, clean)]


def _corruptions(config: StreamConfig, seed: int) -> list[Domain]:
    pack = embedded_pack("cifar10")
    domains = []
    for name in config.corruption_names:
        rows = _some(len(pack.labels), config.n_samples, seed, name)
        images = corrupt(pack.images[rows], name, severity=config.severity, seed=seed)
        domains.append(Domain(name, images, pack.labels[rows]))
    return domains


def _arrays(config: StreamConfig, seed: int) -> list[Domain]:
    domains = []
    for domain in read_arrays(config.path):
        rows = _some(len(domain.labels), config.n_samples, seed, domain.name)
        domains.append(Domain(domain.name, domain.images[rows], domain.labels[rows]))
    return domains


def _some(n_all: int, n_wanted: int, seed: int, name: str) -> torch.Tensor:
    """A random choice of rows, or all of them."""
    order = torch.randperm(n_all, generator=generator(seed, "sample", name))
    return order[:n_wanted].sort().values if n_wanted else torch.arange(n_all)
