"""Execute many runs, several at a time, in worker processes (`bitta.bench.sweep_worker`).

A worker executes one run after another. A worker that dies is replaced, and its run is tried once
more, from its checkpoint.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from statistics import fmean
from time import monotonic
from typing import Any, Literal

from bitta.bench.run_files import ExistingRun, refuse_outdated
from bitta.bench.sweep_grid import Job
from bitta.bench.sweep_worker import SweepOptions, format_job, log_path
from bitta.errors import UnreadableFileError

_POLL_SECONDS = 0.2
_MAX_ATTEMPTS = 2

RunState = Literal["waiting", "running", "done", "found", "failed"]
"""`found` is a run that was already finished before the sweep."""
WorkerCommand = Callable[[int], Sequence[str]]
"""Returns the command that starts a worker. The argument is its pipe for reports."""


@dataclass(slots=True)
class RunStatus:
    """State of one run of a sweep, as reported by its worker."""

    job: Job
    log: Path
    state: RunState = "waiting"
    activity: str = ""
    """Last report: "batch", "preparing" or "waiting" (for another process); empty at the start."""
    done: int = 0
    total: int = 0
    error: str = ""
    n_crashes: int = 0
    _timed_seconds: float = 0.0
    _timed_batches: int = 0
    _last_report: tuple[float, int] | None = None

    def begin(self) -> None:
        """Mark the run as given to a worker."""
        self.state, self.activity, self.done, self._last_report = "running", "", 0, None

    def record(self, activity: str, done: int, total: int, *, now: float) -> None:
        """Record a report of progress."""
        if activity == self.activity == "batch" and self._last_report is not None:
            earlier, n_done_earlier = self._last_report
            self._timed_seconds += now - earlier
            self._timed_batches += done - n_done_earlier
        self.activity, self.done, self.total = activity, done, total
        self._last_report = (now, done)

    @property
    def seconds_per_batch(self) -> float | None:
        """Mean time of a batch in this sweep, without the first one of each process."""
        return self._timed_seconds / self._timed_batches if self._timed_batches else None

    @property
    def n_batches(self) -> int | None:
        """Number of batches of the run, once it is known."""
        return self.total if self.activity == "batch" else None


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """State of every run of a sweep."""

    runs: Sequence[RunStatus]
    n_workers: int

    def count(self, *states: RunState) -> int:
        """Return the number of runs in one of these states."""
        return sum(run.state in states for run in self.runs)

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the remaining time; None while no batch was timed, and at the end."""
        speeds = [
            (run.job.experiment.method, run.seconds_per_batch)
            for run in self.runs
            if run.seconds_per_batch is not None
        ]
        lengths = [(run.job.experiment.stream, run.n_batches) for run in self.runs if run.n_batches]
        if not speeds or not lengths or not self.count("waiting", "running"):
            return None
        left = []
        for run in self.runs:
            if run.state not in ("waiting", "running"):
                continue
            experiment = run.job.experiment
            n_batches = run.n_batches or _mean_of_similar(lengths, experiment.stream)
            n_done = run.done if run.activity == "batch" else 0
            seconds = run.seconds_per_batch or _mean_of_similar(speeds, experiment.method)
            left.append((n_batches - n_done) * seconds)
        # At best the workers share the work evenly. A run cannot be divided.
        return max(sum(left) / self.n_workers, *left)


def _mean_of_similar(values: Sequence[tuple[object, float]], key: object) -> float:
    """Return the mean of the values with this key, or of all if there are none."""
    same = [value for other, value in values if other == key]
    return fmean(same or [value for _, value in values])


