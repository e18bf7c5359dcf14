"""A state tree in one safetensors file; a crash leaves the old file or the new one."""

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

from bitta.errors import InputError, UnreadableError
from bitta.types import State

_TENSOR = "\0tensor"


def save_state(path: str | Path, state: State) -> None:
    """Write a tree: tensors as tensors, the rest as JSON in the header."""
    tensors: dict[str, Tensor] = {}
    skeleton = _fold(state, "", tensors)
    write_atomically(path, save(tensors, metadata={"bitta": json.dumps(skeleton)}))


def load_state(path: str | Path) -> State:
    """Read a tree back, on the CPU."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = (file.metadata() or {}).get("bitta")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(
            f"there is no file {str(path)!r}; give the path that was saved to."
        ) from None
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    if header is None:
        raise UnreadableError(
            f"{str(path)!r} holds tensors but no bitta state; was it saved by bitta?"
        )
    try:
        state: State = _unfold(json.loads(header), tensors)
    except (ValueError, KeyError) as error:
        raise _unreadable(path, error) from None
    return state


def _unreadable(path: str | Path, error: Exception) -> UnreadableError:
    return UnreadableError(f"{str(path)!r} is not a readable safetensors file ({error}).")


def write_atomically(path: str | Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write under a temporary name, flush to disk, then rename; a failure leaves nothing new.

    `mode` is who may read it, as far as the process's umask lets them.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    try:
        with open(draft, "wb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):  # what went wrong before is what is told
            draft.unlink()
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """A rename is on disk once its folder is; where folders cannot be opened it is soon."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_writable(folder: str | Path) -> None:
    """Refuse a folder that results could not be written to, before the work rather than after."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{str(folder)!r} cannot be written to ({error.strerror}).") from None


def _fold(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, Tensor):
        assert name not in tensors, f"two tensors would be called {name!r}"
        # A private copy: safetensors refuses tensors that share memory.
        tensors[name] = tree.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(tree, dict):
        return {key: _fold(value, f"{name}.{key}" if name else key, tensors)
                for key, value in tree.items()}  # fmt: skip
    if isinstance(tree, list | tuple):
        return [_fold(value, f"{name}.{place}", tensors) for place, value in enumerate(tree)]
    if tree is None or isinstance(tree, bool | int | float | str):
        return tree
    raise TypeError(f"a state tree cannot hold {type(tree).__name__} (at {name!r})")


def _unfold(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {_TENSOR}:
            return tensors[tree[_TENSOR]].clone(memory_format=torch.contiguous_format)
        return {key: _unfold(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_unfold(value, tensors) for value in tree]
    return tree
