"""Values of one exact form: what a database could not hold is refused before it gets there."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from bitta.errors import InputError

_LARGEST = 2**63 - 1
"""Of an integer column."""


def one_of(name: str, given: object, allowed: Collection[str]) -> None:
    """Refuse everything but these words: no other case, no number, no truth value."""
    if type(given) is not str or given not in allowed:
        names = ", ".join(repr(word) for word in allowed)
        raise InputError(f"{name} is {given!r}; allowed: {names}")


def text(
    name: str, given: object, *, least: int = 1, most: int = 200, optional: bool = False
) -> None:
    """Refuse what is no text, too long, or not storable as UTF-8 in every database."""
    if given is None and optional:
        return
    if not isinstance(given, str):
        raise InputError(f"{name} is {type(given).__name__}; give text")
    if not least <= len(given) <= most:
        raise InputError(f"{name} has {len(given)} characters; allowed: {least} to {most}")
    if "\0" in given or any("\ud800" <= character <= "\udfff" for character in given):
        raise InputError(f"{name} holds a character that is no text; leave out NUL and surrogates")


def line(name: str, given: object) -> None:
    """Refuse what would not stand in one line of a list."""
    text(name, given)
    if isinstance(given, str) and not given.isprintable():
        raise InputError(f"{name} is {given!r}; leave out line breaks and what cannot be seen")


def identifier(name: str, given: object, *, most: int, optional: bool = False) -> None:
    """Refuse what is no id: letters and digits alone, so that it can stand in an address."""
    text(name, given, most=most, optional=optional)
    if isinstance(given, str) and not (given.isascii() and given.isalnum()):
        raise InputError(f"{name} is {given!r}; give letters and digits")


def truth(name: str, given: object) -> None:
    """Refuse everything but true and false."""
    if type(given) is not bool:
        raise InputError(f"{name} is {given!r}; allowed: true, false")


def number(name: str, given: object, *, optional: bool = False) -> None:
    """Refuse what is no finite number."""
    if given is None and optional:
        return
    if type(given) not in (int, float) or not math.isfinite(given):  # type: ignore[arg-type]
        raise InputError(f"{name} is {given!r}; give a finite number")


def count(name: str, given: object, *, optional: bool = False) -> None:
    """Refuse what is no whole number from 0 that fits into a column."""
    if given is None and optional:
        return
    if type(given) is not int or not 0 <= given <= _LARGEST:
        raise InputError(f"{name} is {given!r}; give a whole number from 0 to {_LARGEST}")


def weight(name: str, given: object) -> None:
    """Refuse what is no finite number from 0."""
    if type(given) not in (int, float) or not 0 <= given < math.inf:  # type: ignore[operator]
        raise InputError(f"{name} is {given!r}; give a finite number from 0")


def tree(name: str, given: object, *, most: int) -> None:
    """Refuse what is no object of JSON, or too large written out."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise InputError(f"{name} is {type(given).__name__}; give an object")
    try:
        written = canonical(given)
        json.dumps(given, ensure_ascii=False).encode()  # an export must be able to write it
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON ({error}); give text, numbers and lists") from error
    if len(written) > most:
        raise InputError(f"{name} takes {len(written)} characters as JSON; allowed: {most}")


def canonical(given: Mapping[str, Any]) -> str:
    """Write the same content always as the same text; ASCII, so that any text is storable."""
    return json.dumps(
        given, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
