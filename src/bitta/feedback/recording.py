"""Answers written down as they come, for `Recorded` to give again."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from bitta.errors import FeedbackError, InputError
from bitta.feedback.log import End, Entry, header, line
from bitta.feedback.source import FeedbackSource
from bitta.types import Answer, Query, State


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
