"""Resumable and verified downloads."""

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

_N_DIGITS = {"sha256": 64, "md5": 32}


def file_digest(path: str | Path, algorithm: str) -> str:
    """Return the checksum of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(algorithm, usedforsecurity=algorithm != "md5")
        ).hexdigest()


def check_hex(kind: str, given: str) -> str:
    """Return a checksum in lower case. Refuse it if it has the wrong form for its kind."""
    value = given.strip().lower()
    if len(value) != _N_DIGITS[kind] or not set(value) <= set(hexdigits):
        raise SettingError(f"{kind} is {given!r}; allowed: {_N_DIGITS[kind]} hexadecimal digits.")
    return value


def parse_checksums(**checksums: str | None) -> dict[str, str]:
    """Return the given checksums by kind."""
    return {kind: check_hex(kind, text) for kind, text in checksums.items() if text is not None}


def describe_mismatch(path: Path, checksums: Mapping[str, str]) -> str:
    """Describe the first checksum that differs from the expected one, or return ""."""
    for kind, expected in checksums.items():
        if (digest := file_digest(path, kind)) != expected:
            return f"{kind} {expected} was expected, but the file has {digest}"
    return ""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Identity of a file on a server: address, validator and length."""

    url: str
    validator: str
    """Strong ETag or Last-Modified date. Empty if the server sends neither."""
    total: int | None

    @classmethod
    def from_response(cls, url: str, response: HTTPResponse) -> Self:
        """Identify the file that a full or partial response belongs to."""
        etag = response.headers.get("ETag", "")
        # If-Range must contain a strong validator (RFC 9110, 13.1.5).
        is_weak = not etag or etag.startswith("W/")
        validator = response.headers.get("Last-Modified", "") if is_weak else etag
        length = response.headers.get("Content-Length")
        if response.status == 206:
            length = response.headers.get("Content-Range", "").rpartition("/")[2]
        return cls(url, validator, int(length) if length and length.isdigit() else None)

    def continues(self, known: Self) -> bool:
        """Return True if a partial response belongs to the known file."""
        # A partial response may omit the validator, but must not change it.
        return self.total == known.total and self.validator in ("", known.validator)


