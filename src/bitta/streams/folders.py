"""Folders of pictures: one folder per domain, which holds one folder per class.

    root/<domain>/<class>/*      pictures may be in deeper folders
    root/<domain>.tar            uncompressed, with members <class>/*; it is read in place

PACS, VLCS and Office-Home have this layout. There are two variants. If the folders in the root hold
pictures, they are classes, and the root is one domain. If the root holds a single folder with
domains in it, that folder is the root.
"""

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch

from bitta.errors import InputError
from bitta.streams.images import ORIGINAL_SIZE, DecodedImages, Domain, Geometry, ImageFile

_SUFFIXES = {
    ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".pnm", ".tif", ".tiff", ".gif",
}  # fmt: skip


def read_folders(
    root: str | Path,
    *,
    domains: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    geometry: Geometry = ORIGINAL_SIZE,
) -> list[Domain]:
    """Return the given domains in that order, or all domains sorted by name.

    Without `classes`, labels follow the sorted names of the classes of all domains in the root. So
    they do not depend on `domains`.
    """
    paths = _find_domains(_skip_wrapper_folder(check_folder(root), domains), domains)
    names = list(paths) if domains is None else list(domains)
    for name in names:
        if name not in paths:
            raise InputError(
                f"there is no domain {name!r} in {str(root)!r}; allowed: {', '.join(paths)}."
            )
    files = {name: list_files_by_class(paths[name]) for name in names}
    if classes is None:
        others = (list_class_names(path) for name, path in paths.items() if name not in files)
        classes = sorted({*chain.from_iterable(files.values()), *chain.from_iterable(others)})
    return [build_domain(name, files[name], classes, geometry=geometry) for name in names]


def build_domain(
    name: str,
    files: Mapping[str, Sequence[ImageFile]],
    classes: Sequence[str],
    *,
    geometry: Geometry,
) -> Domain:
    """Build a domain from the pictures of each class. `classes` contains every class."""
    numbers = {class_name: number for number, class_name in enumerate(classes)}
    for class_name, class_files in files.items():
        if class_name not in numbers:
            raise InputError(
                f"class {class_name!r} of {name!r} is not one of the {len(numbers)} known classes "
                f"(the first is {next(iter(numbers), 'none')!r}); give the right folder."
            )
        if not class_files:
            raise InputError(
                f"class {class_name!r} of {name!r} holds no picture; fill the folder or remove it."
            )
    if not files:
        raise InputError(f"domain {name!r} holds no class folder; fill it or leave it out.")
    labels = [numbers[class_name] for class_name in sorted(files) for _ in files[class_name]]
    sorted_files = [file for class_name in sorted(files) for file in files[class_name]]
    return Domain(name, DecodedImages(sorted_files, geometry), torch.tensor(labels), tuple(classes))


def list_files_by_class(path: Path) -> dict[str, list[ImageFile]]:
    """Return the pictures of each class in a folder or .tar, sorted by name."""
    if path.is_dir():
        return {
            folder.name: [ImageFile(picture) for picture in iterate_pictures(folder)]
            for folder in list_subfolders(path)
        }
    files: dict[str, list[ImageFile]] = {}
    for member in _read_tar_members(path):
        parts = [part for part in member.name.split("/") if part != "."]
        if len(parts) > 2 and parts[0] == path.stem:
            del parts[0]
        if len(parts) > 1 and not any(map(_is_hidden, parts)) and is_picture(parts[-1]):
            file = ImageFile(str(path), member.name, member.offset_data, member.size)
            files.setdefault(parts[0], []).append(file)
    return {name: sorted(files[name], key=lambda file: file.member) for name in sorted(files)}


def list_class_names(path: Path) -> list[str]:
    """Return the classes that hold a picture. This is faster than listing all pictures."""
    if not path.is_dir():
        return list(list_files_by_class(path))
    return [folder.name for folder in list_subfolders(path) if next(iterate_pictures(folder), None)]


def iterate_pictures(folder: Path) -> Iterator[str]:
    """Yield the paths of the pictures at any depth, sorted, without hidden files."""
    for parent, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if not _is_hidden(name))
        yield from (os.path.join(parent, name) for name in sorted(files) if is_picture(name))


def is_picture(name: str) -> bool:
    """Return True if a file of this name is treated as a picture."""
    return not _is_hidden(name) and os.path.splitext(name)[1].lower() in _SUFFIXES


def list_subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _is_hidden(path.name))


def list_folders(root: Path, depth: int) -> list[Path]:
    """Return the folder and all folders down to a depth, the nearest first."""
    levels = [[root]]
    for _ in range(depth):
        levels.append([sub for folder in levels[-1] for sub in list_subfolders(folder)])
    return list(chain.from_iterable(levels))


def check_folder(root: str | Path) -> Path:
    """Return the path of a folder. Raise an error if it does not exist."""
    if not Path(root).is_dir():
        raise InputError(f"there is no folder {str(root)!r}; give an existing folder.")
    return Path(root)


def _find_domains(root: Path, requested: Sequence[str] | None) -> dict[str, Path]:
    """Return the folder of each domain, or its .tar if it has no folder."""
    subfolders = list_subfolders(root)
    class_folders = [folder for folder in subfolders if _holds_pictures(folder)]
    if class_folders and requested is None and len(class_folders) == len(subfolders):
        return {root.resolve().name: root}
    if class_folders:
        raise InputError(
            f"{str(class_folders[0])!r} holds pictures, so it is a class and not a domain; put "
            f"pictures into {str(root / '<domain>' / '<class>')!r}, or give a folder that holds "
            "only classes and choose no domains."
        )
    tars = {path.stem: path for path in sorted(root.glob("*.tar")) if not _is_hidden(path.name)}
    domains = tars | {folder.name: folder for folder in subfolders}
    if not domains:
        raise InputError(
            f"{str(root)!r} holds no folder and no .tar of a domain; put pictures into "
            f"{str(root / '<domain>' / '<class>')!r}."
        )
    return {name: domains[name] for name in sorted(domains)}


def _skip_wrapper_folder(root: Path, requested: Sequence[str] | None) -> Path:
    """Return the single folder in the root if it holds the domains; many archives have one."""
    subfolders = list_subfolders(root)
    if len(subfolders) != 1 or list(root.glob("*.tar")) or subfolders[0].name in (requested or ()):
        return root
    wrapper = subfolders[0]
    inner = list_subfolders(wrapper)
    holds_domains = inner and all(
        len(list_subfolders(folder)) > 1 and not _holds_pictures(folder) for folder in inner
    )
    if holds_domains or list(wrapper.glob("*.tar")):
        return _skip_wrapper_folder(wrapper, requested)
    return root


def _holds_pictures(folder: Path) -> bool:
    return any(map(is_picture, os.listdir(folder)))


def _read_tar_members(path: Path) -> list[tarfile.TarInfo]:
    try:
        with tarfile.open(path, "r:") as archive:
            return [member for member in archive if member.isfile()]
    except (tarfile.TarError, OSError) as error:
        raise InputError(
            f"{str(path)!r} cannot be read as an uncompressed tar ({error}); download it again, or "
            "unpack it into a folder of the same name."
        ) from None


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX"))
