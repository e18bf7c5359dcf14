"""Log of answers in a file: record answers while they arrive, and replay them."""

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

_FORMAT = 2
_QUERY_FIELDS = ("id", "step", "index", "position", "shown_label")
_HOW_TO_REPAIR = "restore the log, or record it again"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One answer in a log."""

    collect: int
    """Number of the `collect` call that returned the answer."""
    id: int
    step: int
    index: int
    position: int
    shown_label: int
    """Label that was judged."""
    correct: bool
    named: int | None
    """Class named by an annotator who gives full labels."""

    @classmethod
    def from_answer(cls, answer: Answer, collect: int) -> Self:
        """Make the entry of an answer."""
        query = {name: getattr(answer.query, name) for name in _QUERY_FIELDS}
        return cls(collect=collect, correct=answer.correct, named=answer.label, **query)

    def describe_difference(self, query: Query) -> str:
        """Describe how a question differs from this entry; empty if it does not."""
        differing = [name for name in _QUERY_FIELDS if getattr(query, name) != getattr(self, name)]
        return ", ".join(
            f"{name} {getattr(query, name)} where the log has {getattr(self, name)}"
            for name in differing
        )


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Totals in the last line of a complete log."""

    collects: int
    asked: int
    answered: int


@dataclass(frozen=True, slots=True)
class AnswerLog:
    """Content of a log. `end` is None if the log is incomplete."""

    entries: tuple[LogEntry, ...]
    end: LogEnd | None
    digest: str


def header_line(source: str, settings: Mapping[str, Any]) -> bytes:
    """Return the first line of a log. It names the feedback source and holds a settings hash."""
    canonical = json.dumps(settings, sort_keys=True, default=str)
    return encode_line(
        {
            "bitta": "answers",
            "format": _FORMAT,
            "source": source,
            "settings": sha256(canonical.encode()).hexdigest(),
        }
    )


def encode_line(content: LogEntry | LogEnd | Mapping[str, Any]) -> bytes:
    """Return the bytes of one line of a log."""
    if isinstance(content, LogEntry):
        table: Mapping[str, Any] = asdict(content)
    elif isinstance(content, LogEnd):
        table = {"end": True} | asdict(content)
    else:
        table = content
    return json.dumps(table).encode() + b"\n"


def read_log(path: Path) -> AnswerLog:
    """Read and check a log. A last line without a line break is incomplete and is ignored."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error.strerror}); give the path of a log."
        ) from None
    *lines, _ = content.split(b"\n")
    tables = [_parse_line(text, path, number) for number, text in enumerate(lines, 1)]
    if not tables or (tables[0].get("bitta"), tables[0].get("format")) != ("answers", _FORMAT):
        raise InputError(
            f"{str(path)!r} is not a log of answers that this version of bitta reads; give another "
            "file."
        )
    last = tables[-1] if tables[-1].get("end") is True else None
    body = tables[1:-1] if last else tables[1:]
    try:
        entries = tuple(LogEntry(**table) for table in body)
        end = (
            LogEnd(**{name: last[name] for name in ("collects", "asked", "answered")})
            if last
            else None
        )
    except (TypeError, KeyError) as error:
        raise InputError(
            f"{str(path)!r} holds a line that is not an answer ({error}); {_HOW_TO_REPAIR}."
        ) from None
    if end is not None and end.answered != len(entries):
        raise InputError(
            f"{str(path)!r} holds {len(entries)} answers, but its last line counts {end.answered}; "
            f"lines have been lost or added; {_HOW_TO_REPAIR}."
        )
    return AnswerLog(entries, end, sha256(content).hexdigest())


def _parse_line(text: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict):
        raise InputError(
            f"line {number} of {str(path)!r} is not a line of a log of answers; {_HOW_TO_REPAIR}."
        )
    return table


class FeedbackRecorder:
    """Passes questions on to another feedback source and writes every answer to a log.

    `end`, or the end of a `with` block without an error, marks the log as complete. An existing
    log is overwritten only with `overwrite`, and only if it has the same source class and
    `settings`. `settings` are values that determine the answers. The log stores their hash.
    """

    def __init__(
        self,
        feedback_source: FeedbackSource,
        path: str | Path,
        *,
        settings: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.feedback_source = feedback_source
        self.path = Path(path)
        self._header = header_line(type(feedback_source).__name__, settings or {})
        self._overwrite = overwrite
        self._is_started = self._is_ended = False
        self._n_bytes = 0
        self._digest = sha256()
        self._n_collects = self._n_asked = self._n_answered = 0

    def ask(self, queries: Sequence[Query]) -> None:
        """Pass questions on."""
        self._start()
        self._n_asked += len(queries)
        self.feedback_source.ask(queries)

    def collect(self) -> list[Answer]:
        """Write the answers to the log, then return them."""
        self._start()
        answers = self.feedback_source.collect()
        entries = [LogEntry.from_answer(answer, self._n_collects) for answer in answers]
        self._append([encode_line(entry) for entry in entries])
        self._n_collects += 1
        self._n_answered += len(answers)
        return answers

    def end(self) -> None:
        """Mark the log as complete. No question can be asked afterwards."""
        if self._is_ended:
            return
        self._start()
        self._append([encode_line(LogEnd(self._n_collects, self._n_asked, self._n_answered))])
        self._is_ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()

    def state_dict(self) -> State:
        """Return the state of the feedback source and the position in the log."""
        return {
            "source_kind": type(self.feedback_source).__name__,
            "feedback_source": self.feedback_source.state_dict(),
            "header": self._header.decode(),
            "n_bytes": self._n_bytes,
            "digest": self._digest.hexdigest(),
            "n_collects": self._n_collects,
            "n_asked": self._n_asked,
            "n_answered": self._n_answered,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state. Later lines of the log are cut off."""
        if state["header"] != self._header.decode():
            raise InputError(
                f"the log was started with {state['source_kind']} and other settings than "
                f"{type(self.feedback_source).__name__} has now; give the same source and settings."
            )
        self.feedback_source.load_state_dict(state["feedback_source"])
        self._n_bytes = state["n_bytes"]
        self._digest = sha256()
        self._n_collects, self._n_asked = state["n_collects"], state["n_asked"]
        self._n_answered = state["n_answered"]
        self._is_started, self._is_ended = self._n_bytes > 0, False
        if self._is_started:
            self._truncate(state["digest"])

    def _truncate(self, digest: str) -> None:
        content = self.path.read_bytes()[: self._n_bytes] if self.path.is_file() else b""
        self._digest.update(content)
        if self._digest.hexdigest() != digest:
            raise InputError(
                f"{str(self.path)!r} is not the log that was being written; restore it, or "
                "start over."
            )
        os.truncate(self.path, self._n_bytes)

    def _start(self) -> None:
        if self._is_ended:
            raise FeedbackError(f"the log {str(self.path)!r} has been ended; start another.")
        if self._is_started:
            return
        with self._explain_write_errors():
            if self.path.exists():
                self._check_replaceable()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(b"")
        self._is_started = True
        self._append([self._header])

    def _check_replaceable(self) -> None:
        with self.path.open("rb") as file:
            has_same_header = file.readline() == self._header
        if not (has_same_header and self._overwrite) and self.path.stat().st_size:
            what = "a log of the same settings" if has_same_header else "something else"
            raise InputError(
                f"{str(self.path)!r} already holds {what}; give another path, or move it away."
            )

    def _append(self, lines: Sequence[bytes]) -> None:
        content = b"".join(lines)
        if not content:
            return
        with self._explain_write_errors(), self.path.open("ab") as file:
            file.write(content)
        self._n_bytes += len(content)
        self._digest.update(content)

    @contextmanager
    def _explain_write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"the log {str(self.path)!r} cannot be written ({error.strerror}); give another "
                "path."
            ) from None


