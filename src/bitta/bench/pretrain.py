"""Train a source model, or go on from one; killed at any moment, it resumes from its last epoch."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from bitta.bench.augment import AUGMENTATIONS
from bitta.bench.device import device_named
from bitta.bench.recipe import Recipe
from bitta.bench.trainer import Trainer
from bitta.bench.training_sets import FOLDER_NAMES, LOADERS, TrainingSet
from bitta.errors import InputError, SettingError
from bitta.models import (
    ModelCard,
    build_model,
    check_target,
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
from bitta.streams import Domain, set_folder

_CHUNK_VALUES = 2**26
"""Values augmented at a time."""
_MEASURED = 20
"""How often accuracy is measured on the way."""
PART_BYTES = 12_000_000
"""Of weights that are kept under version control."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass over the training images."""

    number: int
    loss: float
    accuracy: float | None
    """Percent right on the first held-out set, where it was measured."""
    seconds: float


class Paused(Exception):  # noqa: N818 (a wish, not an error)
    """Training was asked to stop; its checkpoint holds everything up to this epoch."""


def checkpoint_path(out: Path) -> Path:
    """Where unfinished training waits."""
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
    on_epoch: Callable[[Epoch, int], None] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[ModelCard, dict[str, Any]]:
    """Train, measure, write weights with their card; gives the card and the log of the training.

    `half` writes half precision in parts of 12 MB, and measures what was written. `on_epoch` gets
    each epoch and the number of them; `should_stop` is asked after each, and raises `Paused`.
    """
    place = device_named(device)
    check_target(out)
    earlier = _earlier(out, recipe)
    if earlier is not None and resume and not checkpoint_path(out).exists():
        return earlier
    check_writable(out.parent)
    data = LOADERS[recipe.data](_folder_of(recipe, folder), recipe.source, recipe.side)
    model, card = _first_weights(recipe, data)
    trainer = Trainer(model.to(place), recipe, n_steps=_n_steps(recipe, data))
    keeper = _Keeper(checkpoint_path(out), recipe, data, trainer, seconds=checkpoint_seconds)
    epochs = keeper.resumed() if resume else []
    images = data.train.images[torch.arange(len(data.train.labels))].to(place)
    n_epochs = -(-trainer.n_steps // _per_epoch(recipe, data))
    for number in range(len(epochs), n_epochs):
        epochs.append(_epoch(trainer, images, data, number, n_epochs))
        on_epoch(epochs[-1], n_epochs)
        stopping = should_stop() and number + 1 < n_epochs
        keeper.keep(epochs, now=stopping)
        if stopping:
            raise Paused(f"stopped after epoch {number + 1} of {n_epochs}")
    if half:
        _round_to_half(model)
    card = replace(card, accuracy={d.name: _accuracy(trainer, d) for d in data.held_out})
    paths = save_model(out, model, card, half=half, part_bytes=PART_BYTES if half else None)
    keeper.path.unlink(missing_ok=True)
    return card, _log(card, epochs, paths, place)


def _earlier(out: Path, recipe: Recipe) -> tuple[ModelCard, dict[str, Any]] | None:
    """Card and log of finished weights of this recipe, the log empty if lost; others: an error."""
    if describe_weights(out, name="").n_files == 0:
        return None
    card = read_card(out)
    if not card.recipe or not card.recipe.items() <= asdict(recipe).items():
        raise InputError(
            f"{str(out)!r} holds weights of another recipe; give another --out, or remove them."
        )
    log = out.with_suffix(".json")
    return card, json.loads(log.read_text()) if log.exists() else {}


class _Keeper:
    """Saves training now and then, and takes it up again."""

    def __init__(
        self, path: Path, recipe: Recipe, data: TrainingSet, trainer: Trainer, *, seconds: float
    ) -> None:
        self.path = path
        self._trainer = trainer
        self._seconds = seconds
        self._due = monotonic() + seconds
        self._identity = {"recipe": asdict(recipe), "data": data.train.fingerprint}

    def keep(self, epochs: Sequence[Epoch], *, now: bool) -> None:
        """Save if it is time, or at once."""
        if not now and monotonic() < self._due:
            return
        state = {
            "identity": self._identity,
            "epochs": [asdict(epoch) for epoch in epochs],
            "state": self._trainer.state_dict(),
        }
        save_state(self.path, state)
        self._due = monotonic() + self._seconds

    def resumed(self) -> list[Epoch]:
        """What was done before, if there is a checkpoint of the same training."""
        if not self.path.exists():
            return []
        state = load_state(self.path)
        if state.get("identity") != self._identity:
            raise InputError(
                f"{str(self.path)!r} was written with another recipe or other images; train with "
                "the same, or without --resume to start over."
            )
        self._trainer.load_state_dict(state["state"])
        return [Epoch(**epoch) for epoch in state["epochs"]]


def _per_epoch(recipe: Recipe, data: TrainingSet) -> int:
    """Whole batches in the training images."""
    n_images = len(data.train.labels)
    if n_images < recipe.batch_size:
        raise InputError(
            f"batch_size is {recipe.batch_size}, but there are {n_images} images to train on; "
            "give a smaller one."
        )
    return n_images // recipe.batch_size


def _n_steps(recipe: Recipe, data: TrainingSet) -> int:
    return recipe.iterations or recipe.epochs * _per_epoch(recipe, data)


def _folder_of(recipe: Recipe, given: str) -> Path:
    if recipe.data != "folders":
        return set_folder(FOLDER_NAMES.get(recipe.data, recipe.data), given)
    if not given:
        raise InputError('data is "folders"; give --data, the folder that holds the domains.')
    return Path(given)


def _epoch(
    trainer: Trainer, images: Tensor, data: TrainingSet, number: int, n_epochs: int
) -> Epoch:
    started = monotonic()
    trainer.model.train()
    batches = _batches(images, data.train.labels, trainer.recipe, number)
    left = trainer.n_steps - trainer.step_number
    losses = [trainer.step(*batch) for batch in islice(batches, left)]
    loss = torch.stack(losses).mean().item()
    if not isfinite(loss):
        raise InputError(
            f"the loss is {loss} in epoch {number + 1}: the training has come apart; give a "
            f"smaller lr than {trainer.recipe.lr:g}."
        )
    measured = (number + 1) % max(1, n_epochs // _MEASURED) == 0 or number + 1 == n_epochs
    accuracy = _accuracy(trainer, data.held_out[0]) if measured else None
    return Epoch(number + 1, loss, accuracy, monotonic() - started)


def _batches(
    images: Tensor, labels: Tensor, recipe: Recipe, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Whole batches in random order, augmented many at a time."""
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


def _first_weights(recipe: Recipe, data: TrainingSet) -> tuple[nn.Module, ModelCard]:
    """Seeded weights, or those of another model with, where classes differ, a new head."""
    arguments: dict[str, Any] = {"mean": data.mean, "std": data.std}
    kept: dict[str, Tensor] = {}
    if recipe.start:
        with weights_path(recipe.start) as path:
            earlier, start = load_model(path)
        if start.architecture != recipe.architecture:
            raise SettingError(
                f"architecture is {recipe.architecture!r}, but the weights in {recipe.start!r} are "
                f"{start.architecture!r}; say that in the recipe."
            )
        arguments, kept = dict(start.arguments), earlier.state_dict()
        if start.classes != data.train.classes:
            kept = {n: kept[n] for n in kept.keys() - _head(recipe.architecture, arguments)}
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


def _head(architecture: str, arguments: Mapping[str, Any]) -> set[str]:
    """Names of the tensors whose shape depends on the number of classes."""
    few, more = (
        build_model(architecture, **{**arguments, "n_classes": n}).state_dict() for n in (2, 3)
    )
    return {name for name in few if few[name].shape != more[name].shape}


def _accuracy(trainer: Trainer, domain: Domain) -> float:
    """Percent of labels that the model gets right."""
    trainer.model.eval()
    rows = torch.arange(len(domain.labels)).split(500)
    right = sum(trainer.right(domain.images[part], domain.labels[part]) for part in rows)
    return round(100 * right / len(domain.labels), 2)


def _round_to_half(model: nn.Module) -> None:
    """What is measured is what will be written."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(to_half_precision(tensor))


def _log(
    card: ModelCard, epochs: list[Epoch], paths: list[Path], device: torch.device
) -> dict[str, Any]:
    """What happened, for whoever has not got the weights: recipe, course, hashes, accuracy."""
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return {
        "card": asdict(card),
        "environment": describe_environment(device, ""),
        "seconds": round(sum(epoch.seconds for epoch in epochs), 1),
        "sha256": hashes,
        "epochs": [asdict(epoch) for epoch in epochs],
    }
