"""ImageNet's relatives, and data sets that come as lists of image files.

tiny-imagenet-200/{wnids.txt, train/<wnid>/images/*, val/images/*, val/val_annotations.txt}
    Tiny-ImageNet-C/<corruption>/<severity>/<wnid>/*
    ImageNet-C/<corruption>/<severity>/<wnid>/*      or below blur, digital, extra, noise, weather
    imagenet-r/<wnid>/*

Classes go by WordNet number; ImageNet's labels follow the sorted numbers, as do Tiny-ImageNet's.

DomainNet-126 (Saito et al., ICCV 2019): the 126 classes and four domains of DomainNet that have
few wrong labels. VisDA-2021 (Bashkirova et al., 2021, https://ai.bu.edu/visda-2021/): pictures of
ImageNet's 1,000 classes from elsewhere, mixed with others.
"""

import os
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from bitta.config import require
from bitta.errors import InputError
from bitta.streams.folders import (
    by_class,
    checked_folder,
    class_names,
    folders_down_to,
    is_picture,
    labelled,
    subfolders,
)
from bitta.streams.images import AS_IT_IS, FOR_224, Domain, Entry, Files, Geometry


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


DOMAINNET126_DOMAINS = ("real", "clipart", "painting", "sketch")
_VISDA_LIST = "objectnet_imagenet_c_r_o_filelist.txt"


def read_domainnet126(
    root: str | Path,
    *,
    domains: Sequence[str] = DOMAINNET126_DOMAINS,
    geometry: Geometry = FOR_224,
) -> list[Domain]:
    """Domains listed in `root/<domain>_list.txt`, with paths from the root on.

    A line is `clipart/aircraft_carrier/clipart_001_000001.jpg 0`; the folder names the class.
    """
    folder = checked_folder(root)
    for domain in domains:
        if not (folder / f"{domain}_list.txt").is_file():
            there = sorted(p.name.removesuffix("_list.txt") for p in folder.glob("*_list.txt"))
            raise InputError(
                f"there is no {domain}_list.txt in {str(root)!r}; there are lists of "
                f"{', '.join(there) or 'no domain'}. DomainNet-126 is a choice from DomainNet, "
                "which its lists make: put them beside the folders of the domains."
            )
    lists = {domain: read_list(folder / f"{domain}_list.txt", folder) for domain in domains}
    classes = _class_names([pair for pairs in lists.values() for pair in pairs])
    return [_domain(name, pairs, classes, geometry) for name, pairs in lists.items()]


def read_visda2021(
    root: str | Path, *, list_file: str | Path | None = None, geometry: Geometry = FOR_224
) -> Domain:
    """VisDA-2021's pictures of the 1,000 classes of ImageNet; a warning counts those left out.

    The root is the organisers' development kit once its data are unpacked: `val_data/` with the
    pictures and, in `val_filelists/` or beside, `objectnet_imagenet_c_r_o_filelist.txt` with lines
    `./val_data/<set>/<class>/<picture> <label>` (`./` may be `<root>/`), where label 1000 stands
    for every class that ImageNet does not have. Another list in this form can be given. Without a
    list, the folders `val_data/imagenet_c_and_r/<wnid>` alone are read: what else is in `val_data`
    tells its label by a list only.
    """
    folder = checked_folder(root)
    usual = (folder / "val_filelists" / _VISDA_LIST, folder / _VISDA_LIST)
    path = list_file or next((path for path in usual if path.is_file()), None)
    classes = imagenet_wnids()
    if path is None:
        found = by_class(checked_folder(folder / "val_data" / "imagenet_c_and_r"))
        return labelled("visda-2021", found, classes, geometry=geometry)
    pairs = read_list(path, folder)
    known = [(entry, label) for entry, label in pairs if label < len(classes)]
    if len(known) < len(pairs):
        warnings.warn(
            f"{len(pairs) - len(known)} of {len(pairs)} pictures of VisDA-2021 show none of "
            f"ImageNet's {len(classes)} classes and are left out.",
            stacklevel=2,
        )
    return _domain("visda-2021", known, classes, geometry)


def read_list(path: str | Path, root: str | Path) -> list[tuple[Entry, int]]:
    """Pictures and labels of a list whose paths start at `root`; every picture has to be there."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the list {str(path)!r} cannot be read ({error}).") from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdecimal():
            raise InputError(
                f"line {number} of {str(path)!r} is {line!r}; a path, a blank and a label, "
                "0 or more, are needed."
            )
        place = os.path.normpath(os.path.join(root, name.removeprefix("<root>/")))
        pairs.append((Entry(place), int(label)))
    missing = [entry for entry, _ in pairs if not os.path.isfile(entry.path)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(pairs)} pictures named in {str(path)!r} are missing, the "
            f"first is {missing[0]}; unpack the pictures below {str(root)!r}."
        )
    return pairs


def _domain(
    name: str, pairs: Sequence[tuple[Entry, int]], classes: Sequence[str], geometry: Geometry
) -> Domain:
    labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
    return Domain(name, Files([entry for entry, _ in pairs], geometry), labels, tuple(classes))


def _class_names(pairs: Sequence[tuple[Entry, int]]) -> tuple[str, ...]:
    """What the folders of each label are called; a label must mean one folder everywhere."""
    names: dict[int, str] = {}
    for entry, label in pairs:
        folder = os.path.basename(os.path.dirname(entry.path))
        if names.setdefault(label, folder) != folder:
            raise InputError(
                f"label {label} is {names[label]!r} and, for {entry}, {folder!r}; lists of one "
                "set number classes alike."
            )
    return tuple(names.get(label, str(label)) for label in range(max(names, default=-1) + 1))
