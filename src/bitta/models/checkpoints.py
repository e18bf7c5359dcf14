"""Import checkpoints of other training code."""

import pickle
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitta.errors import InputError, ModelError, unknown_name_error
from bitta.models.architectures import ARCHITECTURES, build_model
from bitta.models.tensor_files import read_tensors
from bitta.models.weights import ModelCard, load_weights

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_STARTS = (b"PK", b"\x80")
"""How files of torch.save begin: a zip archive, or the older pickles."""
_UNREADABLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, TypeError, LookupError,
    AttributeError, AssertionError,
)  # fmt: skip
_NAMED = 5


def read_state_dict(path: str | Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors by name, and a sentence about whatever else was in the file."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return read_tensors(path)[0], []
    notes: list[str] = []
    state = _unwrapped(_load(path), notes)
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(
            f"{str(path)!r} holds no state dict, only {_listed(state)}; "
            f"one is looked for at the top and under {', '.join(_WRAPPERS)}."
        )
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        notes.append(f"left out what is no tensor: {_listed(others)}")
    return tensors, notes


def _load(path: Path) -> Mapping[Any, Any]:
    if not path.is_file():
        raise InputError(f"there is no checkpoint at {str(path)!r}.")
    with open(path, "rb") as file:
        start = file.read(2)
    if not start.startswith(_STARTS):
        raise InputError(f"{str(path)!r} is neither safetensors nor a file of torch.save.")
    try:
        with warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise _refusal(path, error) from None
    if not isinstance(content, Mapping):
        raise InputError(f"{str(path)!r} holds a {type(content).__name__}; a dict is needed.")
    return content


def _refusal(path: Path, error: Exception) -> InputError:
    """Why a file is not read: it would run code, or it is damaged."""
    stranger = re.search(r"GLOBAL (\S+)", str(error))
    if stranger is None:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return InputError(f"{str(path)!r} is not a readable checkpoint ({reason[:80]}).")
    return InputError(
        f"{str(path)!r} holds an object of {stranger[1]}, and reading it could run any code; open "
        "it where it was made and save the weights alone: torch.save(model.state_dict(), path)."
    )


def _unwrapped(content: Mapping[Any, Any], notes: list[str]) -> Mapping[Any, Any]:
    for name in _WRAPPERS:
        inner = content.get(name)
        if isinstance(inner, Mapping):
            others = [key for key in content if key != name]
            if others:
                notes.append(f"left out what lies beside {name!r}: {_listed(others)}")
            return _unwrapped(inner, notes)
    return content


def _listed(names: Any) -> str:
    """The first names, and how many more."""
    shown = [str(name) for name in names]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more if shown else "nothing"


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
        raise unknown_name_error("architecture", architecture, ARCHITECTURES)
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
