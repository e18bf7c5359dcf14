"""Weights from elsewhere: read, brought to our names, given a card."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from bitta.errors import ModelError, unknown
from bitta.models.architectures import ARCHITECTURES, build_model
from bitta.models.card import ModelCard
from bitta.models.statedicts import read_state_dict
from bitta.models.weights import load_weights

_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "net.", "1.")
"""What DataParallel, torch.compile and wrappers put before names; 1. follows a normalising 0."""
_PIXELS = ("mean", "std", "mu", "sigma")
_RENAMED = (("downsample.", "shortcut."), ("shortcut.", "downsample."), ("linear.", "fc."))
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class Imported:
    """A model, its card, and a sentence about each thing that was changed on the way."""

    model: nn.Module
    card: ModelCard
    notes: tuple[str, ...]


def import_checkpoint(
    path: str | Path,
    architecture: str,
    *,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    size: int | None = None,
    preprocessing: Mapping[str, int] | None = None,
    accuracy: Mapping[str, float] | None = None,
    source: str = "",
    terms: str = "",
) -> Imported:
    """Weights that torch.save or safetensors wrote; nothing in the file is ever executed.

    `size` is the side of the images, by default that of the crop or of the architecture.
    """
    if architecture not in ARCHITECTURES:
        raise unknown("architecture", architecture, ARCHITECTURES)
    known = ARCHITECTURES[architecture]
    side = size or (preprocessing or {}).get("crop") or known.size
    card = ModelCard(
        architecture=architecture,
        arguments={"n_classes": len(classes), "mean": tuple(mean), "std": tuple(std)}
        | ({"image_size": side} if "image_size" in known.arguments else {}),
        classes=tuple(classes),
        input_shape=(len(mean), side, side),
        preprocessing=preprocessing or {},
        accuracy=accuracy or {},
        source=source or f"imported from {Path(path).name}",
        terms=terms,
    )
    tensors, notes = read_state_dict(path)
    model = build_model(architecture, **card.arguments)
    tensors = _brought_over(tensors, model.state_dict().keys(), notes, path=str(path))
    load_weights(model, tensors, path=str(path), architecture=architecture)
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ModelError(f"{name} in {str(path)!r} holds values that are not finite.")
    return Imported(model.eval(), card, tuple(notes))


def _brought_over(
    tensors: Mapping[str, Tensor], needed: Collection[str], notes: list[str], *, path: str
) -> dict[str, Tensor]:
    """The tensors under the names that are needed; what was done is added to the notes."""
    kept: dict[str, Tensor] = {}
    changes: dict[str, int] = {}
    for given, tensor in tensors.items():
        name, steps = _renamed(given, needed)
        if name not in needed and name.rpartition(".")[2] in _PIXELS:
            values = [round(value, 4) for value in tensor.flatten().tolist()[:4]]
            notes.append(f"left out {given} = {values}: mean and std of the card are used instead")
            continue
        for step in steps:
            changes[step] = changes.get(step, 0) + 1
        if name in kept:
            raise ModelError(f"two keys in {path!r} mean {name!r}; {given!r} is the second.")
        kept[name] = tensor
    notes.extend(f"{change} in {count} keys" for change, count in changes.items())
    absent = sum(name.endswith(_COUNTER) and name not in kept for name in needed)
    if absent:
        notes.append(f"set {absent} counters of batches to 0, which the file does not have")
    return kept


def _renamed(name: str, needed: Collection[str]) -> tuple[str, list[str]]:
    """The name without wrappers and in our spelling, and what was done to it."""
    steps: list[str] = []
    while name not in needed:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            break
        name = name.removeprefix(prefix)
        steps.append(f"took {prefix!r} off")
    for theirs, ours in _RENAMED:
        other = name.replace(theirs, ours)
        if name not in needed and other in needed:
            steps.append(f"renamed {theirs!r} to {ours!r}")
            return other, steps
    return name, steps
