"""What can be streamed: each kind of set, and how its domains are read or made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bitta.bench.corrupted import made_from
from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.errors import InputError, SettingError
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
    set_folder,
)

_DEMO = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What an experiment wants of a set."""

    path: str
    n_samples: int
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    domains: tuple[str, ...]
    colour_flip: float
    geometry: Geometry
    seed: int

    @property
    def sized(self) -> dict[str, Geometry]:
        """How pictures are brought to size, where anybody says so; else it is the reader's own."""
        return {"geometry": self.geometry} if self.geometry != Geometry() else {}

    def folder(self, name: str) -> Path:
        """Where a set lies, or what to run to get it."""
        return set_folder(name, self.path)

    def some(self, domain: Domain, *, kind: str = "") -> Domain:
        """At most so many samples as were asked for; the same of every severity of a kind."""
        rows = self.rows(len(domain.labels), kind or domain.name)
        return Domain(
            domain.name, SelectedImages(domain.images, rows), domain.labels[rows], domain.classes
        )

    @property
    def level(self) -> str:
        """The severities, for the protocol."""
        one = len(self.severities) == 1
        return f"severity {self.severities[0]}" if one else "severities 1 to 5"

    def rows(self, n_all: int, name: str) -> Tensor:
        """A random choice of rows, or all of them."""
        order = torch.randperm(n_all, generator=generator(self.seed, "sample", name))
        return order[: self.n_samples].sort().values if self.n_samples else torch.arange(n_all)


Read = Callable[[Request], tuple[list[Domain], str]]
"""Gives domains, and a line on where they come from."""


@dataclass(frozen=True)
class Kind:
    """One line of "bitta streams"."""

    summary: str
    read: Read
    keys: tuple[str, ...]
    """Keys of [stream] that mean something here, of those that only some kinds know."""
    needs_path: bool = False


