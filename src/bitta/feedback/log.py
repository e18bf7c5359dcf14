"""Answers in a file: write them while they come, and replay them."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from bitta.errors import FeedbackError, InputError
from bitta.feedback.base import FeedbackSource
from bitta.types import Answer, Query, State

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


class Recording:
    """Hands questions on to `source`, and writes every answer into a log at `path`.

    `end`, or the end of a `with` block without an error, marks the log as complete. A log that is
    there is not written over, unless `overwrite` says so and it is one of the same source and
    `settings` (whatever decides the answers, if the caller wants that checked).
    """

    def __init__(
        self,
        source: FeedbackSource,
        path: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.source = source
        self.path = Path(path)
        self._header = header(type(source).__name__, settings or {})
        self._overwrite = overwrite
        self._begun = self._ended = False
        self._n_bytes = 0
        self._digest = sha256()
        self._n_collects = self._n_asked = self._n_answered = 0

    def ask(self, queries: Sequence[Query]) -> None:
        """Hand questions on."""
        self._begin()
        self._n_asked += len(queries)
        self.source.ask(queries)

    def collect(self) -> list[Answer]:
        """Hand answers over once they are written."""
        self._begin()
        answers = self.source.collect()
        self._append([line(Entry.of(answer, self._n_collects)) for answer in answers])
        self._n_collects += 1
        self._n_answered += len(answers)
        return answers

    def end(self) -> None:
        """Mark the log as complete; nothing can be asked afterwards."""
        if self._ended:
            return
        self._begin()
        self._append([line(End(self._n_collects, self._n_asked, self._n_answered))])
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()

    def state_dict(self) -> State:
        """The source's, and how far the log had come."""
        return {
            "source_kind": type(self.source).__name__,
            "source": self.source.state_dict(),
            "header": self._header.decode(),
            "n_bytes": self._n_bytes,
            "digest": self._digest.hexdigest(),
            "n_collects": self._n_collects,
            "n_asked": self._n_asked,
            "n_answered": self._n_answered,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state; what the log holds beyond it is cut off."""
        if state["header"] != self._header.decode():
            raise InputError(
                f"the log was begun with {state['source_kind']} and other settings than "
                f"{type(self.source).__name__} has now; give the same source and settings."
            )
        self.source.load_state_dict(state["source"])
        self._n_bytes = state["n_bytes"]
        self._digest = sha256()
        self._n_collects, self._n_asked = state["n_collects"], state["n_asked"]
        self._n_answered = state["n_answered"]
        self._begun, self._ended = self._n_bytes > 0, False
        if self._begun:
            self._cut_back(state["digest"])

    def _cut_back(self, digest: str) -> None:
        content = self.path.read_bytes()[: self._n_bytes] if self.path.is_file() else b""
        self._digest.update(content)
        if self._digest.hexdigest() != digest:
            raise InputError(
                f"{str(self.path)!r} is not the log that was being written; bring it back, or "
                "start over."
            )
        os.truncate(self.path, self._n_bytes)

    def _begin(self) -> None:
        if self._ended:
            raise FeedbackError(f"the log {str(self.path)!r} has been ended; start another.")
        if self._begun:
            return
        with self._writing():
            if self.path.exists():
                self._check_replaceable()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
        self._begun = True
        self._append([self._header])

    def _check_replaceable(self) -> None:
        with self.path.open("rb") as file:
            same = file.readline() == self._header
        if not (same and self._overwrite) and self.path.stat().st_size:
            what = "a log of these very settings" if same else "something else"
            raise InputError(
                f"{str(self.path)!r} already holds {what}; give another path, or move it away."
            )

    def _append(self, lines: Sequence[bytes]) -> None:
        content = b"".join(lines)
        if not content:
            return
        with self._writing(), self.path.open("ab") as file:
            file.write(content)
        self._n_bytes += len(content)
        self._digest.update(content)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the log {str(self.path)!r} cannot be written ({error.strerror}); give another "
                "path."
            ) from None


class Recorded:
    """Replays a log of `Recording`: the same answers, in the same call of `collect`.

    The questions must be those of then; one that differs is an error that says where. A log
    without its end was cut, and is refused unless `partial` is set: then answers stop where the log
    does, which is said in a warning. `end`, or the end of a `with` block without an error, makes
    sure that nothing of the log is left.
    """

    def __init__(self, path: str | Path, *, partial: bool = False) -> None:
        self.path = Path(path)
        log = read_log(self.path)
        if log.end is None and not partial:
            raise InputError(
                f"the log {str(self.path)!r} has no end: it was cut after {len(log.entries)} "
                "answers; let its run go on to the end or, in Python, give partial=True to replay "
                "as much as there is."
            )
        self._entries = {entry.id: entry for entry in log.entries}
        self._due: dict[int, list[Entry]] = {}
        for entry in log.entries:
            self._due.setdefault(entry.collect, []).append(entry)
        self._end, self._digest = log.end, log.digest
        self._last = max(self._due, default=-1)
        self._n_collects = self._n_asked = self._n_answered = 0
        self._warned = False
        self._open: dict[int, Query] = {}

    def ask(self, queries: Sequence[Query]) -> None:
        """Take questions, each of which must be the one of then."""
        for query in queries:
            if self._end is not None and query.id >= self._end.asked:
                raise InputError(
                    f"batch {query.step} asks question {query.id}, but the log "
                    f"{str(self.path)!r} ends after {self._end.asked} questions; replay the run "
                    "that it was recorded in."
                )
            if (entry := self._entries.get(query.id)) is not None:
                self._check(query, entry)
                self._open[query.id] = query
        self._n_asked += len(queries)

    def collect(self) -> list[Answer]:
        """The answers that came in this call."""
        number = self._n_collects
        if self._end is None and number > self._last and not self._warned:
            self._warned = True
            warnings.warn(
                f"the log {str(self.path)!r} was cut after {len(self._entries)} answers; from "
                f"batch {number} on nobody answers.",
                stacklevel=2,
            )
        due = self._due.get(number, [])
        for entry in due:
            if entry.id not in self._open:
                raise InputError(
                    f"the log {str(self.path)!r} answers question {entry.id} in batch {number}, "
                    "where it has not been asked; replay the run that it was recorded in."
                )
        self._n_collects += 1
        self._n_answered += len(due)
        return [Answer(self._open.pop(entry.id), entry.correct, entry.named) for entry in due]

    def end(self) -> None:
        """Make sure that all of the log has been given."""
        left = len(self._entries) - self._n_answered
        if left:
            raise InputError(
                f"the stream is over, but the log {str(self.path)!r} holds {left} further answers; "
                "replay the run that it was recorded in."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()

    def state_dict(self) -> State:
        """How far the replay is; the log is brought again."""
        return {
            "digest": self._digest,
            "n_collects": self._n_collects,
            "n_asked": self._n_asked,
            "n_answered": self._n_answered,
            "open": [query.state_dict() for query in self._open.values()],
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        if state["digest"] != self._digest:
            raise InputError(
                f"{str(self.path)!r} is not the log that was being replayed; bring it back."
            )
        self._n_collects, self._n_asked = state["n_collects"], state["n_asked"]
        self._n_answered = state["n_answered"]
        self._open = {query["id"]: Query(**query) for query in state["open"]}

    def _check(self, query: Query, entry: Entry) -> None:
        if difference := entry.difference(query):
            raise InputError(
                f"question {query.id} in batch {query.step} is not the one in the log "
                f"{str(self.path)!r}: {difference}; replay the run that it was recorded in."
            )
