"""bitta sweep: run many experiments, several at a time; finished ones are skipped."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Protocol

from bitta.allocator import keep_freed_memory
from bitta.bench.board import Board, Row
from bitta.bench.device import device_named
from bitta.bench.expand import read_jobs
from bitta.bench.sweep import sweep
from bitta.bench.worker import Manner, work
from bitta.cli.execution import add_execution
from bitta.cli.signals import stop_on_signal
from bitta.config import require
from bitta.errors import SettingError
from bitta.statefile import check_writable

_SECONDS_BETWEEN_LINES = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "experiments",
        nargs="+",
        metavar="DIR_OR_TOML",
        help="experiments, or folders of them; one may hold a table [sweep]",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)"
    )
    parser.add_argument("--seeds", metavar="0,1,2", help="in place of those of the experiments")
    parser.add_argument(
        "--only", default="*", metavar="GLOB", help="only runs of such a name, as in 'tent*'"
    )
    add_execution(parser, overrides="change a setting of every experiment (repeatable)")
    stale = parser.add_mutually_exclusive_group()
    stale.add_argument(
        "--rerun", action="store_true", help="replace results that other code has written"
    )
    stale.add_argument(
        "--keep", action="store_true", help="take results that other code has written as they are"
    )


def main(arguments: argparse.Namespace) -> int:
    """Build every experiment, run what is not finished, sum up."""
    started = monotonic()
    require(arguments.jobs >= 1, "--jobs", arguments.jobs, "1 or more")
    device_named(arguments.device)
    chosen = read_jobs(
        arguments.experiments,
        overrides=arguments.overrides,
        seeds=_seeds(arguments.seeds),
        only=arguments.only,
    )
    check_writable(arguments.out)
    manner = Manner(
        out=arguments.out,
        device=arguments.device,
        eager=arguments.eager,
        precision=arguments.precision,
        checkpoint_seconds=arguments.checkpoint_seconds,
        stale="rerun" if arguments.rerun else "keep" if arguments.keep else "refuse",
    )
    with _view() as view, stop_on_signal() as should_stop:
        board = sweep(
            chosen,
            manner,
            jobs=arguments.jobs,
            command=_worker_command,
            on_look=view.show,
            should_stop=should_stop,
        )
    return _sum_up(board, Path(arguments.out), monotonic() - started)


def _seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(
            f"--seeds is {text!r}; allowed: whole numbers, separated by commas."
        ) from None


def _worker_command(reports: int) -> Sequence[str]:
    """This interpreter, with the very modules that this process would import."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from bitta.cli.sweep import worker; worker({reports}, {os.getpid()})"
    )
    return [sys.executable, "-u", "-c", code]


def worker(reports: int, parent: int) -> None:
    """The life of a process that makes runs for a sweep."""
    keep_freed_memory()
    with stop_on_signal() as should_stop:
        work(reports, parent=parent, should_stop=should_stop)


def _sum_up(board: Board, out: Path, seconds: float) -> int:
    before = board.count("found")
    done = f"{board.count('done', 'found')} done" + (f" ({before} before)" if before else "")
    parts = [done, f"{board.count('failed')} failed"]
    if left := board.count("waiting"):
        parts.append(f"{left} left")
    print(f"{_runs(board)}: {', '.join(parts)}; {_duration(seconds)}; results: {out}")
    for row in board.rows:
        if row.state == "failed":
            print(_failure(row))
    if left:
        print("stopped; the same command goes on.", file=sys.stderr)
        return 130
    return 1 if board.count("failed") else 0


def status(board: Board) -> str:
    """How far a sweep is, in one line."""
    running = ", ".join(_progress(row) for row in board.rows if row.state == "running")
    parts = [f"{board.count('done', 'found')} done"]
    parts.append(f"{board.count('running')} running" + (f" ({running})" if running else ""))
    if failed := board.count("failed"):
        parts.append(f"{failed} failed")
    return f"{_runs(board)}: {', '.join(parts)}{time_left(board)}"


def time_left(board: Board) -> str:
    """; about 4 min left: empty before that is known."""
    left = board.seconds_left
    return "" if left is None else f"; about {_duration(left)} left"


def _progress(row: Row) -> str:
    match row.doing:
        case "":
            return f"{row.job.label} starting"
        case "waits":
            return f"{row.job.label} waiting for another process"
        case doing:
            return f"{row.job.label} {doing} {row.done}/{row.total}"


def _failure(row: Row) -> str:
    return f"{row.job.label} failed: {row.error}  log: {row.log}"


def _runs(board: Board) -> str:
    return f"{len(board.rows)} run{'s' if len(board.rows) > 1 else ''}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


class View(Protocol):
    """Shows a sweep while it goes on."""

    def show(self, board: Board) -> None:
        """Called several times a second."""


class PlainView:
    """A line every few seconds, and one for each failure."""

    def __init__(self) -> None:
        self._last = monotonic()
        self._told = 0

    def show(self, board: Board) -> None:
        """Print if it is time."""
        failed = [row for row in board.rows if row.state == "failed"]
        if len(failed) == self._told and monotonic() - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last, self._told = monotonic(), len(failed)
        print(status(board), flush=True)


@contextmanager
def _view() -> Iterator[View]:
    """The best that this terminal and this installation allow."""
    if not sys.stdout.isatty():
        yield PlainView()
        return
    try:
        from bitta.cli.sweep_live import LiveView  # noqa: PLC0415 (rich is an extra)
    except ImportError:
        yield PlainView()
        return
    with LiveView() as view:
        yield view
