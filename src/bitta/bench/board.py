"""How far a sweep is, and how long it will take."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from bitta.bench.expand import Job

State = Literal["waiting", "running", "done", "found", "failed"]


@dataclass(slots=True)
class Row:
    """One run, as far as the sweep has heard of it."""

    job: Job
    log: Path
    state: State = "waiting"
    doing: str = ""
    """What is counted: batch, enhanced; or "waits" while another process has what it needs."""
    done: int = 0
    total: int = 0
    error: str = ""
    crashes: int = 0
    _seconds: float = 0.0
    _batches: int = 0
    _heard: tuple[float, int] | None = None

    def begin(self) -> None:
        """A worker has it."""
        self.state, self.doing, self.done, self._heard = "running", "", 0, None

    def hear(self, doing: str, done: int, total: int, *, now: float) -> None:
        """A report of progress."""
        if doing == self.doing == "batch" and self._heard is not None:
            then, before = self._heard
            self._seconds += now - then
            self._batches += done - before
        self.doing, self.done, self.total = doing, done, total
        self._heard = (now, done)

    @property
    def pace(self) -> float | None:
        """Seconds per batch in this sweep, the first one of each life apart."""
        return self._seconds / self._batches if self._batches else None

    @property
    def length(self) -> int | None:
        """Batches in all, once they are known."""
        return self.total if self.doing == "batch" else None


@dataclass(frozen=True, slots=True)
class Board:
    """Every run of a sweep."""

    rows: Sequence[Row]
    jobs: int
    """How many run at a time."""

    def count(self, *states: State) -> int:
        """How many runs are in one of these states."""
        return sum(row.state in states for row in self.rows)

    @property
    def seconds_left(self) -> float | None:
        """From the pace of the batches so far; None before one is known, and at the end."""
        paces = [(row.job.experiment.method, row.pace) for row in self.rows if row.pace is not None]
        lengths = [(row.job.experiment.stream, row.length) for row in self.rows if row.length]
        if not paces or not lengths or not self.count("waiting", "running"):
            return None
        left = []
        for row in self.rows:
            if row.state not in ("waiting", "running"):
                continue
            experiment = row.job.experiment
            length = row.length or _alike(lengths, experiment.stream)
            done = row.done if row.doing == "batch" else 0
            left.append((length - done) * (row.pace or _alike(paces, experiment.method)))
        # Neither can the work be shared out better than evenly, nor a run be cut in two.
        return max(sum(left) / self.jobs, *left)


def _alike(known: Sequence[tuple[object, float]], key: object) -> float:
    """The mean of those that share the key or, if there are none, of all."""
    same = [value for other, value in known if other == key]
    return fmean(same or [value for _, value in known])
