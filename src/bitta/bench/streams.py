"""Streams of an experiment, and the clean images that belong to a corrupted stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import torch
from torch import Tensor

from bitta.bench.datasets import DATASET_KINDS, KIND_SPECIFIC_KEYS, DatasetRequest
from bitta.config_base import Config, require
from bitta.corruptions import CORRUPTIONS
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.seeding import generator
from bitta.streams import (
    COLOUR_FLIPS,
    Arrangement,
    Domain,
    Geometry,
    SelectedImages,
    Stream,
    as_floats,
    data_set_folder,
    embedded_pack,
    read_cifar10,
    read_cifar100,
    read_tiny_imagenet,
)


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Config):
    """Data of the stream and their order."""

    kind: str
    """Kind of data; "bitta streams" lists them."""
    path: str = ""
    """Folder or file of the data, if not where "bitta data get" puts it."""
    factory: str = ""
    """factory: module:function that returns a list of bitta.streams.Domain."""
    batch_size: int = 64
    """Samples per batch."""
    window: int = -1
    """Samples that share statistics and questions; -1 for 64 at batch size 1, else 0."""
    n_samples: int = 0
    """Largest number of samples per domain; 0 for all."""
    corruptions: str = ""
    """Names in order, separated by commas; empty for all that the data has."""
    severity: int = 5
    """Severity of corruptions, 1 to 5. The order "gradual" uses all of them."""
    domains: str = ""
    """Names in order, separated by commas; empty for all that the data has."""
    colour_flip: float = COLOUR_FLIPS["target"]
    """digits, coloured-mnist: probability that the colour is that of the other label."""
    resize: int = 0
    """Shorter side of images read from files; 0 for the value in the model card."""
    crop: int = 0
    """Side of the square cut from the centre; 0 for the value in the model card."""
    order: str = "continual"
    """continual, mixed, gradual, recurring, or single (reset before each domain)."""
    labels: str = "iid"
    """iid, or dirichlet: equal labels arrive together."""
    beta: float = 0.1
    """dirichlet: a smaller value makes longer runs of equal labels."""
    rounds: int = 3
    """recurring: number of times that the sequence is shown."""
    sequence: str = ""
    """Names of domains in the order of visits, with repeats; empty for all, once each."""

    def __post_init__(self) -> None:
        if self.kind not in DATASET_KINDS:
            raise unknown_name_error(
                "kind", self.kind, DATASET_KINDS, of="stream", hint='"bitta streams" lists them.'
            )
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(self.window >= -1, "window", self.window, "0 or more, or -1")
        require(self.n_samples >= 0, "n_samples", self.n_samples, "0 or more")
        require(1 <= self.severity <= 5, "severity", self.severity, "1 to 5")
        require(0 <= self.colour_flip <= 1, "colour_flip", self.colour_flip, "0 to 1")
        # Both raise an error now if one of their settings is invalid.
        _ = Geometry(self.resize, self.crop)
        _ = self.arrangement
        for name in split_names(self.corruptions):
            if name not in CORRUPTIONS:
                raise unknown_name_error("corruption", name, CORRUPTIONS)
        if DATASET_KINDS[self.kind].needs_path and not self.path:
            raise SettingError(f"stream.path is missing; kind {self.kind!r} needs one.")
        if self.kind == "factory" and not self.factory:
            raise SettingError('stream.factory is missing; kind "factory" needs module:function.')
        self._refuse_unused_settings()

    def _refuse_unused_settings(self) -> None:
        known = DATASET_KINDS[self.kind].keys
        for setting in fields(self):
            given = getattr(self, setting.name)
            is_unused = setting.name in KIND_SPECIFIC_KEYS and setting.name not in known
            if is_unused and given != setting.default:
                raise SettingError(
                    f"stream.{setting.name} is {given!r}, but kind {self.kind!r} does not use "
                    f"it; it uses {', '.join(known)}."
                )

    @property
    def arrangement(self) -> Arrangement:
        """Order of the samples."""
        return Arrangement(
            order=self.order,
            labels=self.labels,
            beta=self.beta,
            rounds=self.rounds,
            sequence=split_names(self.sequence),
        )

    @property
    def window_size(self) -> int:
        """Samples that share statistics and learning; 0 if each batch is large enough."""
        return (64 if self.batch_size == 1 else 0) if self.window < 0 else self.window


def build_stream(
    config: StreamConfig, *, seed: int, preprocessing: Mapping[str, int] | None = None
) -> Stream:
    """Build the stream of an experiment. It is the same for every method.

    `preprocessing` is the resize and crop of the model card. Settings of the stream override it.
    """
    request = DatasetRequest(
        path=config.path,
        factory=config.factory,
        n_samples=config.n_samples,
        corruptions=split_names(config.corruptions),
        severities=(1, 2, 3, 4, 5) if config.order == "gradual" else (config.severity,),
        domains=split_names(config.domains),
        colour_flip=config.colour_flip,
        geometry=_image_geometry(config, preprocessing or {}),
        seed=seed,
    )
    domains, origin = DATASET_KINDS[config.kind].read(request)
    return Stream(
        domains,
        batch_size=config.batch_size,
        seed=seed,
        arrangement=config.arrangement,
        origin=origin,
    )


def _image_geometry(config: StreamConfig, preprocessing: Mapping[str, int]) -> Geometry:
    return Geometry(
        config.resize or preprocessing.get("resize", 0), config.crop or preprocessing.get("crop", 0)
    )


def split_names(text: str) -> tuple[str, ...]:
    """Split a list of names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True)
