"""Unpack an archive: whole or not at all, and never outside its folder."""

import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from bitta.errors import InputError

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_BLOCK = 1 << 20
_DAMAGE = (
    tarfile.TarError,
    KeyError,  # of a hard link to nothing
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # zipfile, of a way of packing it does not know
)


def unpack(
    archive: str | Path,
    folder: str | Path,
    *,
    member: str = "",
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """Unpack a tar or zip archive into a folder that is not there yet.

    With `member`, only what lies below that folder of the archive is kept, without its name.
    `on_progress` gets the bytes of the archive used so far, and its size.
    """
    with draft_folder(folder) as draft:
        extract(archive, draft, member=member, on_progress=on_progress)
    return Path(folder)


@contextmanager
def draft_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to fill: takes its name when the block ends well, vanishes when it does not."""
    folder = Path(folder)
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        # One that a killed process left behind.
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        # Replaces an empty folder; a full one is refused by the system.
        os.rename(draft, folder)
    except BrokenPipeError:
        raise  # of whoever reads our progress, no matter of files
    except OSError as error:
        raise InputError(
            f"{str(folder)!r} cannot be written ({error.strerror or error}); "
            "make room or choose another folder."
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def extract(
    archive: str | Path,
    folder: Path,
    *,
    member: str = "",
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Add what an archive holds to a folder; what was added before damage showed stays."""
    archive = Path(archive)
    if not archive.is_file():
        raise InputError(f"there is no file {str(archive)!r}; give the path of an archive.")
    size = archive.stat().st_size
    _extract = _extract_zip if zipfile.is_zipfile(archive) else _extract_tar
    try:
        with open(archive, "rb") as file:
            found = _extract(
                file, folder, member, lambda: on_progress(min(file.tell(), size), size)
            )
    except tarfile.FilterError as error:
        raise _unsafe(archive, str(error)) from None
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise InputError(
            f"{str(archive)!r} is cut, damaged, or not a tar or zip archive ({reason}); "
            "fetch it again."
        ) from None
    if not found:
        what = f"nothing below {member!r}" if member else "no files"
        raise InputError(f"{str(archive)!r} holds {what}; is it the right archive?")
    on_progress(size, size)


def _extract_tar(file: IO[bytes], folder: Path, member: str, report: Callable[[], None]) -> int:
    found = 0

    def kept(info: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        name = _below(info.name, member)
        if not name:
            return None
        return tarfile.data_filter(info.replace(name=name, deep=False), path)

    with tarfile.open(fileobj=file, mode="r:*") as tar:
        while (info := tar.next()) is not None:
            tar.extract(info, folder, filter=kept)
            found += bool(info.isfile() and _below(info.name, member))
            # Else tarfile remembers every one of a million pictures.
            tar.members.clear()  # type: ignore[attr-defined]
            report()
        _check_end(tar)
    return found


def _check_end(tar: tarfile.TarFile) -> None:
    """A tar ends with a block of zeros; tarfile takes a cut between two members for the end."""
    stream = tar.fileobj
    assert stream is not None
    stream.seek(tar.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")
    while stream.read(_BLOCK):
        pass  # to the end of the packed stream, where its checksum is


def _extract_zip(file: IO[bytes], folder: Path, member: str, report: Callable[[], None]) -> int:
    found = 0
    with zipfile.ZipFile(file) as packed:
        for info in packed.infolist():
            _check_zip_entry(info, file.name)
            name = _below(info.filename, member)
            if not name:
                continue
            target = folder / name
            if info.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(info) as source, open(target, "wb") as out:
                shutil.copyfileobj(source, out, _BLOCK)
            found += 1
            report()
    return found


def _check_zip_entry(info: zipfile.ZipInfo, archive: str) -> None:
    name = info.filename.replace("\\", "/")
    if name.startswith("/") or ":" in name.partition("/")[0] or ".." in name.split("/"):
        raise _unsafe(archive, f"{info.filename!r} would lie outside the folder")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise _unsafe(archive, f"{info.filename!r} is a link")
    if info.flag_bits & 1:
        raise InputError(f"{archive!r} is locked with a password; unpack it by hand.")


def _below(name: str, member: str) -> str:
    """Path of an entry below a folder of the archive; empty if it is not there."""
    path = PurePosixPath(name)
    if not member:
        return name if path.parts else ""
    return str(path.relative_to(member)) if PurePosixPath(member) in path.parents else ""


def _unsafe(archive: str | Path, why: str) -> InputError:
    return InputError(f"{str(archive)!r} is not safe to unpack: {why}; nothing was kept.")
