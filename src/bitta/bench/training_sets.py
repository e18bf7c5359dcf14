"""Images to learn from, and images to be judged on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.seeding import generator
from bitta.streams import (
    COLOUR_FLIPS,
    Domain,
    Geometry,
    SelectedImages,
    coloured_digits,
    read_cifar10,
    read_cifar100,
    read_folders,
    read_mnist,
    read_tiny_imagenet,
)

IMAGENET_PIXELS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """What a source model is trained on."""

    train: Domain
    held_out: tuple[Domain, ...]
    """The first one is watched during training."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    terms: str
    preprocessing: Mapping[str, int]
    """How pictures were brought to size; empty where they had it."""


Loader = Callable[[Path, str, int], TrainingSet]
"""From folder, source domain and side of the pictures."""


def _cifar10(folder: Path, _source: str, _side: int) -> TrainingSet:
    return TrainingSet(
        read_cifar10(folder, train=True),
        (_named("cifar10 test", read_cifar10(folder, train=False)),),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        "CIFAR-10 training images (Krizhevsky, 2009)",
        "Weights: Apache-2.0. CIFAR-10 comes without a licence text; cite Krizhevsky, 2009.",
        {},
    )


def _cifar100(folder: Path, _source: str, _side: int) -> TrainingSet:
    return TrainingSet(
        read_cifar100(folder, train=True),
        (_named("cifar100 test", read_cifar100(folder, train=False)),),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        "CIFAR-100 training images (Krizhevsky, 2009)",
        "Weights: Apache-2.0. CIFAR-100 comes without a licence text; cite Krizhevsky, 2009.",
        {},
    )


def _tiny_imagenet(folder: Path, _source: str, _side: int) -> TrainingSet:
    return TrainingSet(
        read_tiny_imagenet(folder, train=True),
        (_named("tiny-imagenet val", read_tiny_imagenet(folder, train=False)),),
        *IMAGENET_PIXELS,
        "Tiny-ImageNet training images (Stanford CS231n)",
        "Weights: Apache-2.0. Tiny-ImageNet: ImageNet's terms of access, research only.",
        {},
    )


def _coloured_digits(folder: Path, _source: str, _side: int) -> TrainingSet:
    """The first 40,000 MNIST training digits; the colour tells the label in 80 and 90 %."""
    digits, numerals = read_mnist(folder, train=True)
    parts = []
    for place, name in enumerate(("source_1", "source_2")):
        rows = slice(20_000 * place, 20_000 * (place + 1))
        images, _, noisy = coloured_digits(
            digits[rows], numerals[rows], colour_flip=COLOUR_FLIPS[name], seed=0
        )
        parts.append((images, noisy))
    images, labels = (torch.cat(halves) for halves in zip(*parts, strict=True))
    return TrainingSet(
        Domain("source", images, labels, ("0 to 4", "5 to 9")),
        _coloured_tests(*read_mnist(folder, train=False)),
        (0.066, 0.066, 0.001),
        (0.22, 0.22, 0.22),
        "MNIST training digits 0 to 39,999 (LeCun, Cortes and Burges), coloured",
        "Weights: Apache-2.0. MNIST: CC BY-SA 3.0.",
        {},
    )


def _coloured_tests(digits: Tensor, numerals: Tensor) -> tuple[Domain, ...]:
    tests = []
    for name, chance in COLOUR_FLIPS.items():
        images, clean, noisy = coloured_digits(digits, numerals, colour_flip=chance, seed=0)
        tests.append(Domain(f"{name} test, noisy labels", images, noisy))
        tests.append(Domain(f"{name} test, clean labels", images, clean))
    return tuple(tests)


def _pacs(folder: Path, source: str, side: int) -> TrainingSet:
    return _one_domain(
        folder,
        source,
        side,
        f"PACS, {source} (Li et al., 2017)",
        "Weights: Apache-2.0. PACS is given for research without a licence text; cite Li et al., "
        "2017.",
    )


def _folders(folder: Path, source: str, side: int) -> TrainingSet:
    return _one_domain(folder, source, side, f"{folder.name}, {source}", "")


def _one_domain(folder: Path, source: str, side: int, text: str, terms: str) -> TrainingSet:
    """Nine tenths of a domain to learn from; the last tenth and the other domains to measure."""
    size = {"resize": side, "crop": side}
    domains = {domain.name: domain for domain in read_folders(folder, geometry=Geometry(**size))}
    if source not in domains:
        raise InputError(
            f"there is no domain {source!r} in {str(folder)!r}; there are {', '.join(domains)}."
        )
    whole = domains.pop(source)
    if len(whole.labels) < 2:
        raise InputError(f"domain {source!r} holds one picture; some are needed to measure on.")
    order = torch.randperm(len(whole.labels), generator=generator(0, "held out", source))
    tenth = max(1, len(order) // 10)
    return TrainingSet(
        _some(whole, order[tenth:], source),
        (_some(whole, order[:tenth], f"{source}, held out"), *domains.values()),
        *IMAGENET_PIXELS,
        text,
        terms,
        size,
    )


def _some(domain: Domain, rows: Tensor, name: str) -> Domain:
    return Domain(name, SelectedImages(domain.images, rows), domain.labels[rows], domain.classes)


def _named(name: str, domain: Domain) -> Domain:
    return Domain(name, domain.images, domain.labels, domain.classes)


LOADERS: Mapping[str, Loader] = {
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "coloured_digits": _coloured_digits,
    "tiny-imagenet": _tiny_imagenet,
    "pacs": _pacs,
    "folders": _folders,
}
FOLDER_NAMES = {"coloured_digits": "mnist"}
"""Sets whose files lie under another name."""
