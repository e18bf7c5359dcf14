"""Progress displays of long commands, and a clean stop by Ctrl-C or SIGTERM."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Protocol, Self

from bitta.bench.sweep import RunStatus, SweepProgress

if TYPE_CHECKING:  # rich is an optional dependency
    from rich.progress import TaskID

_SECONDS_BETWEEN_LINES = 5.0


class ProgressDisplay(Protocol):
    """Display for the progress of one or several pieces of work."""

    def update(self, name: str, done: int, total: int, note: str) -> None:
        """Show that `done` of `total` units of the work called `name` are done."""


class PlainProgress:
    """Display that prints a line every few seconds, and one at the end of each piece of work."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._last_line_at = monotonic()

    def update(self, name: str, done: int, total: int, note: str) -> None:
        """Print a line if the last one is old enough or the work is done."""
        if done < total and monotonic() - self._last_line_at < _SECONDS_BETWEEN_LINES:
            return
        self._last_line_at = monotonic()
        print(f"{name:<10} {self._unit} {done}/{total}  {note}".rstrip(), flush=True)


class RichProgress:
    """Display with one live bar per piece of work, and an estimate of the remaining time."""

    def __init__(self) -> None:
        from rich.progress import (  # noqa: PLC0415 (rich is an optional dependency)
            BarColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._task_ids: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, name: str, done: int, total: int, note: str) -> None:
        """Move a bar. Add it if it is new."""
        if name not in self._task_ids:
            self._task_ids[name] = self._bars.add_task(name, total=total, note=note)
        self._bars.update(self._task_ids[name], completed=done, total=total, note=note)


@contextmanager
def show_progress(unit: str = "batch") -> Iterator[ProgressDisplay]:
    """Yield live bars on a terminal with rich, and plain lines elsewhere. Lines name the `unit`."""
    if not _has_live_bars():
        yield PlainProgress(unit)
        return
    with RichProgress() as bars:
        yield bars


class SweepDisplay(Protocol):
    """Display for the progress of a sweep."""

    def show(self, progress: SweepProgress) -> None:
        """Show the state of a sweep. It is called several times per second."""


class PlainSweepDisplay:
    """Display that prints a line every few seconds, and one for each failure."""

    def __init__(self) -> None:
        self._last_line_at = monotonic()
        self._n_failed = 0

    def show(self, progress: SweepProgress) -> None:
        """Print a line if the last one is old enough or a run has failed."""
        n_failed = progress.count("failed")
        is_recent = monotonic() - self._last_line_at < _SECONDS_BETWEEN_LINES
        if n_failed == self._n_failed and is_recent:
            return
        self._last_line_at, self._n_failed = monotonic(), n_failed
        print(sweep_status(progress), flush=True)


class RichSweepDisplay:
    """Display with one live bar for the sweep and one for each current run."""

    def __init__(self) -> None:
        from rich.progress import (  # noqa: PLC0415 (rich is an optional dependency)
            BarColumn,
            Progress,
            TextColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[note]}"),
        )
        self._sweep_id: TaskID | None = None
        self._run_ids: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def show(self, progress: SweepProgress) -> None:
        """Move the bars, add bars for new runs, and remove those of finished runs."""
        n_failed = progress.count("failed")
        note = (f"{n_failed} failed" if n_failed else "") + _time_left(progress)
        done, total = progress.count("done", "found", "failed"), len(progress.runs)
        if self._sweep_id is None:
            self._sweep_id = self._bars.add_task("runs", total=total, note=note)
        self._bars.update(self._sweep_id, completed=done, note=note.removeprefix("; "))
        running = {run.job.label: run for run in progress.runs if run.state == "running"}
        for label in self._run_ids.keys() - running.keys():
            self._bars.remove_task(self._run_ids.pop(label))
        for label, run in running.items():
            if label not in self._run_ids:
                self._run_ids[label] = self._bars.add_task(label, total=None, note="")
            note = {"": "starting", "waiting": "waiting for another process", "batch": ""}.get(
                run.activity, run.activity
            )
            self._bars.update(
                self._run_ids[label], completed=run.done, total=run.total or None, note=note
            )


@contextmanager
def show_sweep() -> Iterator[SweepDisplay]:
    """Yield live bars on a terminal with rich, and plain lines elsewhere."""
    if not _has_live_bars():
        yield PlainSweepDisplay()
        return
    with RichSweepDisplay() as display:
        yield display


def sweep_status(progress: SweepProgress) -> str:
    """Return the state of a sweep as one line."""
    running = ", ".join(_run_status(run) for run in progress.runs if run.state == "running")
    parts = [f"{progress.count('done', 'found')} done"]
    parts.append(f"{progress.count('running')} running" + (f" ({running})" if running else ""))
    if n_failed := progress.count("failed"):
        parts.append(f"{n_failed} failed")
    return f"{count_runs(progress)}: {', '.join(parts)}{_time_left(progress)}"


def count_runs(progress: SweepProgress) -> str:
    """Return the number of runs with its noun."""
    return f"{len(progress.runs)} run{'s' if len(progress.runs) > 1 else ''}"


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C or SIGTERM.

    The work can then be saved. A second signal raises KeyboardInterrupt.
    """
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _has_live_bars() -> bool:
    """Return True if the output is a terminal and rich is installed."""
    return sys.stdout.isatty() and find_spec("rich") is not None


def _time_left(progress: SweepProgress) -> str:
    """Return the end of a status line, such as "; about 4 min left". It is empty if unknown."""
    seconds = progress.seconds_left
    return "" if seconds is None else f"; about {format_duration(seconds)} left"


def _run_status(run: RunStatus) -> str:
    match run.activity:
        case "":
            return f"{run.job.label} starting"
        case "waiting":
            return f"{run.job.label} waiting for another process"
        case activity:
            return f"{run.job.label} {activity} {run.done}/{run.total}"
