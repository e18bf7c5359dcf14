"""Kinds of data that can be streamed, and functions that read or make their domains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bitta.bench.make_corrupted import name_of_corrupted_set
from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.errors import InputError, SettingError
from bitta.models import call_factory
from bitta.seeding import generator
from bitta.streams import (
    CIFAR10_CLASSES,
    CIFAR100_CLASSES,
    DOMAINNET126_DOMAINS,
    Domain,
    Geometry,
    Images,
    SelectedImages,
    coloured_digits,
    data_folder,
    data_set_folder,
    embedded_pack,
    hash_parts,
    read_arrays,
    read_cifar10,
    read_cifar100,
    read_corrupted,
    read_domainnet126,
    read_folders,
    read_imagenet_c,
    read_imagenet_r,
    read_mnist,
    read_tiny_imagenet_c,
    read_visda2021,
)

_DEFAULT_CORRUPTIONS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")


@dataclass(frozen=True, kw_only=True)
class DatasetRequest:
    """Settings of an experiment that decide which samples are read."""

    path: str
    factory: str
    n_samples: int
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    domains: tuple[str, ...]
    colour_flip: float
    geometry: Geometry
    seed: int

    @property
    def geometry_argument(self) -> dict[str, Geometry]:
        """Keyword argument `geometry` for a reader; empty if the reader uses its own default."""
        return {"geometry": self.geometry} if self.geometry != Geometry() else {}

    def folder(self, name: str) -> Path:
        """Return the folder of a set. If it is missing, raise an error that says how to get it."""
        return data_set_folder(name, self.path)

    def sample(self, domain: Domain, *, name: str = "") -> Domain:
        """Draw `n_samples` random samples of a domain. The same `name` gives the same rows."""
        rows = self.rows(len(domain.labels), name or domain.name)
        images = SelectedImages(domain.images, rows)
        return Domain(domain.name, images, domain.labels[rows], domain.classes, rows)

    @property
    def severity_text(self) -> str:
        """Severities, for the protocol line."""
        if len(self.severities) == 1:
            return f"severity {self.severities[0]}"
        return "severities 1 to 5"

    def rows(self, n_all: int, name: str) -> Tensor:
        """Return a random choice of rows, or all of them."""
        order = torch.randperm(n_all, generator=generator(self.seed, "sample", name))
        return order[: self.n_samples].sort().values if self.n_samples else torch.arange(n_all)


DatasetReader = Callable[[DatasetRequest], tuple[list[Domain], str]]
"""Returns domains, and their origin for the protocol line."""


@dataclass(frozen=True)
class DatasetKind:
    """One kind of data, as "bitta streams" lists it."""

    summary: str
    read: DatasetReader
    keys: tuple[str, ...]
    """Keys in `KIND_SPECIFIC_KEYS` that this kind uses."""
    needs_path: bool = False


class CorruptedImages(Images):
    """Images that are corrupted when the first of them is read."""

    def __init__(
        self, images: Tensor | Images, rows: Tensor, *, name: str, severity: int, seed: int
    ) -> None:
        self._clean, self._rows = images, rows
        self._name, self._severity, self._seed = name, severity, seed
        self._corrupted: Tensor | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return corrupted uint8 images."""
        if self._corrupted is None:
            self._corrupted = self._corrupt(self._rows)
        return self._corrupted[rows]

    @property
    def fingerprint(self) -> str:
        """Hash of the clean images and of the corruption."""
        clean = self._clean
        # Include two corrupted images: a change to the corruption code changes the fingerprint.
        examples = self._corrupt(self._rows[:2])
        return hash_parts(
            clean if isinstance(clean, Tensor) else clean.fingerprint,
            self._rows,
            f"{self._name} {self._severity} {self._seed}",
            examples,
        )

    def prepare(self) -> None:
        """Corrupt all images."""
        if self._corrupted is None:
            self._corrupted = self._corrupt(self._rows)

    def release(self) -> None:
        """Free the corrupted images."""
        self._corrupted = None

    def _corrupt(self, rows: Tensor) -> Tensor:
        clean = self._clean[rows]
        return corrupt(clean, self._name, severity=self._severity, seed=self._seed)


def _corrupt_domain(clean: Domain, request: DatasetRequest, names: Sequence[str]) -> list[Domain]:
    """Return a domain per corruption and severity."""
    domains = []
    for name in names:
        for severity in request.severities:
            rows = request.rows(len(clean.labels), name)
            images = CorruptedImages(
                clean.images, rows, name=name, severity=severity, seed=request.seed
            )
            title = _domain_name(name, severity, request)
            domains.append(Domain(title, images, clean.labels[rows], clean.classes, rows))
    return domains


