"""The clean counterpart of a corrupted stream, and how well a model does on it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bitta.bench.streams import StreamConfig
from bitta.config import Config, require
from bitta.errors import InputError, SettingError
from bitta.seeding import generator
from bitta.streams import (
    Domain,
    Geometry,
    SelectedImages,
    as_floats,
    embedded_pack,
    read_cifar10,
    read_cifar100,
    read_tiny_imagenet,
    set_folder,
)


@dataclass(frozen=True, kw_only=True)
class ForgettingConfig(Config):
    """What following the stream costs on clean images; not measured unless asked for."""

    n_samples: int = 0
    """Clean test images to measure on, before and after; 0 for no measurement."""
    path: str = ""
    """Where the clean set lies, if not at stream.path or, without one, where "bitta data get" puts
    it."""

    def __post_init__(self) -> None:
        require(self.n_samples >= 0, "n_samples", self.n_samples, "0 or more")


Served = Callable[[Tensor], Tensor]
"""Labels for a batch of inputs; changes nothing."""


class Clean:
    """Some of the uncorrupted test images, the same for every method."""

    def __init__(self, domain: Domain, *, n_samples: int, batch_size: int, seed: int) -> None:
        order = torch.randperm(len(domain.labels), generator=generator(seed, "clean"))
        self._domain, self._rows = domain, order[:n_samples]
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._rows)

    def accuracy(self, served: Served) -> float:
        """Percent right."""
        right = 0
        for rows in self._rows.split(self._batch_size):
            labels = served(as_floats(self._domain.images[rows])).cpu()
            right += int((labels == self._domain.labels[rows]).sum())
        return 100 * right / len(self)


def build_clean(
    config: ForgettingConfig,
    stream: StreamConfig,
    *,
    classes: Sequence[str],
    preprocessing: Mapping[str, int],
    seed: int,
) -> Clean | None:
    """The images that an experiment measures forgetting on; `classes` are the stream's."""
    if not config.n_samples:
        return None
    if stream.kind not in _COUNTERPARTS:
        raise SettingError(
            f"[forgetting] needs the clean images of a corrupted set, and kind {stream.kind!r} has "
            f"none; it works with {', '.join(_COUNTERPARTS)}."
        )
    if config.path and stream.kind == "corruptions":
        raise SettingError(
            f"forgetting.path is {config.path!r}, but the clean images of kind 'corruptions' are "
            "embedded; leave it out."
        )
    geometry = Geometry(
        stream.resize or preprocessing.get("resize", 0),
        stream.crop or preprocessing.get("crop", 0),
    )
    domain = _COUNTERPARTS[stream.kind](config.path or stream.path, geometry)
    domain = _in_terms_of(domain, classes)
    batch_size = max(stream.batch_size, stream.window_size)
    return Clean(domain, n_samples=config.n_samples, batch_size=batch_size, seed=seed)


def _in_terms_of(domain: Domain, classes: Sequence[str]) -> Domain:
    """With the stream's labels, and without the classes that it does not have."""
    if not classes or tuple(classes) == domain.classes:
        return domain
    places = {name: place for place, name in enumerate(classes)}
    numbers = torch.tensor([places.get(name, -1) for name in domain.classes])[domain.labels]
    rows = (numbers >= 0).nonzero().flatten()
    if not len(rows):
        raise InputError(
            f"the clean images of {domain.name!r} show none of the stream's classes; is "
            "forgetting.path another set?"
        )
    return Domain(domain.name, SelectedImages(domain.images, rows), numbers[rows], tuple(classes))


def _embedded(path: str, geometry: Geometry) -> Domain:  # noqa: ARG001
    pack = embedded_pack("cifar10")
    return Domain("cifar10", pack.images, pack.labels, pack.classes)


def _cifar(path: str, geometry: Geometry, *, name: str, read: Callable[..., Domain]) -> Domain:  # noqa: ARG001
    return read(set_folder(name, path), train=False)


def _tiny_imagenet(path: str, geometry: Geometry) -> Domain:
    return read_tiny_imagenet(set_folder("tiny-imagenet", path), train=False, geometry=geometry)


_COUNTERPARTS: Mapping[str, Callable[[str, Geometry], Domain]] = {
    "corruptions": _embedded,
    "cifar10-c": partial(_cifar, name="cifar10", read=read_cifar10),
    "cifar100-c": partial(_cifar, name="cifar100", read=read_cifar100),
    "tiny-imagenet-c": _tiny_imagenet,
}
