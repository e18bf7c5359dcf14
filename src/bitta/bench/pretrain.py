"""Train a source model by a recipe. Training that was killed continues from its checkpoint."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.bench.experiment import read_toml, section
from bitta.bench.models import device_named
from bitta.bench.training_sets import AUGMENTATIONS, FOLDER_NAMES, LOADERS, TrainingSet
from bitta.config_base import Config, build_config, require
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.models import (
    ARCHITECTURES,
    ModelCard,
    build_model,
    check_weights_path,
    describe_weights,
    initialise,
    load_model,
    read_card,
    save_model,
    to_half_precision,
    weights_path,
)
from bitta.results import describe_environment
from bitta.seeding import generator
from bitta.statefile import check_writable, load_state, save_state
from bitta.streams import Domain, data_set_folder
from bitta.types import State

_CHUNK_VALUES = 2**26
"""Number of pixel values that are augmented at a time."""
_N_MEASUREMENTS = 20
"""Number of times that accuracy is measured during training."""
_N_EAGER_UPDATES = 3
"""Number of eager updates before a CUDA graph is captured. In them, libraries choose kernels."""
PART_BYTES = 12_000_000
"""Maximum size of a file of half-precision weights. Larger weights are split, to fit into git."""


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Settings of the training of a source model."""

    data: str = "cifar10"
    """Training set: cifar10, cifar100, digits, coloured_digits, fashion-mnist, tiny-imagenet, pacs
    or folders."""
    source: str = ""
    """pacs, folders: domain to train on. A tenth of it and the other domains are held out."""
    side: int = 224
    """pacs, folders: side of the images in pixels, after scaling and cropping."""
    architecture: str = "resnet8"
    """Architecture of the model."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Changes to the architecture, such as {norm = "group"}."""
    start: str = ""
    """File of weights to start from. A head for other classes is replaced."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov momentum, or Adam."""
    epochs: int = 0
    """Passes over the training images."""
    iterations: int = 0
    """Number of updates, instead of epochs."""
    batch_size: int = 128
    """Images per update."""
    lr: float = 0.1
    """Learning rate at the beginning."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Schedule of the learning rate. cosine lowers it to 0."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """Weight decay on all parameters."""
    augment: Literal["none", "shift", "zoom"] = "shift"
    """shift: mirror, and shift by up to an eighth of the side; zoom: mirror, and enlarge a part."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the forward pass. Weights stay in float32."""
    channels_last: bool = False
    """Use the memory layout that is fast on GPUs."""
    seed: int = 0
    """Seed of initial weights, order and augmentation."""

    def __post_init__(self) -> None:
        if self.data not in LOADERS:
            raise unknown_name_error("data", self.data, LOADERS)
        if self.architecture not in ARCHITECTURES:
            raise unknown_name_error("architecture", self.architecture, ARCHITECTURES)
        require(self.epochs >= 0, "epochs", self.epochs, "0 or more")
        require(self.iterations >= 0, "iterations", self.iterations, "0 or more")
        if (self.epochs > 0) == (self.iterations > 0):
            raise SettingError(
                f"epochs is {self.epochs} and iterations is {self.iterations}; give one of them."
            )
        if self.start and self.arguments:
            raise SettingError(
                f"start is {self.start!r} and arguments is {self.arguments!r}; give one of them, "
                "because the weights have their own arguments."
            )
        if (self.data in ("pacs", "folders")) != bool(self.source):
            raise SettingError(
                f'source is {self.source!r} and data is {self.data!r}; data = "pacs" or "folders" '
                "needs a source domain, and no other set has one."
            )
        require(self.side >= 8, "side", self.side, "8 or more")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "2 or more")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(0 < self.momentum < 1, "momentum", self.momentum, "above 0 and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe from the table [pretrain] of a TOML file."""
    table = read_toml(path)
    for key in table:
        if key != "pretrain":
            raise unknown_name_error("key", key, ["pretrain"])
    return build_config(Recipe, section(table, "pretrain"), preset=None, of="[pretrain]")


class Trainer:
    """Updates a model batch by batch. On a GPU, forward and backward pass run as a CUDA graph.

    The learning rate depends on the number of the update only, so training can be resumed.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, *, n_updates: int) -> None:
        self.model = model
        self.recipe = recipe
        self.n_updates = n_updates
        self.n_updates_done = 0
        self.device = next(model.parameters()).device
        self.layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self._optimiser = _build_optimiser(model, recipe, fused=self.device.type == "cuda")
        self._graph: torch.cuda.CUDAGraph | None = None
        self._n_eager_updates = 0
        self._pixels = self._labels = self._loss = torch.empty(0)

    def update(self, images: Tensor, labels: Tensor) -> Tensor:
        """Learn from one batch of uint8 images. Every batch must have the same size."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.lr
        if self.device.type == "cuda" and self._n_eager_updates >= _N_EAGER_UPDATES:
            loss = self._replay(images, labels)
        else:
            self._optimiser.zero_grad(set_to_none=True)
            loss = self._backward(self._as_pixels(images), labels)
            self._n_eager_updates += 1
        self._optimiser.step()
        self.n_updates_done += 1
        return loss

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        if self.recipe.schedule == "constant":
            return self.recipe.lr
        return self.recipe.lr * (1 + math.cos(math.pi * self.n_updates_done / self.n_updates)) / 2

    @torch.no_grad()
    def count_correct(self, images: Tensor, labels: Tensor) -> int:
        """Count the correct predictions, computed in full precision."""
        pixels = self._as_pixels(images.to(self.device))
        largest, predicted = self.model(pixels).max(-1)
        return int(((predicted == labels.to(self.device)) & largest.isfinite()).sum())

    def state_dict(self) -> State:
        """Return weights, optimiser state and number of updates."""
        slots = self._optimiser.state_dict()["state"]
        return {
            "step": self.n_updates_done,
            "weights": self.model.state_dict(),
            "optimiser": {str(index): slot for index, slot in slots.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state."""
        self.n_updates_done = state["step"]
        self.model.load_state_dict(state["weights"])
        slots = {int(index): slot for index, slot in state["optimiser"].items()}
        self._optimiser.load_state_dict(self._optimiser.state_dict() | {"state": slots})

    def _as_pixels(self, images: Tensor) -> Tensor:
        return (images.float() / 255).contiguous(memory_format=self.layout)

    def _autocast(self) -> AbstractContextManager[None]:
        is_half = self.recipe.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=is_half)

    def _backward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        with self._autocast():
            loss = F.cross_entropy(self.model(pixels), labels)
        loss.backward()
        return loss.detach()

    def _replay(self, images: Tensor, labels: Tensor) -> Tensor:
        pixels = self._as_pixels(images)
        if self._graph is None:
            self._pixels, self._labels = pixels.clone(), labels.clone()
            self._optimiser.zero_grad(set_to_none=True)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._loss = self._backward(self._pixels, self._labels)
        self._pixels.copy_(pixels)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._loss.clone()


def _build_optimiser(model: nn.Module, recipe: Recipe, *, fused: bool) -> torch.optim.Optimizer:
    if recipe.optimiser == "adam":
        return torch.optim.Adam(
            model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=fused
        )
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
        fused=fused,
    )


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Record of one pass over the training images."""

    number: int
    loss: float
    accuracy: float | None
    """Percentage of correct predictions on the first held-out set; None if it was not measured."""
    seconds: float


class TrainingStopped(Exception):  # noqa: N818 (requested, not an error)
    """Raised when training stops on request. The checkpoint holds the training so far."""


def training_checkpoint_path(out: Path) -> Path:
    """Return the path of the checkpoint of unfinished training."""
    return out.with_name(f"{out.stem}.checkpoint")


def pretrain(
    recipe: Recipe,
    *,
    out: Path,
    folder: str = "",
    device: str = "cpu",
    half: bool = False,
    resume: bool = False,
    checkpoint_seconds: float = 30.0,
    on_epoch: Callable[[EpochRecord, int], None] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[ModelCard, dict[str, Any]]:
    """Train, measure, and write the weights with their card. Return the card and a log.

    `half` writes half precision in parts of 12 MB and measures the rounded weights. `on_epoch` is
    called with the record of each epoch and the number of epochs. If `should_stop` returns True
    after an epoch, the training is saved and raises `TrainingStopped`.
    """
    target_device = device_named(device)
    check_weights_path(out)
    earlier = _read_earlier(out, recipe)
    if earlier is not None and resume and not training_checkpoint_path(out).exists():
        return earlier
    check_writable(out.parent)
    data = LOADERS[recipe.data](_find_folder(recipe, folder), recipe.source, recipe.side)
    model, card = _build_model(recipe, data)
    trainer = Trainer(model.to(target_device), recipe, n_updates=_count_updates(recipe, data))
    checkpoint = _TrainingCheckpoint(
        training_checkpoint_path(out), recipe, data, trainer, save_every_seconds=checkpoint_seconds
    )
    epochs = checkpoint.load() if resume else []
    images = data.train.images[torch.arange(len(data.train.labels))].to(target_device)
    n_epochs = -(-trainer.n_updates // _updates_per_epoch(recipe, data))
    for number in range(len(epochs), n_epochs):
        epochs.append(_run_epoch(trainer, images, data, number, n_epochs))
        on_epoch(epochs[-1], n_epochs)
        is_stopping = should_stop() and number + 1 < n_epochs
        if is_stopping or checkpoint.is_due:
            checkpoint.save(epochs)
        if is_stopping:
            raise TrainingStopped(f"stopped after epoch {number + 1} of {n_epochs}")
    if half:
        _round_to_half(model)
    card = replace(card, accuracy={d.name: _measure_accuracy(trainer, d) for d in data.held_out})
    paths = save_model(out, model, card, half=half, part_bytes=PART_BYTES if half else None)
    checkpoint.path.unlink(missing_ok=True)
    return card, _make_log(card, epochs, paths, target_device)


def _read_earlier(out: Path, recipe: Recipe) -> tuple[ModelCard, dict[str, Any]] | None:
    """Return card and log if the weights are finished. Refuse weights of another recipe."""
    if describe_weights(out, name="").n_files == 0:
        return None
    card = read_card(out)
    if not card.recipe or not card.recipe.items() <= asdict(recipe).items():
        raise InputError(
            f"{str(out)!r} holds weights of another recipe; give another --out, or remove them."
        )
    log = out.with_suffix(".json")
    return card, json.loads(log.read_text()) if log.exists() else {}


class _TrainingCheckpoint:
    """File from which training continues."""

    def __init__(
        self,
        path: Path,
        recipe: Recipe,
        data: TrainingSet,
        trainer: Trainer,
        *,
        save_every_seconds: float,
    ) -> None:
        self.path = path
        self._trainer = trainer
        self._save_every_seconds = save_every_seconds
        self._next_save = monotonic() + save_every_seconds
        self._identity = {"recipe": asdict(recipe), "data": data.train.fingerprint}

    @property
    def is_due(self) -> bool:
        """True if `save_every_seconds` have passed since the last save."""
        return monotonic() >= self._next_save

    def save(self, epochs: Sequence[EpochRecord]) -> None:
        """Save the state of the training."""
        state = {
            "identity": self._identity,
            "epochs": [asdict(epoch) for epoch in epochs],
            "state": self._trainer.state_dict(),
        }
        save_state(self.path, state)
        self._next_save = monotonic() + self._save_every_seconds

    def load(self) -> list[EpochRecord]:
        """Restore the training. Return its epochs so far, none if there is no checkpoint."""
        if not self.path.exists():
            return []
        state = load_state(self.path)
        if state.get("identity") != self._identity:
            raise InputError(
                f"{str(self.path)!r} was written with another recipe or other images; train with "
                "the same, or without --resume to start from the beginning."
            )
        self._trainer.load_state_dict(state["state"])
        return [EpochRecord(**epoch) for epoch in state["epochs"]]


def _updates_per_epoch(recipe: Recipe, data: TrainingSet) -> int:
    """Return the number of whole batches in the training images."""
    n_images = len(data.train.labels)
    if n_images < recipe.batch_size:
        raise InputError(
            f"batch_size is {recipe.batch_size}, but there are {n_images} images to train on; "
            "give a smaller one."
        )
    return n_images // recipe.batch_size


def _count_updates(recipe: Recipe, data: TrainingSet) -> int:
    return recipe.iterations or recipe.epochs * _updates_per_epoch(recipe, data)


def _find_folder(recipe: Recipe, given: str) -> Path:
    if recipe.data != "folders":
        return data_set_folder(FOLDER_NAMES.get(recipe.data, recipe.data), given)
    if not given:
        raise InputError('data is "folders"; give --data, the folder that holds the domains.')
    return Path(given)


def _run_epoch(
    trainer: Trainer, images: Tensor, data: TrainingSet, number: int, n_epochs: int
) -> EpochRecord:
    started = monotonic()
    trainer.model.train()
    batches = _make_batches(images, data.train.labels, trainer.recipe, number)
    n_left = trainer.n_updates - trainer.n_updates_done
    losses = [trainer.update(*batch) for batch in islice(batches, n_left)]
    loss = torch.stack(losses).mean().item()
    if not math.isfinite(loss):
        raise InputError(
            f"the loss is {loss} in epoch {number + 1}: the training diverged; give a "
            f"smaller lr than {trainer.recipe.lr:g}."
        )
    is_measured = number + 1 == n_epochs or (number + 1) % max(1, n_epochs // _N_MEASUREMENTS) == 0
    accuracy = _measure_accuracy(trainer, data.held_out[0]) if is_measured else None
    return EpochRecord(number + 1, loss, accuracy, monotonic() - started)


def _make_batches(
    images: Tensor, labels: Tensor, recipe: Recipe, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield whole batches in random order. Several batches are augmented at a time."""
    order = torch.randperm(len(labels), generator=generator(recipe.seed, "order", epoch))
    order = order[: len(order) - len(order) % recipe.batch_size].to(images.device)
    labels = labels.to(images.device)
    n_batches = max(1, _CHUNK_VALUES // (recipe.batch_size * images[0].numel()))
    for number, rows in enumerate(order.split(n_batches * recipe.batch_size)):
        key = (recipe.seed, "augment", epoch, number)
        augmented = AUGMENTATIONS[recipe.augment](images[rows], key)
        yield from zip(
            augmented.split(recipe.batch_size), labels[rows].split(recipe.batch_size), strict=True
        )


def _build_model(recipe: Recipe, data: TrainingSet) -> tuple[nn.Module, ModelCard]:
    """Build a model with random weights or those of `recipe.start`, with a new head if needed."""
    arguments: dict[str, Any] = {**recipe.arguments, "mean": data.mean, "std": data.std}
    kept: dict[str, Tensor] = {}
    if recipe.start:
        with weights_path(recipe.start) as path:
            earlier, start = load_model(path)
        if start.architecture != recipe.architecture:
            raise SettingError(
                f"architecture is {recipe.architecture!r}, but the weights in {recipe.start!r} are "
                f"{start.architecture!r}; give that architecture."
            )
        arguments, kept = dict(start.arguments), earlier.state_dict()
        if start.classes != data.train.classes:
            kept = {n: kept[n] for n in kept.keys() - _head_tensors(recipe.architecture, arguments)}
    arguments["n_classes"] = len(data.train.classes)
    model = build_model(recipe.architecture, **arguments)
    initialise(model, seed=recipe.seed)
    model.load_state_dict(model.state_dict() | kept)
    shape = data.train.images[torch.arange(1)].shape[1:]
    card = ModelCard(
        architecture=recipe.architecture,
        arguments=arguments,
        classes=data.train.classes,
        input_shape=tuple(shape),
        preprocessing=data.preprocessing,
        source=data.source,
        recipe=asdict(recipe),
        terms=data.terms,
    )
    return model, card


def _head_tensors(architecture: str, arguments: Mapping[str, Any]) -> set[str]:
    """Return the names of tensors whose shape depends on the number of classes."""
    two, three = (
        build_model(architecture, **{**arguments, "n_classes": n}).state_dict() for n in (2, 3)
    )
    return {name for name in two if two[name].shape != three[name].shape}


def _measure_accuracy(trainer: Trainer, domain: Domain) -> float:
    """Return the percentage of correct predictions."""
    trainer.model.eval()
    rows = torch.arange(len(domain.labels)).split(500)
    n_correct = sum(
        trainer.count_correct(domain.images[part], domain.labels[part]) for part in rows
    )
    return round(100 * n_correct / len(domain.labels), 2)


def _round_to_half(model: nn.Module) -> None:
    """Round the weights, so that accuracy is measured on the weights that are written."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(to_half_precision(tensor))


def _make_log(
    card: ModelCard, epochs: list[EpochRecord], paths: list[Path], device: torch.device
) -> dict[str, Any]:
    """Return recipe, epochs, accuracy and hashes, to publish without the weights."""
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return {
        "card": asdict(card),
        "environment": describe_environment(device, ""),
        "seconds": round(sum(epoch.seconds for epoch in epochs), 1),
        "sha256": hashes,
        "epochs": [asdict(epoch) for epoch in epochs],
    }
