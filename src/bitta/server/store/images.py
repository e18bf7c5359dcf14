"""Files of images, each under the name of its content's hash."""

import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from errno import EMFILE, ENFILE, ENOMEM
from hashlib import sha256
from pathlib import Path
from typing import Any

from bitta.errors import InputError
from bitta.server.store.errors import StoreUnavailable
from bitta.server.store.ids import new_token
from bitta.server.store.trouble import of_disk

_log = logging.getLogger(__name__)
_HEX = frozenset("0123456789abcdef")
_FOR_NOW = {EMFILE, ENFILE, ENOMEM}
"""What a file that is whole may be refused for."""


class ImageFiles:
    """A folder `ab/cd/abcd...`; a file that has its name is complete and durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unfinished = folder / "unfinished"
        self.missed = 0
        """Images that could not be kept, since the start."""
        self._missed_lately = 0

    def path(self, name: str) -> Path:
        """Where an image lies, if it is kept."""
        if len(name) != 64 or not _HEX.issuperset(name):
            raise InputError(f"the image name is {name!r}; give the 64 hex digits of its SHA-256")
        return self._folder / name[:2] / name[2:4] / name

    def read(self, name: str) -> bytes | None:
        """Content of an image; None where it is not kept, or not whole any more."""
        try:
            content = self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _FOR_NOW:
                raise StoreUnavailable(
                    f"an image cannot be read ({error.strerror}); try again"
                ) from error
            _log.warning("the image %s cannot be read: %s", name, error.strerror)
            return None
        if name_of(content) != name:
            _log.warning("the image %s is damaged", name)
            return None
        return content

    def keep(self, contents: Sequence[bytes]) -> None:
        """Write images durably; those that are there are left as they are."""
        try:
            self._unfinished.mkdir(parents=True, exist_ok=True)
            changed: set[Path] = set()
            for content in contents:
                changed |= self._write(self.path(name_of(content)), content)
            for folder in changed:
                _sync_folder(folder)
        except OSError as error:
            raise of_disk(error, "an image") from error

    def note(self, kept: "Future[Any]", *, n: int) -> None:
        """Count what nobody waits for; the first that is missed is told, and the number at last."""
        error = kept.exception()
        if error is not None:
            if not self._missed_lately:
                _log.warning("images are not kept: %s", error)
            self.missed += n
            self._missed_lately += n
        elif self._missed_lately:
            _log.warning("images are kept again; %d were not", self._missed_lately)
            self._missed_lately = 0

    def remove(self, name: str) -> None:
        """Delete an image's file durably."""
        path = self.path(name)
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            _sync_folder(path.parent)

    def sweep(self, deleted: Iterable[str]) -> None:
        """Finish what a process that ended had begun: half-written files, deletions."""
        if self._unfinished.is_dir():
            for path in self._unfinished.iterdir():
                path.unlink()
        for name in deleted:
            if self.path(name).exists():
                self.remove(name)

    def _write(self, path: Path, content: bytes) -> set[Path]:
        """Write one file; the folders that have changed, to be made durable together."""
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


def name_of(content: bytes) -> str:
    """What an image is called."""
    return sha256(content).hexdigest()


def _write_durably(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(file)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
