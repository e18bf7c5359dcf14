"""Tensors in one safetensors file, or in several where files must stay small.

Parts are called NAME-00001-of-00003.safetensors. Each carries the metadata of the whole and a hash
of all tensors, so that parts of different files are never put together.
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

_WHOLE = "bitta.whole"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})$")
_ENTRY_BYTES = 160
"""Room in a header for what is said of one tensor beside its name."""


def write_tensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    part_bytes: int | None = None,
) -> list[Path]:
    """Write one file, or as many parts as needed; what was there under that name goes."""
    path = Path(path)
    if plain_path(path) != path:
        raise InputError(
            f"{str(path)!r} is the name of a part; save under {plain_path(path).name!r}."
        )
    groups = [list(tensors)] if part_bytes is None else _grouped(tensors, metadata, part_bytes)
    if len(groups) == 1:
        paths, header = [path], dict(metadata)
    else:
        paths = [_part_path(path, number, len(groups)) for number in range(1, len(groups) + 1)]
        header = {**metadata, _WHOLE: _hash(tensors, metadata)}
    drafts = [part.with_name(f".{part.name}.part") for part in paths]
    for names, draft in zip(groups, drafts, strict=True):
        write_atomically(draft, save({name: tensors[name] for name in names}, metadata=header))
    for draft, part in zip(drafts, paths, strict=True):
        os.replace(draft, part)
    for old in {path, *parts_of(path)} - set(paths):
        old.unlink(missing_ok=True)
    return paths


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata, by the plain path or that of any part."""
    tensors: dict[str, Tensor] = {}
    paths = locate(path)
    headers = []
    for part in paths:
        found, header = _read(part)
        tensors |= found
        headers.append(header)
    wholes = {header.get(_WHOLE) for header in headers}
    # Parts that other libraries write say nothing about each other.
    if wholes not in ({None}, {_hash(tensors, headers[0])}):
        raise InputError(
            f"the {len(paths)} parts of {str(path)!r} do not belong together, or one is damaged; "
            "copy all of them again."
        )
    return tensors, headers[0]


def read_metadata(path: str | Path) -> dict[str, str]:
    """The metadata alone, from the first part there is."""
    return _read(locate(path)[0], only_metadata=True)[1]


def locate(path: str | Path) -> list[Path]:
    """The file itself, or every one of its parts."""
    path = Path(path)
    name = _PART.match(path.stem)
    if name is None and path.exists():
        return [path]
    plain = path if name is None else path.with_name(name[1] + path.suffix)
    present = parts_of(plain)
    counts = sorted({_count(part) for part in present})
    if name is not None:
        counts = [int(name[3])]
    if not present:
        raise InputError(f"there are no weights at {str(path)!r}.")
    if len(counts) > 1:
        raise InputError(
            f"{str(plain)!r} lies there in {counts[0]} parts and in {counts[1]} parts; "
            "delete those that are out of date."
        )
    wanted = [_part_path(plain, number, counts[0]) for number in range(1, counts[0] + 1)]
    missing = [part.name for part in wanted if part not in present]
    if missing:
        raise InputError(
            f"{str(plain)!r} is in {counts[0]} parts, of which {', '.join(missing[:3])} "
            f"{'is' if len(missing) == 1 else 'are'} missing; copy all parts into one folder."
        )
    return wanted


def parts_of(path: Path) -> list[Path]:
    """The parts that lie beside a plain path, complete or not."""
    if not path.parent.is_dir():
        return []
    found = (other for other in path.parent.iterdir() if other.suffix == path.suffix)
    return sorted(part for part in found if plain_path(part) == path and part != path)


def check_target(path: Path) -> None:
    """Refuse a name that weights cannot be written under, before there are any."""
    if path.suffix != ".safetensors" or plain_path(path) != path or path.is_dir():
        raise InputError(
            f"weights cannot be written to {str(path)!r}; a file name ending in .safetensors, "
            "without the number of a part, is needed."
        )


def plain_path(path: Path) -> Path:
    """What the whole is called, for a part; any other path as it is."""
    name = _PART.match(path.stem)
    return path if name is None else path.with_name(name[1] + path.suffix)


def _read(path: Path, *, only_metadata: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(str(path), framework="pt") as file:
            names: Sequence[str] = () if only_metadata else file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except FileNotFoundError:
        raise InputError(f"there are no weights at {str(path)!r}.") from None
    except (SafetensorError, OSError) as error:
        other = path.suffix != ".safetensors"
        hint = '; "bitta models import" brings in other checkpoints' if other else ""
        raise InputError(
            f"{str(path)!r} is not a readable safetensors file ({error}){hint}."
        ) from None


def _grouped(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], part_bytes: int
) -> list[list[str]]:
    """Names in their order, as many to a part as fit."""
    # Twice: quotes inside the metadata are written as two characters.
    common = 2 * sum(len(key) + len(text.encode()) for key, text in metadata.items()) + 512
    groups: list[list[str]] = [[]]
    filled = common
    for name, tensor in tensors.items():
        size = tensor.nbytes + len(name) + _ENTRY_BYTES
        if common + size > part_bytes:
            raise SettingError(
                f"part_bytes is {part_bytes}; {name!r} alone needs {common + size}, "
                "so give at least that."
            )
        if filled + size > part_bytes and groups[-1]:
            groups.append([])
            filled = common
        groups[-1].append(name)
        filled += size
    return groups


def _hash(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Of the metadata, and of names, kinds, shapes and values of tensors."""
    digest = blake2b(digest_size=16)
    for key, text in sorted(metadata.items()):
        if key != _WHOLE:
            digest.update(f"{key} {text}\n".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _part_path(path: Path, number: int, count: int) -> Path:
    return path.with_name(f"{path.stem}-{number:05d}-of-{count:05d}{path.suffix}")


def _count(part: Path) -> int:
    return int(part.stem[-5:])
