"""State dicts as training code leaves them, read without running what is in the file."""

import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.models.parts import read_tensors

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