class Corrupted(Images):
    """Images that are corrupted when the first of them is needed."""

    def __init__(
        self, images: Tensor | Images, rows: Tensor, *, name: str, severity: int, seed: int
    ) -> None:
        self._clean, self._rows = images, rows
        self._name, self._severity, self._seed = name, severity, seed
        self._made: Tensor | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Corrupted uint8 images."""
        made = self._corrupted() if self._made is None else self._made
        self._made = made
        return made[rows]

    @property
    def fingerprint(self) -> str:
        """Of the clean images, and of what is done to them."""
        clean = self._clean
        # A few of them corrupted, so that another generator makes another stream.
        few = corrupt(clean[self._rows[:2]], self._name, severity=self._severity, seed=self._seed)
        return hash_parts(
            clean if isinstance(clean, Tensor) else clean.fingerprint,
            self._rows,
            f"{self._name} {self._severity} {self._seed}",
            few,
        )

    def prepare(self) -> None:
        """Corrupt all of them."""
        if self._made is None:
            self._made = self._corrupted()

    def release(self) -> None:
        """Forget the corrupted ones."""
        self._made = None

    def _corrupted(self) -> Tensor:
        clean = self._clean[self._rows]
        return corrupt(clean, self._name, severity=self._severity, seed=self._seed)


def _made(clean: Domain, request: Request, names: Sequence[str]) -> list[Domain]:
    """A domain per corruption and severity."""
    domains = []
    for name in names:
        for severity in request.severities:
            rows = request.rows(len(clean.labels), name)
            images = Corrupted(clean.images, rows, name=name, severity=severity, seed=request.seed)
            title = _title(name, severity, request)
            domains.append(Domain(title, images, clean.labels[rows], clean.classes))
    return domains


def _title(name: str, severity: int, request: Request) -> str:
    return name if len(request.severities) == 1 else f"{name} {severity}"


def _digits(request: Request) -> tuple[list[Domain], str]:
    pack = embedded_pack("digits")
    return _coloured(pack.images, pack.labels, request), "embedded digits"


def _coloured_mnist(request: Request) -> tuple[list[Domain], str]:
    digits, numerals = read_mnist(request.folder("mnist"), train=True)
    # The published recipe: the last 20,000 training digits are the target.
    return _coloured(digits[40_000:], numerals[40_000:], request), "ColoredMNIST"


def _coloured(digits: Tensor, numerals: Tensor, request: Request) -> list[Domain]:
    rows = request.rows(len(numerals), "digits")
    images, clean, _ = coloured_digits(
        digits[rows], numerals[rows], colour_flip=request.colour_flip, seed=request.seed
    )
    return [Domain("target", images, clean, ("0 to 4", "5 to 9"))]


def _corruptions(request: Request) -> tuple[list[Domain], str]:
    pack = embedded_pack("cifar10")
    clean = Domain("cifar10", pack.images, pack.labels, pack.classes)
    origin = f"embedded CIFAR-10, {request.level}"
    return _made(clean, request, request.corruptions or _DEMO), origin


def _cifar_c(
    request: Request, *, name: str, read: Callable[..., Domain], classes: tuple[str, ...]
) -> tuple[list[Domain], str]:
    """The official arrays where they are; else corrupted here from the clean test images."""
    names = request.corruptions or tuple(CORRUPTIONS)
    folder = _with_arrays(request.path, name)
    if folder is None:
        clean = read(request.folder(name), train=False)
        return _made(clean, request, names), f"{name}-c {request.level}, corrupted by bitta"
    by_severity = [
        read_corrupted(folder, names, severity=severity, classes=classes)
        for severity in request.severities
    ]
    if (highest := int(by_severity[0][0].labels.max())) >= len(classes):
        raise InputError(
            f"labels in {str(folder)!r} go up to {highest}, but {name} has {len(classes)} classes; "
            "is this another set?"
        )
    return _by_kind(by_severity, request), f"{name}-c {request.level}, arrays on disk"


def _with_arrays(path: str, name: str) -> Path | None:
    """Where the arrays of this very set lie, if anywhere."""
    root = Path(path).expanduser() if path else data_folder()
    official = f"{name.upper().replace('CIFAR', 'CIFAR-')}-C"
    places = [root / f"{name}-c", root / f"{name}-c" / official, root / official]
    for place in [*places, *([root] if path else [])]:
        if (place / "labels.npy").is_file() and made_from(place) in (name, ""):
            return place
    return None


def _by_kind(by_severity: Sequence[Sequence[Domain]], request: Request) -> list[Domain]:
    """Corruption by corruption, each at all severities; the same samples at each of them."""
    return [
        request.some(
            Domain(_title(d.name, severity, request), d.images, d.labels, d.classes), kind=d.name
        )
        for together in zip(*by_severity, strict=True)
        for severity, d in zip(request.severities, together, strict=True)
    ]


def _tree_c(
    request: Request, *, name: str, read: Callable[..., list[Domain]]
) -> tuple[list[Domain], str]:
    folder = request.folder(name)
    names = request.corruptions or tuple(CORRUPTIONS)
    by_severity = [
        read(folder, names, severity=severity, **request.sized) for severity in request.severities
    ]
    return _by_kind(by_severity, request), f"{name} {request.level}"


def _folders(request: Request, *, name: str = "") -> tuple[list[Domain], str]:
    folder = request.folder(name) if name else Path(request.path)
    domains = read_folders(folder, domains=request.domains or None, geometry=request.geometry)
    return [request.some(domain) for domain in domains], name or folder.name


def _domainnet126(request: Request) -> tuple[list[Domain], str]:
    domains = read_domainnet126(
        request.folder("domainnet126"),
        domains=request.domains or DOMAINNET126_DOMAINS,
        **request.sized,
    )
    return [request.some(domain) for domain in domains], "domainnet126"


def _one(request: Request, *, name: str, read: Callable[..., Domain]) -> tuple[list[Domain], str]:
    return [request.some(read(request.folder(name), **request.sized))], name


def _arrays(request: Request) -> tuple[list[Domain], str]:
    if (name := made_from(Path(request.path))) != "":
        raise InputError(
            f"{request.path!r} holds a corrupted copy of {name}, all severities one after another; "
            f'use kind = "{name}-c".'
        )
    domains = [request.some(domain) for domain in read_arrays(request.path)]
    return _chosen(domains, request.domains), Path(request.path).name


def _chosen(domains: list[Domain], names: Sequence[str]) -> list[Domain]:
    by_name = {domain.name: domain for domain in domains}
    for name in names:
        if name not in by_name:
            raise SettingError(f"there is no domain {name!r}; there are {', '.join(by_name)}.")
    return [by_name[name] for name in names] or domains


_MADE = ("path", "corruptions", "severity")
_PICTURES = ("path", "resize", "crop")

KINDS: Mapping[str, Kind] = {
    "digits": Kind("coloured digits whose colour lies, embedded", _digits, ("colour_flip",)),
    "corruptions": Kind("2,000 CIFAR-10 images, corrupted, embedded", _corruptions,
                        ("corruptions", "severity")),
    "arrays": Kind("your own: an .npz, or a folder of .npy files", _arrays, ("path", "domains"),
                   needs_path=True),
    "folders": Kind("your own: a folder per domain, in it a folder per class", _folders,
                    (*_PICTURES, "domains"), needs_path=True),
    "cifar10-c": Kind("CIFAR-10-C; corrupted here if only CIFAR-10 is there",
                      partial(_cifar_c, name="cifar10", read=read_cifar10,
                              classes=CIFAR10_CLASSES), _MADE),
    "cifar100-c": Kind("CIFAR-100-C; corrupted here if only CIFAR-100 is there",
                       partial(_cifar_c, name="cifar100", read=read_cifar100,
                               classes=CIFAR100_CLASSES), _MADE),
    "tiny-imagenet-c": Kind("Tiny-ImageNet-C", partial(_tree_c, name="tiny-imagenet-c",
                                                       read=read_tiny_imagenet_c),
                            (*_MADE, *_PICTURES)),
    "imagenet-c": Kind("ImageNet-C", partial(_tree_c, name="imagenet-c", read=read_imagenet_c),
                       (*_MADE, *_PICTURES)),
    "imagenet-r": Kind("ImageNet-R, 200 classes", partial(_one, name="imagenet-r",
                                                          read=read_imagenet_r), _PICTURES),
    "pacs": Kind("PACS: art_painting, cartoon, photo, sketch", partial(_folders, name="pacs"),
                 (*_PICTURES, "domains")),
    "domainnet126": Kind("DomainNet-126: real, clipart, painting, sketch", _domainnet126,
                         (*_PICTURES, "domains")),
    "visda2021": Kind("VisDA-2021", partial(_one, name="visda2021", read=read_visda2021),
                      _PICTURES),
    "coloured-mnist": Kind("ColoredMNIST, the 20,000 digits of the target", _coloured_mnist,
                           ("path", "colour_flip")),
}  # fmt: skip
SPECIAL = ("path", "corruptions", "severity", "domains", "colour_flip", "resize", "crop")
"""Keys of [stream] that only some kinds know."""