def _domain_name(name: str, severity: int, request: DatasetRequest) -> str:
    return name if len(request.severities) == 1 else f"{name} {severity}"


def _read_digits(request: DatasetRequest) -> tuple[list[Domain], str]:
    pack = embedded_pack("digits")
    return _colour_digits(pack.images, pack.labels, request), "embedded digits"


def _read_coloured_mnist(request: DatasetRequest) -> tuple[list[Domain], str]:
    digits, numerals = read_mnist(request.folder("mnist"), train=True)
    # As in the published recipe, the last 20,000 training digits are the target domain.
    return _colour_digits(digits[40_000:], numerals[40_000:], request), "ColoredMNIST"


def _colour_digits(digits: Tensor, numerals: Tensor, request: DatasetRequest) -> list[Domain]:
    rows = request.rows(len(numerals), "digits")
    images, clean, _ = coloured_digits(
        digits[rows], numerals[rows], colour_flip=request.colour_flip, seed=request.seed
    )
    return [Domain("target", images, clean, ("0 to 4", "5 to 9"))]


def _read_embedded_corruptions(request: DatasetRequest) -> tuple[list[Domain], str]:
    pack = embedded_pack("cifar10")
    clean = Domain("cifar10", pack.images, pack.labels, pack.classes)
    origin = f"embedded CIFAR-10, {request.severity_text}"
    return _corrupt_domain(clean, request, request.corruptions or _DEFAULT_CORRUPTIONS), origin


def _read_cifar_c(
    request: DatasetRequest, *, name: str, read: Callable[..., Domain], classes: tuple[str, ...]
) -> tuple[list[Domain], str]:
    """Read the official arrays. Without them, corrupt the clean test images."""
    names = request.corruptions or tuple(CORRUPTIONS)
    folder = _find_arrays(request.path, name)
    if folder is None:
        clean = read(request.folder(name), train=False)
        return _corrupt_domain(
            clean, request, names
        ), f"{name}-c {request.severity_text}, corrupted by bitta"
    by_severity = [
        read_corrupted(folder, names, severity=severity, classes=classes)
        for severity in request.severities
    ]
    if (highest := int(by_severity[0][0].labels.max())) >= len(classes):
        raise InputError(
            f"labels in {str(folder)!r} go up to {highest}, but {name} has {len(classes)} classes; "
            "check stream.path."
        )
    return _by_corruption(by_severity, request), f"{name}-c {request.severity_text}, arrays on disk"


def _find_arrays(path: str, name: str) -> Path | None:
    """Return the folder that holds the arrays of this set, if there is one."""
    root = Path(path).expanduser() if path else data_folder()
    official = f"{name.upper().replace('CIFAR', 'CIFAR-')}-C"
    candidates = [root / f"{name}-c", root / f"{name}-c" / official, root / official]
    for folder in [*candidates, *([root] if path else [])]:
        if (folder / "labels.npy").is_file() and name_of_corrupted_set(folder) in (name, ""):
            return folder
    return None


def _by_corruption(
    by_severity: Sequence[Sequence[Domain]], request: DatasetRequest
) -> list[Domain]:
    """Order domains by corruption, then severity. All severities have the same samples."""
    return [
        request.sample(
            Domain(_domain_name(d.name, severity, request), d.images, d.labels, d.classes),
            name=d.name,
        )
        for domains in zip(*by_severity, strict=True)
        for severity, d in zip(request.severities, domains, strict=True)
    ]


def _read_corrupted_tree(
    request: DatasetRequest, *, name: str, read: Callable[..., list[Domain]]
) -> tuple[list[Domain], str]:
    folder = request.folder(name)
    names = request.corruptions or tuple(CORRUPTIONS)
    by_severity = [
        read(folder, names, severity=severity, **request.geometry_argument)
        for severity in request.severities
    ]
    return _by_corruption(by_severity, request), f"{name} {request.severity_text}"


def _read_folders(request: DatasetRequest, *, name: str = "") -> tuple[list[Domain], str]:
    folder = request.folder(name) if name else Path(request.path)
    domains = read_folders(folder, domains=request.domains or None, geometry=request.geometry)
    return [request.sample(domain) for domain in domains], name or folder.name


def _read_domainnet126(request: DatasetRequest) -> tuple[list[Domain], str]:
    domains = read_domainnet126(
        request.folder("domainnet126"),
        domains=request.domains or DOMAINNET126_DOMAINS,
        **request.geometry_argument,
    )
    return [request.sample(domain) for domain in domains], "domainnet126"


def _read_one_domain(
    request: DatasetRequest, *, name: str, read: Callable[..., Domain]
) -> tuple[list[Domain], str]:
    return [request.sample(read(request.folder(name), **request.geometry_argument))], name