class FeedbackReplay:
    """Replays a log of `FeedbackRecorder`: the same answers in the same call of `collect`.

    The questions must be those of the recorded run; a different question raises an error. An
    incomplete log raises an error too. With `partial` it is replayed, and a warning is issued when
    its answers end. `end`, or the end of a `with` block without an error, checks that all answers
    were replayed.
    """

    def __init__(self, path: str | Path, *, partial: bool = False) -> None:
        self.path = Path(path)
        log = read_log(self.path)
        if log.end is None and not partial:
            raise InputError(
                f"the log {str(self.path)!r} has no end: it was cut after {len(log.entries)} "
                "answers; finish the run that writes it or, in Python, give partial=True to replay "
                "these answers."
            )
        self._entries = {entry.id: entry for entry in log.entries}
        self._entries_by_collect: dict[int, list[LogEntry]] = {}
        for entry in log.entries:
            self._entries_by_collect.setdefault(entry.collect, []).append(entry)
        self._end, self._digest = log.end, log.digest
        self._last_collect = max(self._entries_by_collect, default=-1)
        self._n_collects = self._n_asked = self._n_answered = 0
        self._has_warned = False
        self._open: dict[int, Query] = {}

    def ask(self, queries: Sequence[Query]) -> None:
        """Take questions. Each must equal the recorded one."""
        for query in queries:
            if self._end is not None and query.id >= self._end.asked:
                raise InputError(
                    f"batch {query.step} asks question {query.id}, but the log "
                    f"{str(self.path)!r} ends after {self._end.asked} questions; replay the run "
                    "that it was recorded in."
                )
            if (entry := self._entries.get(query.id)) is not None:
                self._check_question(query, entry)
                self._open[query.id] = query
        self._n_asked += len(queries)

    def collect(self) -> list[Answer]:
        """Return the answers of the same call in the recorded run."""
        number = self._n_collects
        if self._end is None and number > self._last_collect and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the log {str(self.path)!r} was cut after {len(self._entries)} answers; from "
                f"batch {number} on, questions get no answer.",
                stacklevel=2,
            )
        due = self._entries_by_collect.get(number, [])
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
        """Raise an error if the log holds answers that were not replayed."""
        n_left = len(self._entries) - self._n_answered
        if n_left:
            raise InputError(
                f"the stream is over, but the log {str(self.path)!r} holds {n_left} further "
                "answers; replay the run that it was recorded in."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()

    def state_dict(self) -> State:
        """Return the position in the log, without the log."""
        return {
            "digest": self._digest,
            "n_collects": self._n_collects,
            "n_asked": self._n_asked,
            "n_answered": self._n_answered,
            "open": [query.state_dict() for query in self._open.values()],
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        if state["digest"] != self._digest:
            raise InputError(
                f"{str(self.path)!r} is not the log that was being replayed; restore it."
            )
        self._n_collects, self._n_asked = state["n_collects"], state["n_asked"]
        self._n_answered = state["n_answered"]
        self._open = {query["id"]: Query(**query) for query in state["open"]}

    def _check_question(self, query: Query, entry: LogEntry) -> None:
        if difference := entry.describe_difference(query):
            raise InputError(
                f"question {query.id} in batch {query.step} is not the one in the log "
                f"{str(self.path)!r}: {difference}; replay the run that it was recorded in."
            )