def sweep(
    jobs: Sequence[Job],
    options: SweepOptions,
    *,
    n_workers: int,
    command: WorkerCommand,
    on_progress: Callable[[SweepProgress], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepProgress:
    """Execute every run that is not finished, `n_workers` at a time.

    `on_progress` is called several times a second. If `should_stop` returns True, active runs are
    saved, and the sweep returns with runs that are still waiting.
    """
    check_existing_runs(jobs, options)
    out = options.run.out
    runs = [RunStatus(job, log_path(job.experiment, out)) for job in jobs]
    progress = SweepProgress(runs, n_workers=min(n_workers, len(runs)))
    with _WorkerPool(progress, options, command) as pool:
        while pool.is_busy:
            if should_stop():
                pool.stop()
            pool.poll()
            on_progress(progress)
    return progress


def check_existing_runs(jobs: Sequence[Job], options: SweepOptions) -> None:
    """Raise an error if a folder holds results with other settings or numerics versions."""
    outdated = []
    for job in jobs:
        # An unreadable file is the failure of one run. Its worker reports it.
        with suppress(UnreadableFileError):
            if ExistingRun.find(job.experiment, options.run.out).is_outdated:
                outdated.append(job.label)
    if options.outdated == "refuse":
        refuse_outdated(outdated)


class _WorkerPool:
    """The workers of a sweep."""

    def __init__(
        self, progress: SweepProgress, options: SweepOptions, command: WorkerCommand
    ) -> None:
        self._progress = progress
        self._options = options
        self._command = command
        self._selector = DefaultSelector()
        self._workers: list[_WorkerProcess] = []
        self._is_stopping = False

    def __enter__(self) -> "_WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
            worker.close()
        self._selector.close()

    @property
    def is_busy(self) -> bool:
        """True while a worker is alive or a run is left to do."""
        has_work = not self._is_stopping and self._progress.count("waiting") > 0
        return bool(self._workers) or has_work

    def stop(self) -> None:
        """Tell every worker to save its run and exit. A second call has no effect."""
        if not self._is_stopping:
            self._is_stopping = True
            for worker in self._workers:
                worker.stop()

    def poll(self) -> None:
        """Give runs to workers, read reports, and notice workers that have ended."""
        if not self._is_stopping:
            self._assign_runs()
        for key, _ in self._selector.select(timeout=_POLL_SECONDS):
            worker: _WorkerProcess = key.data
            for report in worker.read_reports():
                self._handle_report(worker, report)
            if worker.has_ended:
                self._handle_exit(worker)

    def _assign_runs(self) -> None:
        for run in self._progress.runs:
            if run.state != "waiting":
                continue
            idle = [worker for worker in self._workers if worker.is_idle]
            if not idle and len(self._workers) == self._progress.n_workers:
                return
            worker = idle[0] if idle else self._start_worker(run)
            run.begin()
            worker.assign(run, format_job(run.job.experiment, self._options))
        for worker in self._workers:
            if worker.run is None:
                worker.close_input()

    def _start_worker(self, run: RunStatus) -> "_WorkerProcess":
        environment = _worker_environment(self._progress.n_workers)
        worker = _WorkerProcess(self._command, run.log, environment)
        self._workers.append(worker)
        self._selector.register(worker.pipe, EVENT_READ, worker)
        return worker

    def _handle_report(self, worker: "_WorkerProcess", report: dict[str, Any]) -> None:
        run = worker.run
        assert run is not None, "a worker without a run has nothing to report"
        match report["event"]:
            case "end":
                worker.run = None
                run.error = report["error"]
                run.state = "waiting" if report["outcome"] == "stopped" else report["outcome"]
            case "crash":
                run.error = report["error"]
            case activity:
                run.record(activity, report["done"], report["total"], now=monotonic())

    def _handle_exit(self, worker: "_WorkerProcess") -> None:
        self._selector.unregister(worker.pipe)
        self._workers.remove(worker)
        exit_code = worker.close()
        if (run := worker.run) is None:
            return
        run.state = "waiting"
        if self._is_stopping:
            return
        run.n_crashes += 1
        if run.n_crashes == _MAX_ATTEMPTS:
            run.state = "failed"
            run.error = run.error or _describe_exit(exit_code, run.log)


class _WorkerProcess:
    """Handle of a worker process: its standard input, its report pipe and its current run."""

    def __init__(self, command: WorkerCommand, log: Path, environment: dict[str, str]) -> None:
        self.run: RunStatus | None = None
        self.has_ended = False
        self._unread = b""
        self.pipe, worker_end = os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self.process = subprocess.Popen(
                command(worker_end),
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[worker_end],
                # Ctrl-C must reach the sweep alone. The sweep stops its workers once.
                process_group=0,
                env=environment,
            )
        assert self.process.stdin is not None
        self._stdin = self.process.stdin
        os.close(worker_end)
        os.set_blocking(self.pipe, False)

    @property
    def is_idle(self) -> bool:
        """True if the worker waits for a job."""
        return self.run is None and not self._stdin.closed

    def assign(self, run: RunStatus, line: str) -> None:
        """Give the worker a run."""
        self.run = run
        with suppress(BrokenPipeError):  # the worker has died; `poll` notices its closed pipe
            self._stdin.write(line.encode())
            self._stdin.flush()

    def stop(self) -> None:
        """Tell the worker to save its run and exit."""
        self.process.send_signal(signal.SIGTERM)
        self.close_input()

    def close_input(self) -> None:
        """Tell the worker that there are no more jobs."""
        with suppress(BrokenPipeError):
            self._stdin.close()

    def read_reports(self) -> list[dict[str, Any]]:
        """Return the reports that have arrived. Set `has_ended` if the pipe is closed."""
        with suppress(BlockingIOError):
            while part := os.read(self.pipe, 65536):
                self._unread += part
            self.has_ended = True
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> int:
        """Wait for the process to end and return its exit code."""
        self.close_input()
        os.close(self.pipe)
        return self.process.wait()


def _worker_environment(n_workers: int) -> dict[str, str]:
    """Divide the cores among the workers, unless the user has set the number of threads."""
    environment = dict(os.environ)
    if n_workers > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, _n_cores() // n_workers)))
    return environment


def _n_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


def _describe_exit(exit_code: int, log: Path) -> str:
    """Return the signal that killed a worker, or else the last line of the log."""
    if exit_code < 0:
        return f"the process was killed by {signal.Signals(-exit_code).name}"
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line), f"exit code {exit_code}")
