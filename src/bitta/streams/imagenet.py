"""ImageNet's relatives: Tiny-ImageNet, the corrupted sets and the renditions.

    tiny-imagenet-200/{wnids.txt, train/<wnid>/images/*, val/images/*, val/val_annotations.txt}
    Tiny-ImageNet-C/<corruption>/<severity>/<wnid>/*
    ImageNet-C/<corruption>/<severity>/<wnid>/*      or below blur, digital, extra, noise, weather
    imagenet-r/<wnid>/*

Classes go by WordNet number; ImageNet's labels follow the sorted numbers, as do Tiny-ImageNet's.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from bitta.config import require
from bitta.errors import InputError
from bitta.streams.domain import Domain
from bitta.streams.folders import (
    by_class,
    checked_folder,
    class_names,
    folders_down_to,
    is_picture,
    labelled,
    subfolders,
)
from bitta.streams.images import AS_IT_IS, FOR_224, Entry, Geometry


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """WordNet numbers of the 1,000 classes in the order of the labels."""
    return tuple((files("bitta") / "assets" / "imagenet-wnids.txt").read_text().split())


def read_tiny_imagenet(root: str | Path, *, train: bool, geometry: Geometry = AS_IT_IS) -> Domain:
    """Tiny-ImageNet's train or validation split, from its folder or the one above."""
    folder = _holding(checked_folder(root), "wnids.txt")
    classes = sorted((folder / "wnids.txt").read_text().split())
    split = checked_folder(folder / ("train" if train else "val"))
    annotations = split / "val_annotations.txt"
    found = _annotated(annotations) if annotations.is_file() else by_class(split)
    return labelled("tiny-imagenet", found, classes, geometry=geometry)


def read_tiny_imagenet_c(
    root: str | Path, names: Sequence[str], *, severity: int, geometry: Geometry = AS_IT_IS
) -> list[Domain]:
    """A domain per corruption; the classes are those that any has at any severity."""
    places = _corruptions(checked_folder(root), names, severity)
    levels = [level for place in places for level in subfolders(place.parent)]
    classes = sorted({wnid for level in levels for wnid in class_names(level)})
    return [
        labelled(name, by_class(place), classes, geometry=geometry)
        for name, place in zip(names, places, strict=True)
    ]


def read_imagenet_c(
    root: str | Path, names: Sequence[str], *, severity: int, geometry: Geometry = AS_IT_IS
) -> list[Domain]:
    """A domain per corruption, with the 1,000 labels; the pictures are 224 x 224 already."""
    places = _corruptions(checked_folder(root), names, severity)
    return [
        labelled(name, by_class(place), imagenet_wnids(), geometry=geometry)
        for name, place in zip(names, places, strict=True)
    ]


def read_imagenet_r(root: str | Path, *, geometry: Geometry = FOR_224) -> Domain:
    """ImageNet-R; labels number the classes that are there, 200 of the 1,000, sorted.

    `Domain.classes` names them, so that a model of 1,000 outputs can be held to these.
    """
    folder = checked_folder(root)
    if (folder / "imagenet-r").is_dir():
        folder = folder / "imagenet-r"
    found = by_class(folder)
    known = set(imagenet_wnids())
    strange = [wnid for wnid in found if wnid not in known]
    if strange:
        raise InputError(
            f"{strange[0]!r} in {str(folder)!r} is none of ImageNet's 1,000 classes; a folder "
            "per class, named like 'n01443537', is needed."
        )
    return labelled("imagenet-r", found, sorted(found), geometry=geometry)


def _annotated(path: Path) -> dict[str, list[Entry]]:
    """Lines of picture, class and a box that is of no use here."""
    found: dict[str, list[Entry]] = {}
    pictures = path.parent / "images"
    for line in path.read_text().splitlines():
        name, wnid, *_ = [*line.split("\t"), ""]
        if not is_picture(name) or not wnid:
            raise InputError(
                f"{str(path)!r} has a line {line!r}; a picture and its class, separated by tabs, "
                "are needed."
            )
        found.setdefault(wnid, []).append(Entry(str(pictures / name)))
    missing = [e for entries in found.values() for e in entries if not Path(e.path).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} pictures named in {str(path)!r} are missing, the first is "
            f"{missing[0]}; unpack the archive again."
        )
    return found


def _corruptions(root: Path, names: Sequence[str], severity: int) -> list[Path]:
    """Where each corruption lies at this severity."""
    require(1 <= severity <= 5, "severity", severity, "1 to 5")
    there = {place.name: place for place in _with_severities(root, depth=3)}
    for name in names:
        if name not in there:
            raise InputError(
                f"there is no {name!r} in {str(root)!r}; there are "
                f"{', '.join(sorted(there)) or 'no <corruption>/<severity> folders'}."
            )
        if not (there[name] / str(severity)).is_dir():
            made = ", ".join(sub.name for sub in subfolders(there[name]))
            raise InputError(
                f"{str(there[name])!r} has no folder of severity {severity}; it has {made}."
            )
    return [there[name] / str(severity) for name in names]


def _with_severities(root: Path, *, depth: int) -> list[Path]:
    """Folders of corruptions, known by their folders 1 to 5, down to a depth."""
    if any((root / str(number)).is_dir() for number in range(1, 6)):
        return [root]
    below = subfolders(root) if depth else []
    return [place for sub in below for place in _with_severities(sub, depth=depth - 1)]


def _holding(root: Path, name: str) -> Path:
    for folder in folders_down_to(root, 1):
        if (folder / name).is_file():
            return folder
    raise InputError(
        f"there is no {name} in {str(root)!r}; give the folder 'tiny-imagenet-200' as it unpacks."
    )
