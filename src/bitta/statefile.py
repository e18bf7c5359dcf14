"""Saved states in safetensors files, and atomic writes: a crash leaves the old or the new file."""

import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bitta.errors import InputError, UnreadableFileError
from bitta.types import State

_TENSOR = "\0tensor"


def save_state(path: str | Path, state: State) -> None:
    """Write a tree: tensors as tensors, everything else as JSON in the header."""
    tensors: dict[str, Tensor] = {}
    header = _extract_tensors(state, "", tensors)
    write_atomically(path, save(tensors, metadata={"bitta": json.dumps(header)}))


def load_state(path: str | Path) -> State:
    """Read a tree. Its tensors are on the CPU."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = (file.metadata() or {}).get("bitta")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(
            f"there is no file {str(path)!r}; give the path of a saved file."
        ) from None
    except (SafetensorError, OSError) as error:
        raise _unreadable_error(path, error) from None
    if header is None:
        raise UnreadableFileError(
            f"{str(path)!r} holds tensors but no bitta state; was it saved by bitta?"
        )
    try:
        state: State = _insert_tensors(json.loads(header), tensors)
    except (ValueError, KeyError) as error:
        raise _unreadable_error(path, error) from None
    return state


def _unreadable_error(path: str | Path, error: Exception) -> UnreadableFileError:
    return UnreadableFileError(f"{str(path)!r} is not a readable safetensors file ({error}).")


def write_atomically(path: str | Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a temporary file, flush it to disk, then rename it. A failure changes nothing.

    `mode` holds the permission bits, which the umask of the process may reduce.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.draft")
    try:
        with open(temporary, "wb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that a rename in it is on disk. Windows cannot open folders."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_writable(folder: str | Path) -> None:
    """Raise an error if a folder cannot be written to. Call this before long work starts."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{str(folder)!r} cannot be written to ({error.strerror}); choose another folder."
        ) from None


def _extract_tensors(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        assert name not in tensors, f"two tensors would be called {name!r}"
        # Copy: safetensors refuses tensors that share memory.
        tensors[name] = tree.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(tree, dict):
        return {key: _extract_tensors(value, f"{name}.{key}" if name else key, tensors)
                for key, value in tree.items()}  # fmt: skip
    if isinstance(tree, list | tuple):
        return [
            _extract_tensors(value, f"{name}.{index}", tensors) for index, value in enumerate(tree)
        ]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"a state tree cannot hold {type(tree).__name__} (at {name!r})")


def _insert_tensors(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_TENSOR}:
            return tensors[tree[_TENSOR]].clone(memory_format=torch.contiguous_format)
        return {key: _insert_tensors(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_insert_tensors(value, tensors) for value in tree]
    return tree
