"""Data sets derived from ImageNet, and data sets that are lists of image files.

    tiny-imagenet-200/{wnids.txt, train/<wnid>/images/*, val/images/*, val/val_annotations.txt}
    Tiny-ImageNet-C/<corruption>/<severity>/<wnid>/*
    ImageNet-C/<corruption>/<severity>/<wnid>/*      or in blur, digital, extra, noise, weather
    imagenet-r/<wnid>/*

Classes are named by WordNet ID (wnid). The labels of ImageNet and Tiny-ImageNet follow the sorted
IDs.

DomainNet-126 (Saito et al., ICCV 2019) has the 126 classes and four domains of DomainNet that
contain few wrong labels. VisDA-2021 (Bashkirova et al., 2021, https://ai.bu.edu/visda-2021/) has
pictures of ImageNet's 1,000 classes from other sources, mixed with pictures of other classes.
"""

import os
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from bitta.config_base import require
from bitta.errors import InputError
from bitta.streams.folders import (
    build_domain,
    check_folder,
    is_picture,
    list_class_names,
    list_files_by_class,
    list_folders,
    list_subfolders,
)
from bitta.streams.images import (
    ORIGINAL_SIZE,
    RESIZE_256_CROP_224,
    DecodedImages,
    Domain,
    Geometry,
    ImageFile,
)


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """Return the WordNet IDs of the 1,000 classes in the order of the labels."""
    return tuple((files("bitta") / "assets" / "imagenet-wnids.txt").read_text().split())


def read_tiny_imagenet(
    root: str | Path, *, train: bool, geometry: Geometry = ORIGINAL_SIZE
) -> Domain:
    """Read the training or validation images of Tiny-ImageNet, from its folder or the parent."""
    folder = _find_tiny_imagenet(check_folder(root))
    classes = sorted((folder / "wnids.txt").read_text().split())
    split = check_folder(folder / ("train" if train else "val"))
    annotations = split / "val_annotations.txt"
    if annotations.is_file():
        by_class = _read_annotations(annotations)
    else:
        by_class = list_files_by_class(split)
    return build_domain("tiny-imagenet", by_class, classes, geometry=geometry)


def read_tiny_imagenet_c(
    root: str | Path, names: Sequence[str], *, severity: int, geometry: Geometry = ORIGINAL_SIZE
) -> list[Domain]:
    """Return one domain per corruption, with the classes of all corruptions and severities."""
    paths = _find_corruptions(check_folder(root), names, severity)
    severity_folders = [folder for path in paths for folder in list_subfolders(path.parent)]
    classes = sorted({wnid for folder in severity_folders for wnid in list_class_names(folder)})
    return [
        build_domain(name, list_files_by_class(path), classes, geometry=geometry)
        for name, path in zip(names, paths, strict=True)
    ]


def read_imagenet_c(
    root: str | Path, names: Sequence[str], *, severity: int, geometry: Geometry = ORIGINAL_SIZE
) -> list[Domain]:
    """Return one domain per corruption, with 1,000 classes. The pictures are 224 x 224."""
    paths = _find_corruptions(check_folder(root), names, severity)
    return [
        build_domain(name, list_files_by_class(path), imagenet_wnids(), geometry=geometry)
        for name, path in zip(names, paths, strict=True)
    ]


def read_imagenet_r(root: str | Path, *, geometry: Geometry = RESIZE_256_CROP_224) -> Domain:
    """Read ImageNet-R. It has 200 of the 1,000 classes. Labels follow their sorted names.

    `Domain.classes` names them, so a model with 1,000 outputs can be restricted to them.
    """
    folder = check_folder(root)
    if (folder / "imagenet-r").is_dir():
        folder = folder / "imagenet-r"
    by_class = list_files_by_class(folder)
    known = set(imagenet_wnids())
    unknown = [wnid for wnid in by_class if wnid not in known]
    if unknown:
        raise InputError(
            f"{unknown[0]!r} in {str(folder)!r} is not one of ImageNet's 1,000 classes; give a "
            "folder with one folder per class, named like 'n01443537'."
        )
    return build_domain("imagenet-r", by_class, sorted(by_class), geometry=geometry)


def _read_annotations(path: Path) -> dict[str, list[ImageFile]]:
    """Read lines with a picture, its class, and a box that is not used."""
    by_class: dict[str, list[ImageFile]] = {}
    pictures = path.parent / "images"
    for line in path.read_text().splitlines():
        name, wnid, *_ = [*line.split("\t"), ""]
        if not is_picture(name) or not wnid:
            raise InputError(
                f"{str(path)!r} has the line {line!r}; allowed: a picture and its class, separated "
                "by a tab."
            )
        by_class.setdefault(wnid, []).append(ImageFile(str(pictures / name)))
    missing = [
        file for files in by_class.values() for file in files if not Path(file.path).is_file()
    ]
    if missing:
        raise InputError(
            f"{len(missing)} pictures named in {str(path)!r} are missing, the first is "
            f"{missing[0]}; unpack the archive again."
        )
    return by_class


def _find_corruptions(root: Path, names: Sequence[str], severity: int) -> list[Path]:
    """Return the folder of each corruption at one severity."""
    require(1 <= severity <= 5, "severity", severity, "1 to 5")
    existing = {folder.name: folder for folder in _list_corruption_folders(root, depth=3)}
    for name in names:
        if name not in existing:
            raise InputError(
                f"there is no {name!r} in {str(root)!r}; allowed: "
                f"{', '.join(sorted(existing)) or 'none, as no <corruption>/<severity> exists'}."
            )
        if not (existing[name] / str(severity)).is_dir():
            severities = ", ".join(folder.name for folder in list_subfolders(existing[name]))
            raise InputError(
                f"{str(existing[name])!r} has no folder for severity {severity}; allowed: "
                f"{severities}."
            )
    return [existing[name] / str(severity) for name in names]


