"""Train a source model with the paper's recipe: SGD, momentum .9, cosine from .1."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.bench.device import device_named
from bitta.bench.toml import read_toml, section
from bitta.config import Config, build, require
from bitta.errors import unknown
from bitta.models import ModelCard, build_model, initialise, save_model
from bitta.seeding import generator
from bitta.statefile import check_writable
from bitta.streams import CHANCES, CIFAR10_CLASSES, coloured_digits, read_cifar, read_mnist


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """How a source model is trained."""

    data: str = "cifar10"
    """Which set: cifar10 or coloured_digits."""
    architecture: str = "resnet8"
    """Which model."""
    epochs: int = 200
    """Passes over the training images."""
    batch_size: int = 128
    """Images per step."""
    lr: float = 0.1
    """First step size, lowered to 0 along a cosine."""
    momentum: float = 0.9
    """Nesterov momentum."""
    weight_decay: float = 5e-4
    """Weight decay on all parameters."""
    augment: bool = True
    """Random mirror and shift by up to four pixels."""
    seed: int = 0
    """Initial weights, order and augmentation."""

    def __post_init__(self) -> None:
        if self.data not in LOADERS:
            raise unknown("data", self.data, LOADERS)
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "2 or more")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(0 < self.momentum < 1, "momentum", self.momentum, "above 0 and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Images to learn from, and images to be judged on."""

    images: Tensor
    labels: Tensor
    held_out: Mapping[str, tuple[Tensor, Tensor]]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    terms: str


def read_recipe(path: str | Path) -> Recipe:
    """A recipe from the [pretrain] table of a TOML file."""
    return build(Recipe, section(read_toml(path), "pretrain"), preset=None, of="[pretrain]")


def pretrain(
    recipe: Recipe,
    *,
    folder: str | Path,
    out: str | Path,
    device: str = "cpu",
    on_epoch: Callable[[int, float, float], None] = lambda *_: None,
) -> ModelCard:
    """Train, measure, write weights with their card; `on_epoch` gets number, loss, accuracy."""
    place = device_named(device)
    check_writable(Path(out).parent)
    data = LOADERS[recipe.data](folder)
    arguments = {"n_classes": len(data.classes), "mean": data.mean, "std": data.std}
    model = build_model(recipe.architecture, **arguments)
    initialise(model, seed=recipe.seed)
    model.to(place)
    images, labels = data.images.to(place), data.labels.to(place)
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
    )
    steps = recipe.epochs * (len(labels) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=steps)
    first = next(iter(data.held_out))
    for epoch in range(recipe.epochs):
        model.train()
        total = torch.zeros((), device=place)
        rows = torch.randperm(len(labels), generator=generator(recipe.seed, "order", epoch))
        batches = rows.to(place).split(recipe.batch_size)[: len(labels) // recipe.batch_size]
        for number, batch in enumerate(batches):
            pixels = images[batch].float() / 255
            if recipe.augment:
                pixels = _augmented(pixels, generator(recipe.seed, "augment", epoch, number))
            loss = F.cross_entropy(model(pixels), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.detach()
        on_epoch(epoch + 1, total.item() / len(batches), _accuracy(model, *data.held_out[first]))
    card = ModelCard(
        architecture=recipe.architecture,
        arguments=arguments,
        classes=data.classes,
        input_shape=tuple(images.shape[1:]),
        accuracy={name: _accuracy(model, *test) for name, test in data.held_out.items()},
        source=data.source,
        recipe=asdict(recipe),
        terms=data.terms,
    )
    save_model(out, model, card)
    return card


def _cifar10(folder: str | Path) -> TrainingSet:
    images, labels = read_cifar(folder, train=True)
    return TrainingSet(
        images,
        labels,
        {"cifar10 test": read_cifar(folder, train=False)},
        CIFAR10_CLASSES,
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        "CIFAR-10 training images (Krizhevsky, 2009)",
        "Weights: Apache-2.0. CIFAR-10 comes without a licence text; cite Krizhevsky, 2009.",
    )


def _coloured_digits(folder: str | Path) -> TrainingSet:
    """The first 40,000 MNIST training digits; the colour tells the label in 80 and 90 %."""
    digits, numerals = read_mnist(folder, train=True)
    parts = []
    for place, name in enumerate(("source_1", "source_2")):
        rows = slice(20_000 * place, 20_000 * (place + 1))
        images, _, noisy = coloured_digits(
            digits[rows], numerals[rows], colour_flip=CHANCES[name], seed=0
        )
        parts.append((images, noisy))
    test_digits, test_numerals = read_mnist(folder, train=False)
    held_out = {}
    for name, chance in CHANCES.items():
        images, clean, noisy = coloured_digits(
            test_digits, test_numerals, colour_flip=chance, seed=0
        )
        held_out[f"{name} test, noisy labels"] = (images, noisy)
        held_out[f"{name} test, clean labels"] = (images, clean)
    return TrainingSet(
        torch.cat([images for images, _ in parts]),
        torch.cat([noisy for _, noisy in parts]),
        held_out,
        ("0 to 4", "5 to 9"),
        (0.066, 0.066, 0.001),
        (0.22, 0.22, 0.22),
        "MNIST training digits 0 to 39,999 (LeCun, Cortes and Burges), coloured",
        "Weights: Apache-2.0. MNIST: CC BY-SA 3.0.",
    )


LOADERS: Mapping[str, Callable[[str | Path], TrainingSet]] = {
    "cifar10": _cifar10,
    "coloured_digits": _coloured_digits,
}


def _augmented(pixels: Tensor, chance: torch.Generator) -> Tensor:
    """Mirror half of the images; shift each by up to four pixels, black coming in."""
    n, _, height, width = pixels.shape
    draws = torch.randint(0, 9, (2, n), generator=chance).to(pixels.device)
    mirror = (torch.rand(n, generator=chance) < 0.5).to(pixels.device)
    pixels = torch.where(mirror[:, None, None, None], pixels.flip(-1), pixels)
    padded = F.pad(pixels, [4] * 4)
    ys = draws[0, :, None] + torch.arange(height, device=pixels.device)
    xs = draws[1, :, None] + torch.arange(width, device=pixels.device)
    samples = torch.arange(n, device=pixels.device)[:, None, None, None]
    channels = torch.arange(pixels.shape[1], device=pixels.device)[None, :, None, None]
    return padded[samples, channels, ys[:, None, :, None], xs[:, None, None, :]]


@torch.no_grad()
def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Percent of labels that the model gets right."""
    model.eval()
    device = next(model.parameters()).device
    right = sum(
        int((model(pixels.to(device).float() / 255).argmax(-1).cpu() == truth).sum().item())
        for pixels, truth in zip(images.split(512), labels.split(512), strict=True)
    )
    return round(100 * right / len(labels), 2)