def _read_arrays(request: DatasetRequest) -> tuple[list[Domain], str]:
    if (name := name_of_corrupted_set(Path(request.path))) != "":
        raise InputError(
            f"{request.path!r} holds a corrupted copy of {name}, all severities one after another; "
            f'use kind = "{name}-c".'
        )
    domains = [request.sample(domain) for domain in read_arrays(request.path)]
    return _select_domains(domains, request.domains), Path(request.path).name


def _read_from_factory(request: DatasetRequest) -> tuple[list[Domain], str]:
    domains = call_factory(request.factory, of="stream.factory")
    if not isinstance(domains, list) or not all(isinstance(d, Domain) for d in domains):
        raise SettingError(
            f"stream.factory {request.factory!r} returned a {type(domains).__name__}; return a "
            "list of bitta.streams.Domain."
        )
    chosen = _select_domains(domains, request.domains)
    return [request.sample(domain) for domain in chosen], request.factory


def _select_domains(domains: list[Domain], names: Sequence[str]) -> list[Domain]:
    by_name = {domain.name: domain for domain in domains}
    for name in names:
        if name not in by_name:
            raise SettingError(f"there is no domain {name!r}; choose from {', '.join(by_name)}.")
    return [by_name[name] for name in names] or domains


_CORRUPTION_KEYS = ("path", "corruptions", "severity")
_IMAGE_KEYS = ("path", "resize", "crop")

DATASET_KINDS: Mapping[str, DatasetKind] = {
    "digits": DatasetKind(
        "coloured digits with misleading colours, embedded", _read_digits, ("colour_flip",)
    ),
    "corruptions": DatasetKind(
        "2,000 CIFAR-10 images, corrupted, embedded",
        _read_embedded_corruptions,
        ("corruptions", "severity"),
    ),
    "arrays": DatasetKind(
        "your own: an .npz, or a folder of .npy files",
        _read_arrays,
        ("path", "domains"),
        needs_path=True,
    ),
    "factory": DatasetKind(
        "your own: a function that returns domains",
        _read_from_factory,
        ("factory", "domains"),
    ),
    "folders": DatasetKind(
        "your own: a folder per domain, in it a folder per class",
        _read_folders,
        (*_IMAGE_KEYS, "domains"),
        needs_path=True,
    ),
    "cifar10-c": DatasetKind(
        "CIFAR-10-C; corrupted here if only CIFAR-10 is there",
        partial(_read_cifar_c, name="cifar10", read=read_cifar10, classes=CIFAR10_CLASSES),
        _CORRUPTION_KEYS,
    ),
    "cifar100-c": DatasetKind(
        "CIFAR-100-C; corrupted here if only CIFAR-100 is there",
        partial(_read_cifar_c, name="cifar100", read=read_cifar100, classes=CIFAR100_CLASSES),
        _CORRUPTION_KEYS,
    ),
    "tiny-imagenet-c": DatasetKind(
        "Tiny-ImageNet-C",
        partial(_read_corrupted_tree, name="tiny-imagenet-c", read=read_tiny_imagenet_c),
        (*_CORRUPTION_KEYS, *_IMAGE_KEYS),
    ),
    "imagenet-c": DatasetKind(
        "ImageNet-C",
        partial(_read_corrupted_tree, name="imagenet-c", read=read_imagenet_c),
        (*_CORRUPTION_KEYS, *_IMAGE_KEYS),
    ),
    "imagenet-r": DatasetKind(
        "ImageNet-R, 200 classes",
        partial(_read_one_domain, name="imagenet-r", read=read_imagenet_r),
        _IMAGE_KEYS,
    ),
    "pacs": DatasetKind(
        "PACS: art_painting, cartoon, photo, sketch",
        partial(_read_folders, name="pacs"),
        (*_IMAGE_KEYS, "domains"),
    ),
    "domainnet126": DatasetKind(
        "DomainNet-126: real, clipart, painting, sketch",
        _read_domainnet126,
        (*_IMAGE_KEYS, "domains"),
    ),
    "visda2021": DatasetKind(
        "VisDA-2021", partial(_read_one_domain, name="visda2021", read=read_visda2021), _IMAGE_KEYS
    ),
    "coloured-mnist": DatasetKind(
        "ColoredMNIST, the 20,000 digits of the target",
        _read_coloured_mnist,
        ("path", "colour_flip"),
    ),
}
KIND_SPECIFIC_KEYS = (
    "path", "factory", "corruptions", "severity", "domains", "colour_flip", "resize", "crop",
)  # fmt: skip
"""Keys of [stream] that only some kinds use."""