def _list_corruption_folders(root: Path, *, depth: int) -> list[Path]:
    """Return the folders that hold folders 1 to 5, down to a depth."""
    if any((root / str(number)).is_dir() for number in range(1, 6)):
        return [root]
    subfolders = list_subfolders(root) if depth else []
    return [
        path for folder in subfolders for path in _list_corruption_folders(folder, depth=depth - 1)
    ]


def _find_tiny_imagenet(root: Path) -> Path:
    for folder in list_folders(root, 1):
        if (folder / "wnids.txt").is_file():
            return folder
    raise InputError(
        f"there is no wnids.txt in {str(root)!r}; give the unpacked folder 'tiny-imagenet-200'."
    )


DOMAINNET126_DOMAINS = ("real", "clipart", "painting", "sketch")
_VISDA_LIST = "objectnet_imagenet_c_r_o_filelist.txt"


def read_domainnet126(
    root: str | Path,
    *,
    domains: Sequence[str] = DOMAINNET126_DOMAINS,
    geometry: Geometry = RESIZE_256_CROP_224,
) -> list[Domain]:
    """Return the domains listed in `root/<domain>_list.txt`, with paths relative to the root.

    A line is `clipart/aircraft_carrier/clipart_001_000001.jpg 0`. The folder names the class.
    """
    folder = check_folder(root)
    for domain in domains:
        if not (folder / f"{domain}_list.txt").is_file():
            existing = sorted(p.name.removesuffix("_list.txt") for p in folder.glob("*_list.txt"))
            raise InputError(
                f"there is no {domain}_list.txt in {str(root)!r}; lists exist for "
                f"{', '.join(existing) or 'no domain'}. The lists select DomainNet-126 from "
                "DomainNet; put them beside the folders of the domains."
            )
    lists = {domain: read_list(folder / f"{domain}_list.txt", folder) for domain in domains}
    classes = _name_classes([pair for pairs in lists.values() for pair in pairs])
    return [_build_listed_domain(name, pairs, classes, geometry) for name, pairs in lists.items()]


def read_visda2021(
    root: str | Path,
    *,
    list_file: str | Path | None = None,
    geometry: Geometry = RESIZE_256_CROP_224,
) -> Domain:
    """Read the pictures of VisDA-2021 that show one of ImageNet's 1,000 classes.

    A warning gives the number of other pictures.

    The root is the development kit of the organisers with unpacked data: `val_data/` with the
    pictures, and `objectnet_imagenet_c_r_o_filelist.txt` in `val_filelists/` or in the root. The
    lines of the list are `./val_data/<set>/<class>/<picture> <label>`. A line may also start with
    the literal text `<root>/` in place of `./`. Label 1000 stands for all classes that ImageNet
    does not have. `list_file` gives another list.
    Without a list, only the folders `val_data/imagenet_c_and_r/<wnid>` are read, because the labels
    of the other pictures are known from a list only.
    """
    folder = check_folder(root)
    default_paths = (folder / "val_filelists" / _VISDA_LIST, folder / _VISDA_LIST)
    path = list_file or next((path for path in default_paths if path.is_file()), None)
    classes = imagenet_wnids()
    if path is None:
        by_class = list_files_by_class(check_folder(folder / "val_data" / "imagenet_c_and_r"))
        return build_domain("visda-2021", by_class, classes, geometry=geometry)
    pairs = read_list(path, folder)
    known = [(file, label) for file, label in pairs if label < len(classes)]
    if len(known) < len(pairs):
        warnings.warn(
            f"{len(pairs) - len(known)} of {len(pairs)} pictures of VisDA-2021 do not show "
            f"one of ImageNet's {len(classes)} classes and are left out.",
            stacklevel=2,
        )
    return _build_listed_domain("visda-2021", known, classes, geometry)


def read_list(path: str | Path, root: str | Path) -> list[tuple[ImageFile, int]]:
    """Read pictures and labels from a list with paths relative to `root`.

    All pictures must exist.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"the list {str(path)!r} cannot be read ({error}); give an existing text file."
        ) from None
    pairs = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        if not name or not label.isdecimal():
            raise InputError(
                f"line {number} of {str(path)!r} is {line!r}; allowed: a path, a space and a "
                "label, 0 or more."
            )
        picture = os.path.normpath(os.path.join(root, name.removeprefix("<root>/")))
        pairs.append((ImageFile(picture), int(label)))
    missing = [file for file, _ in pairs if not os.path.isfile(file.path)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(pairs)} pictures named in {str(path)!r} are missing, the "
            f"first is {missing[0]}; unpack the pictures into {str(root)!r}."
        )
    return pairs


def _build_listed_domain(
    name: str, pairs: Sequence[tuple[ImageFile, int]], classes: Sequence[str], geometry: Geometry
) -> Domain:
    labels = torch.tensor([label for _, label in pairs], dtype=torch.long)
    return Domain(
        name, DecodedImages([file for file, _ in pairs], geometry), labels, tuple(classes)
    )


def _name_classes(pairs: Sequence[tuple[ImageFile, int]]) -> tuple[str, ...]:
    """Return the folder name of each label. A label must have the same folder everywhere."""
    names: dict[int, str] = {}
    for file, label in pairs:
        folder = os.path.basename(os.path.dirname(file.path))
        if names.setdefault(label, folder) != folder:
            raise InputError(
                f"label {label} is {names[label]!r}, but {folder!r} for {file}; all lists of a "
                "data set must number the classes alike."
            )
    return tuple(names.get(label, str(label)) for label in range(max(names, default=-1) + 1))
