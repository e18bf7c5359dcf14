"""Whether a file is the one that was meant."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from string import hexdigits

from bitta.errors import SettingError

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
