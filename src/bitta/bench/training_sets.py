"""Training sets of source models, with held-out images and augmentation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.errors import InputError
from bitta.seeding import Key, generator
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
    """Images to train on and images to measure on."""

    train: Domain
    held_out: tuple[Domain, ...]
    """Images for measurement. The first domain is also measured during training."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    terms: str
    preprocessing: Mapping[str, int]
    """Resize and crop of the images; empty if they were not changed."""


TrainingSetLoader = Callable[[Path, str, int], TrainingSet]
"""Reads a set. Arguments: folder, source domain, side of the images in pixels."""


def _cifar10(folder: Path, _source: str, _side: int) -> TrainingSet:
    return TrainingSet(
        read_cifar10(folder, train=True),
        (_rename("cifar10 test", read_cifar10(folder, train=False)),),
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        "CIFAR-10 training images (Krizhevsky, 2009)",
        "Weights: Apache-2.0. CIFAR-10 comes without a licence text; cite Krizhevsky, 2009.",
        {},
    )


def _cifar100(folder: Path, _source: str, _side: int) -> TrainingSet:
    return TrainingSet(
        read_cifar100(folder, train=True),
        (_rename("cifar100 test", read_cifar100(folder, train=False)),),
        (0.5071, 0.4865, 0.4409),
        (0.2673, 0.2564, 0.2762),
        "CIFAR-100 training images (Krizhevsky, 2009)",
        "Weights: Apache-2.0. CIFAR-100 comes without a licence text; cite Krizhevsky, 2009.",
        {},
    )


def _tiny_imagenet(folder: Path, _source: str, _side: int) -> TrainingSet:
    return TrainingSet(
        read_tiny_imagenet(folder, train=True),
        (_rename("tiny-imagenet val", read_tiny_imagenet(folder, train=False)),),
        *IMAGENET_PIXELS,
        "Tiny-ImageNet training images (Stanford CS231n)",
        "Weights: Apache-2.0. Tiny-ImageNet: ImageNet's terms of access, research only.",
        {},
    )


_N_SOURCE_DIGITS = 40_000
"""MNIST training digits of the source domains. The others are the target."""


def _digits(folder: Path, _source: str, _side: int) -> TrainingSet:
    """Grey MNIST digits, without those of the embedded pack."""
    images, labels = read_mnist(folder, train=True)
    train = slice(0, _N_SOURCE_DIGITS)
    return TrainingSet(
        _grey_domain("digits", images[train], labels[train]),
        (_grey_domain("mnist test", *read_mnist(folder, train=False)),),
        (0.1307,),
        (0.3081,),
        "MNIST training digits 0 to 39,999 (LeCun, Cortes and Burges)",
        "Weights: Apache-2.0. MNIST: CC BY-SA 3.0.",
        {},
    )


def _fashion_mnist(folder: Path, _source: str, _side: int) -> TrainingSet:
    return TrainingSet(
        _grey_domain("fashion-mnist", *read_mnist(folder, train=True)),
        (_grey_domain("fashion-mnist test", *read_mnist(folder, train=False)),),
        (0.2860,),
        (0.3530,),
        "Fashion-MNIST training images (Xiao, Rasul and Vollgraf, 2017)",
        "Weights: Apache-2.0. Fashion-MNIST: MIT.",
        {},
    )


def _grey_domain(name: str, images: Tensor, labels: Tensor) -> Domain:
    return Domain(name, images[:, None], labels, tuple("0123456789"))


def _coloured_digits(folder: Path, _source: str, _side: int) -> TrainingSet:
    """Colour the first 40,000 MNIST digits; the colour matches the label in 80 % or 90 %."""
    digits, numerals = read_mnist(folder, train=True)
    domains = []
    for index, name in enumerate(("source_1", "source_2")):
        rows = slice(20_000 * index, 20_000 * (index + 1))
        images, _, noisy = coloured_digits(
            digits[rows], numerals[rows], colour_flip=COLOUR_FLIPS[name], seed=0
        )
        domains.append((images, noisy))
    images, labels = (torch.cat(tensors) for tensors in zip(*domains, strict=True))
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
    for name, colour_flip in COLOUR_FLIPS.items():
        images, clean, noisy = coloured_digits(digits, numerals, colour_flip=colour_flip, seed=0)
        tests.append(Domain(f"{name} test, noisy labels", images, noisy))
        tests.append(Domain(f"{name} test, clean labels", images, clean))
    return tuple(tests)


