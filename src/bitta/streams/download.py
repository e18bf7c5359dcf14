"""Download a file: resumable and verified."""

import hashlib
import json
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from string import hexdigits
from typing import Self, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from bitta.errors import InputError, SettingError
from bitta.statefile import write_atomically
from bitta.version import __version__

_DIGITS = {"sha256": 64, "md5": 32}


def file_digest(path: str | Path, algorithm: str) -> str:
    """Checksum of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
        ).hexdigest()


def check_hex(kind: str, given: str) -> str:
    """A checksum in small letters, refused if it cannot be one of its kind."""
    value = given.strip().lower()
    if len(value) != _DIGITS[kind] or not set(value) <= set(hexdigits):
        raise SettingError(f"{kind} is {given!r}; {_DIGITS[kind]} hexadecimal digits are needed.")
    return value


def wanted_of(**given: str | None) -> dict[str, str]:
    """The checksums that were given, by kind."""
    return {kind: check_hex(kind, value) for kind, value in given.items() if value is not None}


def difference(path: Path, wanted: Mapping[str, str]) -> str:
    """One clause about the first checksum that is not as wanted; empty if all are."""
    for kind, expected in wanted.items():
        if (came := file_digest(path, kind)) != expected:
            return f"{kind} {expected} was expected, {came} came"
    return ""


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


_BLOCK = 1 << 20
_LONGEST_PAUSE = 10.0
_BUSY = {408, 429}


def _silent(_done: int, _total: int | None) -> None:
    pass


def download(
    url: str,
    path: str | Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    timeout: float = 30.0,
    attempts: int = 5,
    pause: float = 0.5,
    on_progress: Callable[[int, int | None], None] = _silent,
    on_retry: Callable[[str], None] = lambda _why: None,
) -> Path:
    """Fetch `url` into `path`; what came before a stop is kept in `<path>.part` and used again.

    A file already there is kept only if a checksum vouches for it. `attempts` failures in a row
    that bring nothing new are the end; the pause between them doubles. `on_progress` gets the
    bytes so far and in all (None if the server does not say).
    """
    path = Path(path)
    wanted = wanted_of(sha256=sha256, md5=md5)
    check_address(url)
    try:
        if wanted and path.exists() and not difference(path, wanted):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _Connection(url, timeout, vouched=bool(wanted), on_progress=on_progress)
        part = Part(path.with_name(f"{path.name}.part"))
        for last in (False, True):
            _persist(connection, part, attempts=attempts, pause=pause, on_retry=on_retry)
            wrong = difference(part.path, wanted)
            if not wrong:
                part.become(path)
                return path
            part.discard()
            if not last:
                on_retry(f"{wrong}; fetching it once more from the beginning")
    except BrokenPipeError:
        raise  # of whoever reads our progress, no matter of files
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written ({_words(error)}).") from None
    raise InputError(f"{url}: {wrong}, twice; check the address and the checksum.")


def check_address(url: str) -> None:
    """Refuse what is not an http or https address before anything is asked of the network."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingError(
            f"the address is {url!r}; http://... or https://... is needed, with other characters "
            "than plain ones written as %XX."
        )


class _NetworkError(Exception):
    """The network failed in a way that may pass."""


@dataclass(frozen=True, slots=True)
class _Connection:
    """How to ask for the file."""

    url: str
    timeout: float
    vouched: bool
    on_progress: Callable[[int, int | None], None]

    def fetch(self, part: Part) -> None:
        """Ask once for what is missing and append what comes."""
        known = self._resumable(part)
        if known and part.size == known.total:
            return
        with closing(self._open(known, part)) as response:
            version = Version.of(self.url, response)
            _check_space(part.path.parent, version.total, part.size if known else 0)
            if response.status != 206:
                part.begin(version)
            elif not (known and _starts_at(response, part.size) and version.continues(known)):
                part.discard()
                raise _NetworkError("the file has changed on the server")
            self._append(response, part, version.total)
        if version.total is not None and part.size < version.total:
            raise _NetworkError(f"the connection closed after {part.size} of {version.total} bytes")

    def _resumable(self, part: Part) -> Version | None:
        """What the part is of, if going on cannot mix two versions unnoticed."""
        known = part.version()
        if known is None or known.url != self.url or not (known.validator or self.vouched):
            return None
        return known if known.total is None or part.size <= known.total else None

    def _open(self, known: Version | None, part: Part) -> HTTPResponse:
        headers = {"User-Agent": f"bitta/{__version__}", "Accept-Encoding": "identity"}
        if known:
            headers["Range"] = f"bytes={part.size}-"
            if known.validator:
                headers["If-Range"] = known.validator
        try:
            request = Request(self.url, headers=headers)
            return cast(HTTPResponse, urlopen(request, timeout=self.timeout))
        except HTTPError as error:
            error.close()
            if error.code == 416:
                part.discard()
            elif error.code < 500 and error.code not in _BUSY:
                raise InputError(
                    f"{self.url} was refused ({error.code} {error.reason}); check the address."
                ) from None
            raise _NetworkError(f"the server answered {error.code} {error.reason}") from None
        except URLError as error:
            if _is_lasting(error.reason):
                raise InputError(
                    f"{self.url} cannot be reached ({_words(error.reason)})."
                ) from None
            raise _NetworkError(_words(error.reason)) from None
        except (OSError, HTTPException) as error:
            raise _NetworkError(_words(error)) from None

    def _append(self, response: HTTPResponse, part: Part, total: int | None) -> None:
        done = part.size
        self.on_progress(done, total)
        with open(part.path, "ab", buffering=_BLOCK) as file:
            while block := _next_block(response):
                file.write(block)
                done += len(block)
                self.on_progress(done, total)


def _persist(
    connection: _Connection,
    part: Part,
    *,
    attempts: int,
    pause: float,
    on_retry: Callable[[str], None],
) -> None:
    failures, most = 0, part.size
    while True:
        try:
            return connection.fetch(part)
        except _NetworkError as trouble:
            failures = 1 if part.size > most else failures + 1
            most = max(most, part.size)
            if failures >= attempts:
                kept = "what has come is kept, try again later to go on from there"
                raise InputError(
                    f"{connection.url} failed {failures} times in a row ({trouble}); "
                    f"{kept if part.size else 'check the address and the network'}."
                ) from None
            wait = min(pause * 2 ** (failures - 1), _LONGEST_PAUSE)
            on_retry(f"{trouble}; trying again in {wait:g} s")
            time.sleep(wait)


def _next_block(response: HTTPResponse) -> bytes:
    try:
        # read1 gives what has come; read would lose it if the connection stalled later.
        return response.read1(_BLOCK)
    except (OSError, HTTPException) as error:
        raise _NetworkError(_words(error)) from None


def _starts_at(response: HTTPResponse, place: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {place}-")


def _is_lasting(reason: object) -> bool:
    no_such_host = isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
    return no_such_host or isinstance(reason, ssl.SSLCertVerificationError)


def _words(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _check_space(folder: Path, total: int | None, present: int) -> None:
    missing = (total or present) - present
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise InputError(
            f"{missing >> 20} MiB are still to come but {free >> 20} MiB are free in "
            f"{str(folder)!r}; make room or choose another folder."
        )
