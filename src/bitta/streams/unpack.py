"""Unpacking of archives: completely or not at all, and never outside the target folder."""

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
_ARCHIVE_ERRORS = (
    tarfile.TarError,
    KeyError,  # raised for a hard link without a target
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # raised by zipfile for unknown compression methods
)


def unpack(
    archive: str | Path,
    folder: str | Path,
    *,
    member: str = "",
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """Unpack a tar or zip archive into a new folder.

    `member` is a folder of the archive. If it is given, only its content is kept. `on_progress`
    gets the number of bytes of the archive that were read, and the size of the archive.
    """
    with draft_folder(folder) as draft:
        extract(archive, draft, member=member, on_progress=on_progress)
    return Path(folder)


@contextmanager
def draft_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder to fill.

    It is renamed to `folder` at the end of the block, and deleted after an error.
    """
    folder = Path(folder)
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        # A killed process may have left one behind.
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        # This replaces an empty folder. The system refuses to replace a full one.
        os.rename(draft, folder)
    except BrokenPipeError:
        raise  # The reader of stdout has closed the pipe. The files are fine.
    except OSError as error:
        raise InputError(
            f"{str(folder)!r} cannot be written ({error.strerror or error}); "
            "free some space or choose another folder."
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
    """Add the content of an archive to a folder.

    If the archive is damaged, the files that were unpacked before the error stay in the folder.
    """
    archive = Path(archive)
    if not archive.is_file():
        raise InputError(f"there is no file {str(archive)!r}; give the path of an archive.")
    size = archive.stat().st_size
    extract_format = _extract_zip if zipfile.is_zipfile(archive) else _extract_tar
    try:
        with open(archive, "rb") as file:
            n_files = extract_format(
                file, folder, member, lambda: on_progress(min(file.tell(), size), size)
            )
    except tarfile.FilterError as error:
        raise _unsafe_error(archive, str(error)) from None
    except _ARCHIVE_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise InputError(
            f"{str(archive)!r} is truncated, damaged, or not a tar or zip archive "
            f"({reason}); download it again."
        ) from None
    if not n_files:
        missing = f"nothing in {member!r}" if member else "no files"
        raise InputError(f"{str(archive)!r} holds {missing}; give the right archive.")
    on_progress(size, size)


def _extract_tar(file: IO[bytes], folder: Path, member: str, report: Callable[[], None]) -> int:
    n_files = 0

    def select(info: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        name = _relative_name(info.name, member)
        if not name:
            return None
        return tarfile.data_filter(info.replace(name=name, deep=False), path)

    with tarfile.open(fileobj=file, mode="r:*") as tar:
        while (info := tar.next()) is not None:
            tar.extract(info, folder, filter=select)
            n_files += bool(info.isfile() and _relative_name(info.name, member))
            # tarfile keeps every member in memory otherwise. Some archives hold a million.
            tar.members.clear()  # type: ignore[attr-defined]
            report()
        _check_end(tar)
    return n_files


def _check_end(tar: tarfile.TarFile) -> None:
    """Check the block of zeros at the end. tarfile does not notice a cut between two members."""
    stream = tar.fileobj
    assert stream is not None
    stream.seek(tar.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("its end is missing")
    while stream.read(_BLOCK):
        pass  # read to the end of the compressed stream, where its checksum is


def _extract_zip(file: IO[bytes], folder: Path, member: str, report: Callable[[], None]) -> int:
    n_files = 0
    with zipfile.ZipFile(file) as packed:
        for info in packed.infolist():
            _check_zip_entry(info, file.name)
            name = _relative_name(info.filename, member)
            if not name:
                continue
            target = folder / name
            if info.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(info) as source, open(target, "wb") as out:
                shutil.copyfileobj(source, out, _BLOCK)
            n_files += 1
            report()
    return n_files


def _check_zip_entry(info: zipfile.ZipInfo, archive: str) -> None:
    name = info.filename.replace("\\", "/")
    if name.startswith("/") or ":" in name.partition("/")[0] or ".." in name.split("/"):
        raise _unsafe_error(archive, f"{info.filename!r} would be written outside the folder")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise _unsafe_error(archive, f"{info.filename!r} is a link")
    if info.flag_bits & 1:
        raise InputError(f"{archive!r} is protected with a password; unpack it yourself.")


def _relative_name(name: str, member: str) -> str:
    """Return the path of an entry relative to a folder of the archive, or "" if it is outside."""
    path = PurePosixPath(name)
    if not member:
        return name if path.parts else ""
    return str(path.relative_to(member)) if PurePosixPath(member) in path.parents else ""


def _unsafe_error(archive: str | Path, reason: str) -> InputError:
    return InputError(
        f"{str(archive)!r} is not safe to unpack: {reason}; no file was kept. Give another archive."
    )
