"""Tensors in one safetensors file, or in several parts if files must stay small.

Parts are named NAME-00001-of-00003.safetensors. The whole is named NAME.safetensors, even if only
its parts exist. Each part holds the metadata of the whole and a hash of all tensors, so parts of
different files are never combined.
"""

import os
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bitta.errors import InputError, SettingError
from bitta.statefile import write_atomically

_WHOLE_HASH_KEY = "bitta.whole"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})$")
_ENTRY_BYTES = 160
"""Upper bound for the header entry of one tensor, without its name."""


def write_tensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    part_bytes: int | None = None,
) -> list[Path]:
    """Write one file, or as many parts as needed. Older files of that name are deleted."""
    path = Path(path)
    if unsplit_path(path) != path:
        raise InputError(
            f"{str(path)!r} is the name of a part; use {unsplit_path(path).name!r} instead."
        )
    groups = (
        [list(tensors)] if part_bytes is None else _group_into_parts(tensors, metadata, part_bytes)
    )
    if len(groups) == 1:
        paths, header = [path], dict(metadata)
    else:
        paths = [_part_path(path, number, len(groups)) for number in range(1, len(groups) + 1)]
        header = {**metadata, _WHOLE_HASH_KEY: _hash_tensors(tensors, metadata)}
    drafts = [part.with_name(f".{part.name}.part") for part in paths]
    for names, draft in zip(groups, drafts, strict=True):
        write_atomically(draft, save({name: tensors[name] for name in names}, metadata=header))
    for draft, part in zip(drafts, paths, strict=True):
        os.replace(draft, part)
    for old in {path, *list_parts(path)} - set(paths):
        old.unlink(missing_ok=True)
    return paths


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return all tensors and the metadata. `path` is the whole or any of its parts."""
    tensors: dict[str, Tensor] = {}
    paths = find_weights_files(path)
    headers = []
    for part in paths:
        part_tensors, header = _read_file(part)
        tensors |= part_tensors
        headers.append(header)
    hashes = {header.get(_WHOLE_HASH_KEY) for header in headers}
    # Parts that other libraries wrote hold no hash.
    if hashes not in ({None}, {_hash_tensors(tensors, headers[0])}):
        raise InputError(
            f"the {len(paths)} parts of {str(path)!r} do not belong together or are damaged; "
            "copy all of them again."
        )
    return tensors, headers[0]


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return only the metadata, from the first part."""
    return _read_file(find_weights_files(path)[0], only_metadata=True)[1]


def find_weights_files(path: str | Path) -> list[Path]:
    """Return the file, or all of its parts."""
    path = Path(path)
    name = _PART.match(path.stem)
    if name is None and path.exists():
        return [path]
    plain = path if name is None else path.with_name(name[1] + path.suffix)
    present = list_parts(plain)
    counts = sorted({_read_part_count(part) for part in present})
    if name is not None:
        counts = [int(name[3])]
    if not present:
        raise InputError(f"there are no weights at {str(path)!r}; give an existing file.")
    if len(counts) > 1:
        raise InputError(
            f"{str(plain)!r} exists in {counts[0]} parts and in {counts[1]} parts; "
            "delete the outdated parts."
        )
    parts = [_part_path(plain, number, counts[0]) for number in range(1, counts[0] + 1)]
    missing = [part.name for part in parts if part not in present]
    if missing:
        raise InputError(
            f"{str(plain)!r} has {counts[0]} parts, of which {', '.join(missing[:3])} "
            f"{'is' if len(missing) == 1 else 'are'} missing; copy all parts into one folder."
        )
    return parts


def list_parts(path: Path) -> list[Path]:
    """Return the existing parts of a whole. Some may be missing."""
    if not path.parent.is_dir():
        return []
    found = (other for other in path.parent.iterdir() if other.suffix == path.suffix)
    return sorted(part for part in found if unsplit_path(part) == path and part != path)


def check_weights_path(path: Path) -> None:
    """Refuse a file name that weights cannot be written to."""
    if path.suffix != ".safetensors" or unsplit_path(path) != path or path.is_dir():
        raise InputError(
            f"weights cannot be written to {str(path)!r}; allowed: a file name that ends in "
            ".safetensors, without the number of a part."
        )


def unsplit_path(path: Path) -> Path:
    """Return the path of the whole for a part, and any other path unchanged."""
    name = _PART.match(path.stem)
    return path if name is None else path.with_name(name[1] + path.suffix)


def _read_file(
    path: Path, *, only_metadata: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            names: Sequence[str] = () if only_metadata else file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except FileNotFoundError:
        raise InputError(f"there are no weights at {str(path)!r}; give an existing file.") from None
    except (SafetensorError, OSError) as error:
        is_other_format = path.suffix != ".safetensors"
        hint = (
            '; "bitta models import" converts other checkpoints'
            if is_other_format
            else "; copy it again"
        )
        raise InputError(
            f"{str(path)!r} is not a readable safetensors file ({error}){hint}."
        ) from None


def _group_into_parts(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], part_bytes: int
) -> list[list[str]]:
    """Distribute the names to parts in their order, as many as fit."""
    # The factor 2 allows for quotes, which take two characters in the header.
    header_bytes = 2 * sum(len(key) + len(text.encode()) for key, text in metadata.items()) + 512
    groups: list[list[str]] = [[]]
    used_bytes = header_bytes
    for name, tensor in tensors.items():
        size = tensor.nbytes + len(name) + _ENTRY_BYTES
        if header_bytes + size > part_bytes:
            raise SettingError(
                f"part_bytes is {part_bytes}; {name!r} alone needs {header_bytes + size}; "
                "give at least this number."
            )
        if used_bytes + size > part_bytes and groups[-1]:
            groups.append([])
            used_bytes = header_bytes
        groups[-1].append(name)
        used_bytes += size
    return groups


def _hash_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return a hash of the metadata, and of names, types, shapes and values of the tensors."""
    digest = blake2b(digest_size=16)
    for key, text in sorted(metadata.items()):
        if key != _WHOLE_HASH_KEY:
            digest.update(f"{key} {text}\n".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _part_path(path: Path, number: int, count: int) -> Path:
    return path.with_name(f"{path.stem}-{number:05d}-of-{count:05d}{path.suffix}")


def _read_part_count(part: Path) -> int:
    return int(part.stem[-5:])