class PartialFile:
    """Downloaded bytes of a file, with a JSON file that identifies the remote file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity_path = path.with_name(f"{path.name}.json")

    @property
    def size(self) -> int:
        """Number of downloaded bytes."""
        return self.path.stat().st_size if self.path.exists() else 0

    def remote_file(self) -> RemoteFile | None:
        """Return the remote file that the bytes belong to, if it is known."""
        if not self.size or not self._identity_path.exists():
            return None
        try:
            return RemoteFile(**json.loads(self._identity_path.read_text()))
        except (ValueError, TypeError):
            return None

    def start(self, remote_file: RemoteFile) -> None:
        """Start over with this remote file."""
        # Delete the bytes first, so that a crash cannot leave old bytes with a new identity.
        self.path.write_bytes(b"")
        write_atomically(self._identity_path, json.dumps(asdict(remote_file)).encode())

    def discard(self) -> None:
        """Delete the downloaded bytes."""
        self.path.unlink(missing_ok=True)
        self._identity_path.unlink(missing_ok=True)

    def finish(self, path: Path) -> None:
        """Rename the complete file to `path`."""
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(self.path, path)
        self._identity_path.unlink(missing_ok=True)


_BLOCK = 1 << 20
_MAX_PAUSE_SECONDS = 10.0
_RETRY_STATUSES = {408, 429}


def _ignore_progress(_done: int, _total: int | None) -> None:
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
    on_progress: Callable[[int, int | None], None] = _ignore_progress,
    on_retry: Callable[[str], None] = lambda _reason: None,
) -> Path:
    """Download `url` to `path`. An interrupted download continues from `<path>.part`.

    An existing file is kept only if a checksum verifies it. The download fails after `attempts`
    consecutive failures without new bytes. The pause between attempts doubles. `on_progress` gets
    the number of downloaded bytes and the total (None if the server does not send it).
    """
    path = Path(path)
    checksums = parse_checksums(sha256=sha256, md5=md5)
    check_address(url)
    try:
        if checksums and path.exists() and not describe_mismatch(path, checksums):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = _Connection(
            url, timeout, has_checksum=bool(checksums), on_progress=on_progress
        )
        part = PartialFile(path.with_name(f"{path.name}.part"))
        for is_last in (False, True):
            _fetch_with_retries(connection, part, attempts=attempts, pause=pause, on_retry=on_retry)
            mismatch = describe_mismatch(part.path, checksums)
            if not mismatch:
                part.finish(path)
                return path
            part.discard()
            if not is_last:
                on_retry(f"{mismatch}; downloading it once more from the start")
    except BrokenPipeError:
        raise  # The reader of stdout has closed the pipe. The files are fine.
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be written ({_describe_error(error)}); free some space or "
            "choose another folder."
        ) from None
    raise InputError(f"{url}: {mismatch}, twice; check the address and the checksum.")


def check_address(url: str) -> None:
    """Refuse an address that is not http or https, without using the network."""
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or not url.isascii() or not url.isprintable() or " " in url:
        raise SettingError(
            f"the address is {url!r}; allowed: http://... or https://..., with special characters "
            "written as %XX."
        )


class _NetworkError(Exception):
    """Raised for a network failure that a retry may solve."""


@dataclass(frozen=True, slots=True)
class _Connection:
    """Address of a file and the settings of its requests."""

    url: str
    timeout: float
    has_checksum: bool
    on_progress: Callable[[int, int | None], None]

    def fetch(self, part: PartialFile) -> None:
        """Send one request for the missing bytes and append them."""
        known = self._resumable(part)
        if known and part.size == known.total:
            return
        with closing(self._open(known, part)) as response:
            remote_file = RemoteFile.from_response(self.url, response)
            _check_space(part.path.parent, remote_file.total, part.size if known else 0)
            if response.status != 206:
                part.start(remote_file)
            elif not (known and _starts_at(response, part.size) and remote_file.continues(known)):
                part.discard()
                raise _NetworkError("the file has changed on the server")
            self._append(response, part, remote_file.total)
        if remote_file.total is not None and part.size < remote_file.total:
            raise _NetworkError(
                f"the connection closed after {part.size} of {remote_file.total} bytes"
            )

    def _resumable(self, part: PartialFile) -> RemoteFile | None:
        """Return the known remote file if the download can continue without mixing two files."""
        known = part.remote_file()
        if known is None or known.url != self.url or not (known.validator or self.has_checksum):
            return None
        return known if known.total is None or part.size <= known.total else None

    def _open(self, known: RemoteFile | None, part: PartialFile) -> HTTPResponse:
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
            elif error.code < 500 and error.code not in _RETRY_STATUSES:
                raise InputError(
                    f"{self.url} was refused ({error.code} {error.reason}); check the address."
                ) from None
            raise _NetworkError(f"the server answered {error.code} {error.reason}") from None
        except URLError as error:
            if _is_permanent(error.reason):
                raise InputError(
                    f"{self.url} cannot be reached ({_describe_error(error.reason)}); check "
                    "the address and the network."
                ) from None
            raise _NetworkError(_describe_error(error.reason)) from None
        except (OSError, HTTPException) as error:
            raise _NetworkError(_describe_error(error)) from None

    def _append(self, response: HTTPResponse, part: PartialFile, total: int | None) -> None:
        done = part.size
        self.on_progress(done, total)
        with open(part.path, "ab", buffering=_BLOCK) as file:
            while block := _next_block(response):
                file.write(block)
                done += len(block)
                self.on_progress(done, total)


def _fetch_with_retries(
    connection: _Connection,
    part: PartialFile,
    *,
    attempts: int,
    pause: float,
    on_retry: Callable[[str], None],
) -> None:
    n_failures, max_size = 0, part.size
    while True:
        try:
            return connection.fetch(part)
        except _NetworkError as error:
            n_failures = 1 if part.size > max_size else n_failures + 1
            max_size = max(max_size, part.size)
            if n_failures >= attempts:
                resume = "the downloaded part is kept, run the command again later to continue"
                raise InputError(
                    f"{connection.url} failed {n_failures} times in a row ({error}); "
                    f"{resume if part.size else 'check the address and the network'}."
                ) from None
            wait = min(pause * 2 ** (n_failures - 1), _MAX_PAUSE_SECONDS)
            on_retry(f"{error}; trying again in {wait:g} s")
            time.sleep(wait)


def _next_block(response: HTTPResponse) -> bytes:
    try:
        # read1 returns the available bytes. read would lose them if the connection stalled.
        return response.read1(_BLOCK)
    except (OSError, HTTPException) as error:
        raise _NetworkError(_describe_error(error)) from None


def _starts_at(response: HTTPResponse, position: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {position}-")


def _is_permanent(reason: object) -> bool:
    no_such_host = isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
    return no_such_host or isinstance(reason, ssl.SSLCertVerificationError)


def _describe_error(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _check_space(folder: Path, total: int | None, present: int) -> None:
    missing = (total or present) - present
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise InputError(
            f"{missing >> 20} MiB are missing, but only {free >> 20} MiB are free in "
            f"{str(folder)!r}; free some space or choose another folder."
        )
