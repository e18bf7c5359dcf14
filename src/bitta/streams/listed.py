"""Sets that come with lists of pictures: a path and a label per line.

DomainNet-126 (Saito et al., ICCV 2019): the 126 classes and four domains of DomainNet that have
few wrong labels. VisDA-2021 (Bashkirova et al., 2021, https://ai.bu.edu/visda-2021/): pictures of
ImageNet's 1,000 classes from elsewhere, mixed with others.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from bitta.errors import InputError
from bitta.streams.domain import Domain
from bitta.streams.folders import by_class, checked_folder, labelled
from bitta.streams.imagenet import imagenet_wnids
from bitta.streams.images import FOR_224, Entry, Files, Geometry

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
