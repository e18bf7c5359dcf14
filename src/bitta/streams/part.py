"""A file that has not come whole yet, and which version of it has begun to come."""

import json
import os
from dataclasses import asdict, dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Self

from bitta.statefile import write_atomically


@dataclass(frozen=True, slots=True)
class Version:
    """Which bytes a server serves: an address, a validator, a length."""

    url: str
    validator: str
    """A strong ETag, or the date of the last change; empty if the server gives neither."""
    total: int | None

    @classmethod
    def of(cls, url: str, response: HTTPResponse) -> Self:
        """What an answer is a part of, or the whole."""
        etag = response.headers.get("ETag", "")
        # If-Range may only carry a strong validator (RFC 9110, 13.1.5).
        weak = not etag or etag.startswith("W/")
        validator = response.headers.get("Last-Modified", "") if weak else etag
        length = response.headers.get("Content-Length")
        if response.status == 206:
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
        return cls(url, validator, int(length) if length and length.isdigit() else None)

    def continues(self, known: Self) -> bool:
        """Whether bytes of this one may follow bytes of that one."""
        # A partial answer may leave the validator out, never change it.
        return self.total == known.total and self.validator in ("", known.validator)


class Part:
    """The bytes so far, and beside them which version of the file they are of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = path.with_name(f"{path.name}.json")

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> Version | None:
        """What the bytes are of, if that is known."""
        if not self.size or not self._note.exists():
            return None
        try:
            return Version(**json.loads(self._note.read_text()))
        except (ValueError, TypeError):
            return None

    def begin(self, version: Version) -> None:
        """Start over with this version."""
        # Empty before the note changes: a crash in between must not pass old bytes off as new.
        self.path.write_bytes(b"")
        write_atomically(self._note, json.dumps(asdict(version)).encode())

    def discard(self) -> None:
        """Forget what has come."""
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def become(self, path: Path) -> None:
        """Take the place of the whole file."""
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(self.path, path)
        self._note.unlink(missing_ok=True)