class ForgettingConfig(Config):
    """Measurement of the accuracy on clean images, before and after the stream."""

    n_samples: int = 0
    """Number of clean test images; 0 for no measurement."""
    path: str = ""
    """Folder of the clean images; empty for stream.path or, without one, where "bitta data get"
    puts them."""

    def __post_init__(self) -> None:
        require(self.n_samples >= 0, "n_samples", self.n_samples, "0 or more")


PredictLabels = Callable[[Tensor], Tensor]
"""Returns labels for a batch of inputs and changes nothing."""


class CleanImages:
    """A sample of the uncorrupted test images. It is the same for every method."""

    def __init__(self, domain: Domain, *, n_samples: int, batch_size: int, seed: int) -> None:
        order = torch.randperm(len(domain.labels), generator=generator(seed, "clean"))
        self._domain, self._rows = domain, order[:n_samples]
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._rows)

    def accuracy(self, predict: PredictLabels) -> float:
        """Return the percentage of correct predictions."""
        n_correct = 0
        for rows in self._rows.split(self._batch_size):
            labels = predict(as_floats(self._domain.images[rows])).cpu()
            n_correct += int((labels == self._domain.labels[rows]).sum())
        return 100 * n_correct / len(self)


def build_clean_images(
    config: ForgettingConfig,
    stream: StreamConfig,
    *,
    classes: Sequence[str],
    preprocessing: Mapping[str, int],
    seed: int,
) -> CleanImages | None:
    """Build the images on which forgetting is measured. `classes` are those of the stream."""
    if not config.n_samples:
        return None
    if stream.kind not in _CLEAN_READERS:
        raise SettingError(
            f"[forgetting] needs the clean images of a corrupted set, but kind {stream.kind!r} has "
            f"none; allowed: {', '.join(_CLEAN_READERS)}."
        )
    if config.path and stream.kind == "corruptions":
        raise SettingError(
            f"forgetting.path is {config.path!r}, but the clean images of kind 'corruptions' are "
            "embedded; leave it out."
        )
    geometry = _image_geometry(stream, preprocessing)
    domain = _CLEAN_READERS[stream.kind](config.path or stream.path, geometry)
    domain = _match_labels(domain, classes)
    batch_size = max(stream.batch_size, stream.window_size)
    return CleanImages(domain, n_samples=config.n_samples, batch_size=batch_size, seed=seed)


def _match_labels(domain: Domain, classes: Sequence[str]) -> Domain:
    """Renumber the labels as in the stream, and drop images of classes that it does not have."""
    if not classes or tuple(classes) == domain.classes:
        return domain
    indices = {name: index for index, name in enumerate(classes)}
    numbers = torch.tensor([indices.get(name, -1) for name in domain.classes])[domain.labels]
    rows = (numbers >= 0).nonzero().flatten()
    if not len(rows):
        raise InputError(
            f"the clean images of {domain.name!r} have none of the stream's classes; "
            "check forgetting.path."
        )
    return Domain(domain.name, SelectedImages(domain.images, rows), numbers[rows], tuple(classes))


def _read_embedded(path: str, geometry: Geometry) -> Domain:  # noqa: ARG001
    pack = embedded_pack("cifar10")
    return Domain("cifar10", pack.images, pack.labels, pack.classes)


def _read_cifar(path: str, geometry: Geometry, *, name: str, read: Callable[..., Domain]) -> Domain:  # noqa: ARG001
    return read(data_set_folder(name, path), train=False)


def _read_tiny_imagenet(path: str, geometry: Geometry) -> Domain:
    return read_tiny_imagenet(
        data_set_folder("tiny-imagenet", path), train=False, geometry=geometry
    )


_CLEAN_READERS: Mapping[str, Callable[[str, Geometry], Domain]] = {
    "corruptions": _read_embedded,
    "cifar10-c": partial(_read_cifar, name="cifar10", read=read_cifar10),
    "cifar100-c": partial(_read_cifar, name="cifar100", read=read_cifar100),
    "tiny-imagenet-c": _read_tiny_imagenet,
}
