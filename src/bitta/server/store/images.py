"""Kept images: files named by the hash of their content, and rows that describe them."""

import json
import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from errno import EMFILE, ENFILE, ENOMEM
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from bitta.errors import InputError
from bitta.server.store.errors import StoreUnavailable, translate_disk_error
from bitta.server.store.records import ImageRecord, NewImage, new_token
from bitta.server.store.schema import images
from bitta.server.store.writer import append_event
from bitta.statefile import sync_folder

_log = logging.getLogger(__name__)
_HEX_DIGITS = frozenset("0123456789abcdef")
_TEMPORARY_ERRORS = {EMFILE, ENFILE, ENOMEM}
"""Errors of a read that may succeed later: the file is not damaged."""


class KeptImages:
    """Folder of files `ab/cd/abcd...`. A file under its final name is complete and durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unfinished = folder / "unfinished"
        self.n_failed = 0
        """Number of images that could not be kept, since the start."""
        self._n_failed_in_a_row = 0

    def path(self, name: str) -> Path:
        """Return the path of an image. The file exists only if the image is kept."""
        if len(name) != 64 or not _HEX_DIGITS.issuperset(name):
            raise InputError(f"the image name is {name!r}; give the 64 hex digits of its SHA-256")
        return self._folder / name[:2] / name[2:4] / name

    def read(self, name: str) -> bytes | None:
        """Return the content of an image, or None if it is damaged or not kept."""
        try:
            content = self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _TEMPORARY_ERRORS:
                raise StoreUnavailable(
                    f"an image cannot be read ({error.strerror}); try again"
                ) from error
            _log.warning("the image %s cannot be read: %s", name, error.strerror)
            return None
        if image_name(content) != name:
            _log.warning("the image %s is damaged", name)
            return None
        return content

    def write(self, contents: Sequence[bytes]) -> None:
        """Write images durably. Files that exist stay as they are."""
        try:
            self._unfinished.mkdir(parents=True, exist_ok=True)
            changed: set[Path] = set()
            for content in contents:
                changed |= self._write_file(self.path(image_name(content)), content)
            for folder in changed:
                sync_folder(folder)
        except OSError as error:
            raise translate_disk_error(error, "an image") from error

    def count_failures(self, kept: "Future[Any]", *, n: int) -> None:
        """Count the images that could not be kept. Log the first failure and the recovery."""
        error = kept.exception()
        if error is not None:
            if not self._n_failed_in_a_row:
                _log.warning("images are not kept: %s", error)
            self.n_failed += n
            self._n_failed_in_a_row += n
        elif self._n_failed_in_a_row:
            _log.warning("images are kept again; %d were not kept", self._n_failed_in_a_row)
            self._n_failed_in_a_row = 0

    def remove(self, name: str) -> None:
        """Delete the file of an image durably."""
        path = self.path(name)
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync_folder(path.parent)

    def clean_up(self, deleted: Iterable[str]) -> None:
        """Remove half-written files, and files of deleted images, that a killed process left."""
        if self._unfinished.is_dir():
            for path in self._unfinished.iterdir():
                path.unlink()
        for name in deleted:
            if self.path(name).exists():
                self.remove(name)

    def _write_file(self, path: Path, content: bytes) -> set[Path]:
        """Write one file. Return the folders that must be synchronised."""
        if path.exists():
            return set()
        changed = {path.parent}
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            changed |= {path.parent.parent, self._folder}
        unfinished = self._unfinished / new_token()
        try:
            _write_durably(unfinished, content)
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        return changed


def image_name(content: bytes) -> str:
    """Return the name of an image: the SHA-256 of its content."""
    return sha256(content).hexdigest()


def add_images(
    connection: Connection, *, new: Sequence[NewImage], names: Sequence[str], at: int
) -> list[ImageRecord]:
    """Record images whose files are durable. Images that are kept already stay as they are."""
    return [_add_image(connection, *each, at) for each in zip(new, names, strict=True)]


def mark_image_deleted(connection: Connection, *, sha256: str, by: str, at: int) -> bool:
    """Mark an image as deleted. Its file is removed once the mark is durable."""
    is_kept = (images.c.sha256 == sha256) & images.c.deleted_at.is_(None)
    if connection.execute(update(images).where(is_kept).values(deleted_at=at)).rowcount == 0:
        return False
    append_event(connection, kind="image_deleted", body={"sha256": sha256, "by": by}, at=at)
    return True


def find_image(connection: Connection, sha256: str) -> ImageRecord | None:
    """Return the record of an image, or None."""
    found = select(images).where(images.c.sha256 == sha256)
    row = connection.execute(found).mappings().one_or_none()
    if row is None:
        return None
    return ImageRecord(**dict(row) | {"shape": tuple(json.loads(row["shape"]))})


def _add_image(connection: Connection, new: NewImage, name: str, at: int) -> ImageRecord:
    stored = find_image(connection, name)
    if stored is not None and stored.deleted_at is None:
        return stored
    connection.execute(delete(images).where(images.c.sha256 == name))
    record = ImageRecord(name, len(new.content), new.shape, new.dtype, at, None)
    connection.execute(
        insert(images).values(
            sha256=name,
            n_bytes=record.n_bytes,
            shape=json.dumps(list(new.shape)),
            dtype=new.dtype,
            kept_at=at,
        )
    )
    return record


def _write_durably(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(file)
