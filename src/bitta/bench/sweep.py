"""Many runs, several at a time, each kept from harming the others.

Workers are processes of this interpreter (`bitta.bench.worker`) that take one run after another.
One that dies is replaced, and its run is tried once more, from its checkpoint.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import Any

from bitta.bench.board import Board, Row
from bitta.bench.expand import Job
from bitta.bench.standing import Standing, refuse_stale
from bitta.bench.worker import Manner, log_path, order
from bitta.errors import UnreadableFileError
from bitta.results import code_hash

_SECONDS_BETWEEN_LOOKS = 0.2
_TRIES = 2

Command = Callable[[int], Sequence[str]]
"""How to start a worker that reports to the pipe of this number."""


def sweep(
    chosen: Sequence[Job],
    manner: Manner,
    *,
    jobs: int,
    command: Command,
    on_look: Callable[[Board], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Board:
    """Run what is not finished, `jobs` at a time; `on_look` is shown the board now and then.

    If `should_stop` says so, runs are saved and the sweep returns with some of them waiting.
    """
    check_standing(chosen, manner)
    out = Path(manner.out)
    rows = [Row(job, log_path(job.experiment, out)) for job in chosen]
    board = Board(rows, jobs=min(jobs, len(rows)))
    with _Pool(board, manner, command) as pool:
        while pool.busy:
            if should_stop():
                pool.stop()
            pool.look()
            on_look(board)
    return board


def check_standing(chosen: Sequence[Job], manner: Manner) -> None:
    """Refuse, before anything runs, to overwrite or mix what does not belong together."""
    out, code = Path(manner.out), code_hash()
    stale = []
    for job in chosen:
        # What cannot be read is the failure of one run, which its worker will tell.
        with suppress(UnreadableFileError):
            if Standing.of(job.experiment, out, code=code).stale:
                stale.append(job.label)
    if manner.stale == "refuse":
        refuse_stale(stale)


class _Pool:
    """The workers, and who has what."""

    def __init__(self, board: Board, manner: Manner, command: Command) -> None:
        self._board = board
        self._manner = manner
        self._command = command
        self._selector = DefaultSelector()
        self._workers: list[_Worker] = []
        self._stopping = False

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.close()
        self._selector.close()

    @property
    def busy(self) -> bool:
        """Whether there is anything left to do or to wait for."""
        return bool(self._workers) or (not self._stopping and self._board.count("waiting") > 0)

    def stop(self) -> None:
        """Let every worker save its run and go; called again, nothing changes."""
        if not self._stopping:
            self._stopping = True
            for worker in self._workers:
                worker.stop()

    def look(self) -> None:
        """Give out runs, hear reports, notice deaths."""
        if not self._stopping:
            self._give_out()
        for key, _ in self._selector.select(timeout=_SECONDS_BETWEEN_LOOKS):
            worker: _Worker = key.data
            for report in worker.reports():
                self._hear(worker, report)
            if worker.gone:
                self._bury(worker)

    def _give_out(self) -> None:
        for row in self._board.rows:
            if row.state != "waiting":
                continue
            idle = [worker for worker in self._workers if worker.idle]
            if not idle and len(self._workers) == self._board.jobs:
                return
            worker = idle[0] if idle else self._start(row)
            row.begin()
            worker.give(row, order(row.job.experiment, self._manner))
        for worker in self._workers:
            if worker.row is None:
                worker.dismiss()

    def _start(self, row: Row) -> "_Worker":
        worker = _Worker(self._command, row.log, _environment(self._board.jobs))
        self._workers.append(worker)
        self._selector.register(worker.pipe, EVENT_READ, worker)
        return worker

    def _hear(self, worker: "_Worker", report: dict[str, Any]) -> None:
        row = worker.row
        assert row is not None, "only a worker with a run has something to report"
        match report["event"]:
            case "end":
                worker.row = None
                row.error = report["error"]
                row.state = "waiting" if report["ending"] == "stopped" else report["ending"]
            case "crash":
                row.error = report["error"]
            case doing:
                row.hear(doing, report["done"], report["total"], now=monotonic())

    def _bury(self, worker: "_Worker") -> None:
        self._selector.unregister(worker.pipe)
        self._workers.remove(worker)
        code = worker.close()
        if (row := worker.row) is None:
            return
        row.state = "waiting"
        if self._stopping:
            return
        row.crashes += 1
        if row.crashes == _TRIES:
            row.state = "failed"
            row.error = row.error or _cause(code, row.log)


class _Worker:
    """One process, seen from here."""

    def __init__(self, command: Command, log: Path, environment: dict[str, str]) -> None:
        self.row: Row | None = None
        self.gone = False
        self._heard = b""
        self.pipe, theirs = os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                command(theirs),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
                # Ctrl-C reaches the sweep alone, which tells its workers once.
                process_group=0,
                env=environment,
            )
        assert self.process.stdin is not None
        self.stdin = self.process.stdin
        os.close(theirs)
        os.set_blocking(self.pipe, False)

    @property
    def idle(self) -> bool:
        """Whether it waits for an order."""
        return self.row is None and not self.stdin.closed

    def give(self, row: Row, line: str) -> None:
        """Ask for a run."""
        self.row = row
        with suppress(BrokenPipeError):  # it has died, which the other pipe will tell
            self.stdin.write(line.encode())
            self.stdin.flush()

    def stop(self) -> None:
        """Save and go."""
        self.process.send_signal(signal.SIGTERM)
        self.dismiss()

    def dismiss(self) -> None:
        """There will be no more orders."""
        with suppress(BrokenPipeError):
            self.stdin.close()

    def reports(self) -> list[dict[str, Any]]:
        """What it has said since; sets `gone` at its end."""
        with suppress(BlockingIOError):
            while part := os.read(self.pipe, 65536):
                self._heard += part
            self.gone = True
        *lines, self._heard = self._heard.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> int:
        """Wait for its end; how it ended."""
        self.dismiss()
        os.close(self.pipe)
        return self.process.wait()


def _environment(jobs: int) -> dict[str, str]:
    """Jobs share the cores, unless someone has said how."""
    environment = dict(os.environ)
    if jobs > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // jobs)))
    return environment


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _cause(code: int, log: Path) -> str:
    """Of a death that nobody told of."""
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line), f"exit code {code}")
