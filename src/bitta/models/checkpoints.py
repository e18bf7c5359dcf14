"""Import of checkpoints from other training code."""

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
_FILE_SIGNATURES = (b"PK", b"\x80")
"""First bytes of files of torch.save: a zip archive, or an older pickle."""
_LOADING_ERRORS = (
    pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, TypeError, LookupError,
    AttributeError, AssertionError,
)  # fmt: skip
_N_SHOWN_NAMES = 5


def read_state_dict(path: str | Path) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors by name, and notes about other content of the file."""
    path = Path(path)
    if path.suffix == ".safetensors":
        return read_tensors(path)[0], []
    notes: list[str] = []
    state = _find_state_dict(_load(path), notes)
    tensors = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(
            f"{str(path)!r} holds no state dict, only {_format_names(state)}; "
            f"it must be at the top level or under {', '.join(_WRAPPERS)}."
        )
    others = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if others:
        notes.append(f"left out values that are not tensors: {_format_names(others)}")
    return tensors, notes


def _load(path: Path) -> Mapping[Any, Any]:
    if not path.is_file():
        raise InputError(f"there is no checkpoint at {str(path)!r}; give an existing file.")
    with open(path, "rb") as file:
        start = file.read(2)
    if not start.startswith(_FILE_SIGNATURES):
        raise InputError(
            f"{str(path)!r} is neither safetensors nor a file of torch.save; save the weights with "
            "torch.save(model.state_dict(), path)."
        )
    try:
        with warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except _LOADING_ERRORS as error:
        raise _loading_error(path, error) from None
    if not isinstance(content, Mapping):
        raise InputError(f"{str(path)!r} holds a {type(content).__name__}; save a state dict.")
    return content


def _loading_error(path: Path, error: Exception) -> InputError:
    """Return the error for a file that would run code or is damaged."""
    forbidden = re.search(r"GLOBAL (\S+)", str(error))
    if forbidden is None:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return InputError(
            f"{str(path)!r} is not a readable checkpoint ({reason[:80]}); copy or save it again."
        )
    return InputError(
        f"{str(path)!r} holds an object of {forbidden[1]}, which could run code; open the file "
        "where it was made and save only the weights: torch.save(model.state_dict(), path)."
    )


def _find_state_dict(content: Mapping[Any, Any], notes: list[str]) -> Mapping[Any, Any]:
    for name in _WRAPPERS:
        inner = content.get(name)
        if isinstance(inner, Mapping):
            others = [key for key in content if key != name]
            if others:
                notes.append(f"left out other entries beside {name!r}: {_format_names(others)}")
            return _find_state_dict(inner, notes)
    return content


def _format_names(names: Any) -> str:
    """Return the first names and the number of the others."""
    shown = [str(name) for name in names]
    more = f" and {len(shown) - _N_SHOWN_NAMES} more" if len(shown) > _N_SHOWN_NAMES else ""
    return ", ".join(shown[:_N_SHOWN_NAMES]) + more if shown else "nothing"


_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "net.", "1.")
"""Prefixes from DataParallel, torch.compile and wrappers. "1." follows a normalising layer "0."."""
_PIXEL_STATISTICS = ("mean", "std", "mu", "sigma")
_RENAMES = (("downsample.", "shortcut."), ("shortcut.", "downsample."), ("linear.", "fc."))
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """Imported model with its card, and notes about all changes."""

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
) -> ImportedModel:
    """Import weights from a file of torch.save or safetensors. No code in the file is run.

    `size` is the side of the images. The default is the crop, or the size of the architecture.
    """
    if architecture not in ARCHITECTURES:
        raise unknown_name_error("architecture", architecture, ARCHITECTURES)
    known_architecture = ARCHITECTURES[architecture]
    side = size or (preprocessing or {}).get("crop") or known_architecture.size
    card = ModelCard(
        architecture=architecture,
        arguments={"n_classes": len(classes), "mean": tuple(mean), "std": tuple(std)}
        | ({"image_size": side} if "image_size" in known_architecture.arguments else {}),
        classes=tuple(classes),
        input_shape=(len(mean), side, side),
        preprocessing=preprocessing or {},
        accuracy=accuracy or {},
        source=source or f"imported from {Path(path).name}",
        terms=terms,
    )
    tensors, notes = read_state_dict(path)
    model = build_model(architecture, **card.arguments)
    tensors = _rename_tensors(tensors, model.state_dict().keys(), notes, path=str(path))
    load_weights(model, tensors, path=str(path), architecture=architecture)
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ModelError(
                f"{name} in {str(path)!r} holds values that are not finite; give another "
                "checkpoint."
            )
    return ImportedModel(model.eval(), card, tuple(notes))


def _rename_tensors(
    tensors: Mapping[str, Tensor], needed: Collection[str], notes: list[str], *, path: str
) -> dict[str, Tensor]:
    """Return the tensors under the names of the model. Changes are added to the notes."""
    kept: dict[str, Tensor] = {}
    changes: dict[str, int] = {}
    for original, tensor in tensors.items():
        name, steps = _rename_key(original, needed)
        if name not in needed and name.rpartition(".")[2] in _PIXEL_STATISTICS:
            values = [round(value, 4) for value in tensor.flatten().tolist()[:4]]
            notes.append(f"left out {original} = {values}: the card gives mean and std")
            continue
        for step in steps:
            changes[step] = changes.get(step, 0) + 1
        if name in kept:
            raise ModelError(
                f"two keys in {path!r} stand for {name!r}; the second is {original!r}. Remove one."
            )
        kept[name] = tensor
    notes.extend(f"{change} in {count} keys" for change, count in changes.items())
    absent = sum(name.endswith(_COUNTER) and name not in kept for name in needed)
    if absent:
        notes.append(f"set {absent} batch counters to 0, because they are not in the file")
    return kept


def _rename_key(name: str, needed: Collection[str]) -> tuple[str, list[str]]:
    """Return the name without prefixes and in the spelling of the model, and the changes."""
    steps: list[str] = []
    while name not in needed:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            break
        name = name.removeprefix(prefix)
        steps.append(f"removed {prefix!r}")
    for theirs, ours in _RENAMES:
        new_name = name.replace(theirs, ours)
        if name not in needed and new_name in needed:
            steps.append(f"renamed {theirs!r} to {ours!r}")
            return new_name, steps
    return name, steps