def _pacs(folder: Path, source: str, side: int) -> TrainingSet:
    return _split_source_domain(
        folder,
        source,
        side,
        f"PACS, {source} (Li et al., 2017)",
        "Weights: Apache-2.0. PACS is given for research without a licence text; cite Li et al., "
        "2017.",
    )


def _folders(folder: Path, source: str, side: int) -> TrainingSet:
    return _split_source_domain(folder, source, side, f"{folder.name}, {source}", "")


def _split_source_domain(
    folder: Path, source: str, side: int, text: str, terms: str
) -> TrainingSet:
    """Train on nine tenths of a domain. Hold out a random tenth of it and all other domains."""
    size = {"resize": side, "crop": side}
    domains = {domain.name: domain for domain in read_folders(folder, geometry=Geometry(**size))}
    if source not in domains:
        raise InputError(
            f"there is no domain {source!r} in {str(folder)!r}; choose from {', '.join(domains)}."
        )
    domain = domains.pop(source)
    if len(domain.labels) < 2:
        raise InputError(f"domain {source!r} has one image; at least two are needed.")
    order = torch.randperm(len(domain.labels), generator=generator(0, "held out", source))
    tenth = max(1, len(order) // 10)
    return TrainingSet(
        _select_rows(domain, order[tenth:], source),
        (_select_rows(domain, order[:tenth], f"{source}, held out"), *domains.values()),
        *IMAGENET_PIXELS,
        text,
        terms,
        size,
    )


def _select_rows(domain: Domain, rows: Tensor, name: str) -> Domain:
    return Domain(name, SelectedImages(domain.images, rows), domain.labels[rows], domain.classes)


def _rename(name: str, domain: Domain) -> Domain:
    return Domain(name, domain.images, domain.labels, domain.classes)


LOADERS: Mapping[str, TrainingSetLoader] = {
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "digits": _digits,
    "coloured_digits": _coloured_digits,
    "fashion-mnist": _fashion_mnist,
    "tiny-imagenet": _tiny_imagenet,
    "pacs": _pacs,
    "folders": _folders,
}
FOLDER_NAMES = {"digits": "mnist", "coloured_digits": "mnist"}
"""Sets whose folder has another name."""


Augmentation = Callable[[Tensor, Key], Tensor]


def shift_images(images: Tensor, key: Key) -> Tensor:
    """Mirror half of the images, and shift each by up to an eighth of its side. Pad with black."""
    n, _, height, width = images.shape
    reach = max(1, height // 8)
    random = generator(*key)
    draws = torch.randint(0, 2 * reach + 1, (2, n), generator=random).to(images.device)
    padded = F.pad(_mirror_half(images, random), [reach] * 4)
    ys = draws[0, :, None] + torch.arange(height, device=images.device)
    xs = draws[1, :, None] + torch.arange(width, device=images.device)
    samples = torch.arange(n, device=images.device)[:, None, None, None]
    channels = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
    return padded[samples, channels, ys[:, None, :, None], xs[:, None, None, :]]


def zoom_images(images: Tensor, key: Key) -> Tensor:
    """Mirror half of the images, and enlarge a random part of each, 60 to 100 % of its area."""
    random = generator(*key)
    n = len(images)
    share = (0.6 + 0.4 * torch.rand(n, generator=random)).sqrt()
    shift = (2 * torch.rand(2, n, generator=random) - 1) * (1 - share)
    maps = torch.zeros(n, 2, 3)
    maps[:, 0, 0] = maps[:, 1, 1] = share
    maps[:, 0, 2], maps[:, 1, 2] = shift
    pixels = _mirror_half(images, random).float()
    grid = F.affine_grid(maps.to(images.device), list(images.shape), align_corners=False)
    sampled = F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)
    return sampled.round_().to(torch.uint8)


def _mirror_half(images: Tensor, random: torch.Generator) -> Tensor:
    mirror = (torch.rand(len(images), generator=random) < 0.5).to(images.device)
    return torch.where(mirror[:, None, None, None], images.flip(-1), images)


AUGMENTATIONS: Mapping[str, Augmentation] = {
    "none": lambda images, _key: images,
    "shift": shift_images,
    "zoom": zoom_images,
}
