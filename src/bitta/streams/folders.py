"""Folders of pictures: one per domain, in each one per class.

    root/<domain>/<class>/*      pictures may lie deeper below their class
    root/<domain>.tar            with members <class>/*, uncompressed, read in place

PACS, VLCS and Office-Home come in this form. Where the folders right below the root hold pictures
themselves, they are classes, and the root is one domain of its own name. Where the root holds one
folder alone, whose folders hold several folders each, that one is taken for the root.
"""

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch

from bitta.errors import InputError
from bitta.streams.images import AS_IT_IS, Domain, Entry, Files, Geometry

_SUFFIXES = {
    ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".pnm", ".tif", ".tiff", ".gif",
}  # fmt: skip


def read_folders(
    root: str | Path,
    *,
    domains: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    geometry: Geometry = AS_IT_IS,
) -> list[Domain]:
    """The domains asked for, in that order, or all, sorted.

    Unless `classes` are given, labels follow the sorted names of all classes of all domains below
    the root, whichever domains are asked for.
    """
    places = _places(_unwrapped(checked_folder(root), domains), asked=domains)
    names = list(places) if domains is None else list(domains)
    for name in names:
        if name not in places:
            raise InputError(
                f"there is no domain {name!r} in {str(root)!r}; there are {', '.join(places)}."
            )
    found = {name: by_class(places[name]) for name in names}
    if classes is None:
        others = (class_names(place) for name, place in places.items() if name not in found)
        classes = sorted({*chain.from_iterable(found.values()), *chain.from_iterable(others)})
    return [labelled(name, found[name], classes, geometry=geometry) for name in names]


def labelled(
    name: str,
    found: Mapping[str, Sequence[Entry]],
    classes: Sequence[str],
    *,
    geometry: Geometry,
) -> Domain:
    """A domain from the pictures of each class; every class has to be in the list."""
    numbers = {kind: number for number, kind in enumerate(classes)}
    for kind, entries in found.items():
        if kind not in numbers:
            raise InputError(
                f"class {kind!r} of {name!r} is not among the {len(numbers)} classes known; the "
                f"first is {next(iter(numbers), 'none')!r}. Is this the right folder?"
            )
        if not entries:
            raise InputError(
                f"class {kind!r} of {name!r} holds no picture; fill the folder or remove it."
            )
    if not found:
        raise InputError(f"domain {name!r} holds no folder of a class; fill it or leave it out.")
    labels = [numbers[kind] for kind in sorted(found) for _ in found[kind]]
    entries = [entry for kind in sorted(found) for entry in found[kind]]
    return Domain(name, Files(entries, geometry), torch.tensor(labels), tuple(classes))


def by_class(place: Path) -> dict[str, list[Entry]]:
    """The pictures of each class folder, sorted by name."""
    if place.is_dir():
        return {sub.name: [Entry(path) for path in pictures(sub)] for sub in subfolders(place)}
    found: dict[str, list[Entry]] = {}
    for member in _members(place):
        parts = [part for part in member.name.split("/") if part != "."]
        if len(parts) > 2 and parts[0] == place.stem:
            del parts[0]
        if len(parts) > 1 and not any(map(_hidden, parts)) and is_picture(parts[-1]):
            entry = Entry(str(place), member.name, member.offset_data, member.size)
            found.setdefault(parts[0], []).append(entry)
    return {kind: sorted(found[kind], key=lambda entry: entry.member) for kind in sorted(found)}


def class_names(place: Path) -> list[str]:
    """Classes that hold a picture; quicker than to list them all."""
    if not place.is_dir():
        return list(by_class(place))
    return [sub.name for sub in subfolders(place) if next(pictures(sub), None)]


def pictures(folder: Path) -> Iterator[str]:
    """Paths of pictures at any depth, sorted; what is hidden or no picture is passed over."""
    for here, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not _hidden(name))
        yield from (os.path.join(here, name) for name in sorted(files) if is_picture(name))


def is_picture(name: str) -> bool:
    """Whether a file of this name is taken for a picture."""
    return not _hidden(name) and os.path.splitext(name)[1].lower() in _SUFFIXES


def subfolders(folder: Path) -> list[Path]:
    """Folders right below, sorted, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _hidden(path.name))


def folders_down_to(root: Path, depth: int) -> list[Path]:
    """The folder, those below it, and so on; nearer ones first."""
    levels = [[root]]
    for _ in range(depth):
        levels.append([sub for folder in levels[-1] for sub in subfolders(folder)])
    return list(chain.from_iterable(levels))


def checked_folder(root: str | Path) -> Path:
    """The folder, if it is one."""
    if not Path(root).is_dir():
        raise InputError(f"there is no folder {str(root)!r}.")
    return Path(root)


def _places(root: Path, *, asked: Sequence[str] | None) -> dict[str, Path]:
    """Where each domain lies: a folder or, failing that, a .tar."""
    below = subfolders(root)
    flat = [sub for sub in below if _holds_pictures(sub)]
    if flat and asked is None and len(flat) == len(below):
        return {root.resolve().name: root}
    if flat:
        raise InputError(
            f"pictures lie right in {str(flat[0])!r}, a level too high for a domain; "
            f"{str(root / '<domain>' / '<class>')!r} is needed, or a folder of classes alone "
            "and no domains asked for."
        )
    tars = {path.stem: path for path in sorted(root.glob("*.tar")) if not _hidden(path.name)}
    found = tars | {sub.name: sub for sub in below}
    if not found:
        raise InputError(
            f"{str(root)!r} holds no folder and no .tar of a domain; pictures belong into "
            f"{str(root / '<domain>' / '<class>')!r}."
        )
    return {name: found[name] for name in sorted(found)}


def _unwrapped(root: Path, asked: Sequence[str] | None) -> Path:
    """Step into the lone folder that many archives unpack into; its folders hold folders."""
    below = subfolders(root)
    if len(below) != 1 or list(root.glob("*.tar")) or below[0].name in (asked or ()):
        return root
    kinds = subfolders(below[0])
    of_folders = kinds and all(len(subfolders(k)) > 1 and not _holds_pictures(k) for k in kinds)
    return _unwrapped(below[0], asked) if of_folders or list(below[0].glob("*.tar")) else root


def _holds_pictures(folder: Path) -> bool:
    return any(map(is_picture, os.listdir(folder)))


def _members(path: Path) -> list[tarfile.TarInfo]:
    try:
        with tarfile.open(path, "r:") as archive:
            return [member for member in archive if member.isfile()]
    except (tarfile.TarError, OSError) as error:
        raise InputError(
            f"{str(path)!r} cannot be read as an uncompressed tar ({error}); fetch it again, or "
            "unpack it into a folder of its name."
        ) from None


def _hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))
