"""The file in which answers are kept: a header, a line per answer, and an end.

    {"bitta": "answers", "format": 1, "source": "Simulated", "settings": "5c0f..."}
    {"collect": 0, "id": 0, "step": 0, "index": 17, "position": 17, "label": 3, "correct": false,
     "named": null}                                                        (all in one line)
    {"end": true, "collects": 157, "asked": 471, "answered": 471}

A log without its end was cut short: what is missing cannot be told from what was never answered.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from bitta.errors import InputError
from bitta.types import Answer, Query

_FORMAT = 1
_ASKED = ("id", "step", "index", "position", "label")


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer."""

    collect: int
    """The number of the `collect` call that handed it over."""
    id: int
    step: int
    index: int
    position: int
    label: int
    """The label shown."""
    correct: bool
    named: int | None
    """The class named, where the annotator names classes."""

    @classmethod
    def of(cls, answer: Answer, collect: int) -> Self:
        """An answer as it came."""
        asked = {name: getattr(answer.query, name) for name in _ASKED}
        return cls(collect=collect, correct=answer.correct, named=answer.label, **asked)

    def difference(self, query: Query) -> str:
        """What a question is that this one was not; empty if it is the same."""
        other = [name for name in _ASKED if getattr(query, name) != getattr(self, name)]
        return ", ".join(
            f"{name} {getattr(query, name)} where the log has {getattr(self, name)}"
            for name in other
        )


@dataclass(frozen=True, slots=True)
class End:
    """What there was in all."""

    collects: int
    asked: int
    answered: int


@dataclass(frozen=True, slots=True)
class Log:
    """A log as it was read."""

    entries: tuple[Entry, ...]
    end: End | None
    digest: str


def header(source: str, settings: Mapping[str, Any]) -> bytes:
    """The first line: which kind of source answered, and a fingerprint of its settings."""
    told = sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    return line({"bitta": "answers", "format": _FORMAT, "source": source, "settings": told})


def line(content: Entry | End | Mapping[str, Any]) -> bytes:
    """One line of a log."""
    if isinstance(content, Entry):
        table: Mapping[str, Any] = asdict(content)
    elif isinstance(content, End):
        table = {"end": True} | asdict(content)
    else:
        table = content
    return json.dumps(table).encode() + b"\n"


def read_log(path: Path) -> Log:
    """Read and check; a last line that was cut counts as not written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read ({error.strerror}).") from None
    *lines, _ = content.split(b"\n")
    tables = [_parsed(text, path, number) for number, text in enumerate(lines, 1)]
    if not tables or (tables[0].get("bitta"), tables[0].get("format")) != ("answers", _FORMAT):
        raise InputError(f"{str(path)!r} is no log of answers that this version of bitta reads.")
    last = tables[-1] if tables[-1].get("end") is True else None
    body = tables[1:-1] if last else tables[1:]
    try:
        entries = tuple(Entry(**table) for table in body)
        end = (
            End(**{name: last[name] for name in ("collects", "asked", "answered")})
            if last
            else None
        )
    except (TypeError, KeyError) as error:
        raise InputError(f"{str(path)!r} holds a line that is no answer ({error}).") from None
    if end is not None and end.answered != len(entries):
        raise InputError(
            f"{str(path)!r} holds {len(entries)} answers, but its end tells of {end.answered}; "
            "lines have been lost or added."
        )
    return Log(entries, end, sha256(content).hexdigest())


def _parsed(text: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        raise InputError(f"line {number} of {str(path)!r} is not a line of a log of answers.")
    return table
