"""An annotator that knows the truth, thinks for a while, errs and skips: for load and for demos."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

from bitta.client.client import Client
from bitta.client.errors import ExpiredError
from bitta.client.records import Question, Verdict
from bitta.config import require
from bitta.errors import InputError

Truth: TypeAlias = Callable[[Question], int | None]
"""The true class of what a question is about; None where it is not known."""
_LISTEN = 2
"""Seconds between two looks at whether to stop."""


class TruthFile:
    """Classes by `prediction_id` or `input_sha256`: one JSON object, or one per line in a .jsonl.

    A name that is not found is looked for again once the file has changed, so that whoever sends
    the images can go on writing.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._classes: dict[str, int] = {}
        self._seen: tuple[int, int] | None = None
        self._read()

    def __call__(self, question: Question) -> int | None:
        """The class, or None."""
        found = self._find(question)
        if found is None and self._read():
            found = self._find(question)
        return found

    def _find(self, question: Question) -> int | None:
        for name in (question.prediction_id, question.input_sha256):
            if name is not None and name in self._classes:
                return self._classes[name]
        return None

    def _read(self) -> bool:
        """Whether there was something new."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._seen:
                return False
            text = self._path.read_text()
        except OSError as error:
            raise InputError(
                f"the truth {str(self._path)!r} cannot be read: {error.strerror}."
            ) from None
        self._seen = (stat.st_mtime_ns, stat.st_size)
        lines = self._path.suffix == ".jsonl"
        # The last line may not be whole yet.
        for part in text[: text.rfind("\n") + 1].splitlines() if lines else [text]:
            self._take(part)
        return True

    def _take(self, text: str) -> None:
        try:
            classes = json.loads(text)
        except ValueError as error:
            raise InputError(f"the truth {str(self._path)!r} is not JSON ({error}).") from None
        if not isinstance(classes, dict) or not all(type(of) is int for of in classes.values()):
            raise InputError(
                f"the truth {str(self._path)!r} holds something else than "
                '{"prediction_id or input_sha256": class index, ...}.'
            )
        self._classes.update(classes)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a simulated annotator answers; chance depends on seed and prediction alone."""

    flip: float = 0.0
    """Probability of the wrong verdict."""
    skip: float = 0.0
    """Probability of a skip."""
    delay: float = 0.0
    """Seconds of thought: from half to one and a half of this."""
    rate: float | None = None
    """Answers per second at most."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("flip", "skip"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        require(self.delay >= 0, "delay", self.delay, "0 seconds or more")
        require(self.rate is None or self.rate > 0, "rate", self.rate, "more than 0 a second")

    def verdict(self, question: Question, truth: int | None) -> Verdict:
        """What is answered; who does not know skips."""
        if truth is None or self._draw("skip", question) < self.skip:
            return "skip"
        slips = self._draw("flip", question) < self.flip
        return "correct" if (question.class_index == truth) != slips else "incorrect"

    def thinks(self, question: Question) -> float:
        """Seconds before the answer."""
        return self.delay * (0.5 + self._draw("delay", question))

    def _draw(self, purpose: str, question: Question) -> float:
        address = f"{self.seed}/{purpose}/{question.prediction_id}".encode()
        return int.from_bytes(hashlib.blake2b(address, digest_size=6).digest()) / 2**48


@dataclass(frozen=True, slots=True)
class Tally:
    """What was done."""

    correct: int = 0
    incorrect: int = 0
    skip: int = 0
    expired: int = 0
    """Questions that ran out before the answer came."""

    @property
    def answered(self) -> int:
        """Skips included."""
        return self.correct + self.incorrect + self.skip

    def with_one(self, name: str) -> "Tally":
        """One more of this kind."""
        return replace(self, **{name: getattr(self, name) + 1})


class SimulatedAnnotator:
    """Answers whatever the server asks, one question after another."""

    def __init__(self, client: Client, truth: Truth, habits: Habits | None = None) -> None:
        self._client = client
        self._truth = truth
        self._habits = habits or Habits()
        self.tally = Tally()

    def run(
        self,
        n: int | None = None,
        *,
        stop: Callable[[], bool] = lambda: False,
        on_answer: Callable[[Tally], None] | None = None,
    ) -> Tally:
        """Go on until n questions are answered, or `stop()`."""
        ready = monotonic()
        while not stop() and (n is None or self.tally.answered < n):
            question = self._client.next_question(wait=_LISTEN)
            if question is None:
                continue
            sleep(max(0.0, ready - monotonic()))
            if self._habits.rate is not None:
                ready = max(ready, monotonic()) + 1 / self._habits.rate
            self.answer(question)
            if on_answer is not None:
                on_answer(self.tally)
        return self.tally

    def answer(self, question: Question) -> None:
        """Think, and answer one question."""
        thought = self._habits.thinks(question)
        sleep(thought)
        verdict = self._habits.verdict(question, self._truth(question))
        try:
            self._client.answer(
                question, verdict=verdict, lead_time_ms=round(1000 * thought), kind="CODE"
            )
        except ExpiredError:
            self.tally = self.tally.with_one("expired")
        else:
            self.tally = self.tally.with_one(verdict)
