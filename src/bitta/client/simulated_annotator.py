"""Simulated annotator for load tests and demos: it knows the truth, but can err, skip and wait."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import TypeAlias

from bitta.client.client import Client
from bitta.client.errors import ExpiredError
from bitta.config_base import require
from bitta.errors import InputError
from bitta.records import AskedQuestion, Verdict

TrueClass: TypeAlias = Callable[[AskedQuestion], int | None]
"""Function that returns the true class for a question, or None if it is unknown."""
_POLL_SECONDS = 2
"""Longest duration of one poll for a question. `should_stop` is checked between polls."""


class TruthFile:
    """True classes by `prediction_id` or `input_sha256`.

    A .json file holds one JSON object, a .jsonl file one object per line. The file is read again
    when an id is not found and the file has changed, so it may grow while it is used.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._classes: dict[str, int] = {}
        self._last_stat: tuple[int, int] | None = None
        """Modification time and size at the last reading."""
        self._read_if_changed()

    def __call__(self, question: AskedQuestion) -> int | None:
        """Return the true class, or None if the file does not hold it."""
        found = self._find(question)
        if found is None and self._read_if_changed():
            found = self._find(question)
        return found

    def _find(self, question: AskedQuestion) -> int | None:
        for key in (question.prediction_id, question.input_sha256):
            if key in self._classes:
                return self._classes[key]
        return None

    def _read_if_changed(self) -> bool:
        """Read the file unless it is unchanged. Return True if it was read."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._last_stat:
                return False
            text = self._path.read_text()
        except OSError as error:
            raise InputError(
                f"the truth file {str(self._path)!r} cannot be read: {error.strerror}."
            ) from None
        self._last_stat = (stat.st_mtime_ns, stat.st_size)
        if self._path.suffix == ".jsonl":
            # The last line may still be incomplete.
            objects = text[: text.rfind("\n") + 1].splitlines()
        else:
            objects = [text]
        for item in objects:
            self._add_classes(item)
        return True

    def _add_classes(self, text: str) -> None:
        try:
            classes = json.loads(text)
        except ValueError as error:
            raise InputError(f"the truth file {str(self._path)!r} is not JSON ({error}).") from None
        if not isinstance(classes, dict) or not all(
            type(index) is int for index in classes.values()
        ):
            raise InputError(
                f"the truth file {str(self._path)!r} has the wrong content; allowed: objects "
                '{"prediction_id or input_sha256": class index, ...}.'
            )
        self._classes.update(classes)


@dataclass(frozen=True, kw_only=True)
class SimulatedBehaviour:
    """Errors, skips and speed of a simulated annotator.

    Random numbers depend only on the seed and the prediction.
    """

    flip: float = 0.0
    """Probability that a verdict is flipped to the wrong one."""
    skip: float = 0.0
    """Probability of a skip."""
    delay: float = 0.0
    """Mean thinking time in seconds. A single time is 0.5 to 1.5 times as long."""
    rate: float | None = None
    """Maximum number of answers per second. None stands for no limit."""
    seed: int = 0
    """Seed of errors, skips and delays."""

    def __post_init__(self) -> None:
        for name in ("flip", "skip"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        require(self.delay >= 0, "delay", self.delay, "0 seconds or more")
        require(self.rate is None or self.rate > 0, "rate", self.rate, "more than 0 per second")

    def choose_verdict(self, question: AskedQuestion, true_class: int | None) -> Verdict:
        """Return the verdict on a question. An unknown true class gives a skip."""
        if true_class is None or self._random("skip", question) < self.skip:
            return "skip"
        is_flipped = self._random("flip", question) < self.flip
        return "correct" if (question.class_index == true_class) != is_flipped else "incorrect"

    def thinking_seconds(self, question: AskedQuestion) -> float:
        """Return the time between a question and its answer."""
        return self.delay * (0.5 + self._random("delay", question))

    def _random(self, purpose: str, question: AskedQuestion) -> float:
        """Return a random number from 0 to 1."""
        address = f"{self.seed}/{purpose}/{question.prediction_id}".encode()
        return int.from_bytes(hashlib.blake2b(address, digest_size=6).digest()) / 2**48


@dataclass(frozen=True, slots=True)
class AnswerCounts:
    """Numbers of answers by verdict."""

    correct: int = 0
    incorrect: int = 0
    skip: int = 0
    expired: int = 0
    """Questions that expired before the answer came."""

    @property
    def n_answered(self) -> int:
        """Number of stored answers, with skips."""
        return self.correct + self.incorrect + self.skip

    def increment(self, name: str) -> "AnswerCounts":
        """Return the counts with one of them raised by one."""
        return replace(self, **{name: getattr(self, name) + 1})


class SimulatedAnnotator:
    """Annotator that answers the questions of a server, one after another."""

    def __init__(
        self,
        client: Client,
        true_class: TrueClass,
        behaviour: SimulatedBehaviour | None = None,
    ) -> None:
        self._client = client
        self._true_class = true_class
        self._behaviour = behaviour or SimulatedBehaviour()
        self.counts = AnswerCounts()

    def run(
        self,
        n: int | None = None,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_answer: Callable[[AnswerCounts], None] | None = None,
    ) -> AnswerCounts:
        """Answer until n questions are answered or `should_stop()` is true."""
        next_answer_at = monotonic()
        while not should_stop() and (n is None or self.counts.n_answered < n):
            question = self._client.next_question(wait=_POLL_SECONDS)
            if question is None:
                continue
            sleep(max(0.0, next_answer_at - monotonic()))
            if self._behaviour.rate is not None:
                next_answer_at = max(next_answer_at, monotonic()) + 1 / self._behaviour.rate
            self.answer(question)
            if on_answer is not None:
                on_answer(self.counts)
        return self.counts

    def answer(self, question: AskedQuestion) -> None:
        """Wait for the thinking time, then answer one question."""
        seconds = self._behaviour.thinking_seconds(question)
        sleep(seconds)
        verdict = self._behaviour.choose_verdict(question, self._true_class(question))
        try:
            self._client.answer(
                question,
                verdict=verdict,
                lead_time_ms=round(1000 * seconds),
                annotator_kind="CODE",
            )
        except ExpiredError:
            self.counts = self.counts.increment("expired")
        else:
            self.counts = self.counts.increment(verdict)
