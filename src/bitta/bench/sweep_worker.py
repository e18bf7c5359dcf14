"""Worker process of a sweep: it executes one run after another.

Jobs arrive as lines of JSON on standard input. Reports leave as lines of JSON on a pipe of their
own. Everything that is printed goes to the log of the run. Any exception except a user's mistake
ends the process, because its state may be damaged; the sweep starts another one.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal

import torch

from bitta.bench.experiment import Experiment
from bitta.bench.run_files import (
    ExistingRun,
    OriginCache,
    OutdatedPolicy,
    check_origin,
    file_lock,
    refuse_outdated,
    result_path,
)
from bitta.bench.runner import RunCallbacks, RunOptions, RunStopped, run
from bitta.errors import BittaError, DeviceMemoryError, InputError
from bitta.results import StepRecord
from bitta.version import NUMERICS_VERSION

Outcome = Literal["done", "found", "failed", "stopped"]
_SECONDS_BETWEEN_REPORTS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of all runs of a sweep that are not part of an experiment."""

    run: RunOptions
    outdated: OutdatedPolicy = "refuse"
    """Treatment of results with another numerics version: refuse, run again, or keep."""


def format_job(experiment: Experiment, options: SweepOptions) -> str:
    """Return the line that asks a worker for a run."""
    table = {
        "experiment": experiment.as_table(),
        "run": asdict(options.run) | {"out": str(options.run.out)},
        "outdated": options.outdated,
        "numerics_version": NUMERICS_VERSION,
    }
    return json.dumps(table) + "\n"


def log_path(experiment: Experiment, out: Path) -> Path:
    """Return the path of the log of a run. It is beside the result."""
    return result_path(experiment, out).with_suffix(".log")


def execute_jobs(report_pipe: int, *, parent: int, should_stop: Callable[[], bool]) -> None:
    """Execute jobs until none is left, a stop is requested, or the sweep process has ended."""
    origins: OriginCache = {}

    def must_stop() -> bool:
        return should_stop() or os.getppid() != parent

    for line in sys.stdin:
        with _Reporter(report_pipe) as reporter:
            reporter.end(*_execute_job(json.loads(line), reporter, origins, must_stop))
        if must_stop():
            return
        # Other processes may need the memory, above all that of the GPU.
        gc.collect()
        torch.cuda.empty_cache()


class _Reporter:
    """Sends progress to the sweep, and the reason if this process crashes."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._next_report = 0.0

    def __enter__(self) -> "_Reporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is not None:
            self._send({"event": "crash", "error": _first_line(f"{kind.__name__}: {error}")})

    def progress(self, activity: str, done: int, total: int) -> None:
        """Report the first batch, the last one, and some in between."""
        is_first_or_last = done > 0 and done in (1, total)
        if is_first_or_last or monotonic() >= self._next_report:
            self._next_report = monotonic() + _SECONDS_BETWEEN_REPORTS
            self._send({"event": activity, "done": done, "total": total})

    def waiting(self) -> None:
        """Report that another process executes this run, or prepares its model."""
        self.progress("waiting", 0, 0)

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Report the end of the run."""
        self._send({"event": "end", "outcome": outcome, "error": _first_line(error)})

    def _send(self, report: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the sweep has ended; the run must still be saved
            os.write(self._pipe, json.dumps(report).encode() + b"\n")


def _execute_job(
    given: Mapping[str, Any],
    reporter: _Reporter,
    origins: OriginCache,
    must_stop: Callable[[], bool],
) -> tuple[Outcome, str]:
    """Execute the run that a line asks for. Return its outcome and an error message."""
    experiment = Experiment.from_table(given["experiment"], name="")
    options = SweepOptions(
        run=RunOptions(**given["run"] | {"out": Path(given["run"]["out"])}),
        outdated=given["outdated"],
    )
    out = options.run.out
    _redirect_output(log_path(experiment, out))
    print(f"{datetime.now().isoformat(timespec='seconds')} process {os.getpid()}", flush=True)

    def on_wait() -> None:
        reporter.waiting()
        if must_stop():
            raise RunStopped(0, 0)

    try:
        if given["numerics_version"] != NUMERICS_VERSION:
            raise InputError("the code of bitta changed during this sweep; start it again.")
        with file_lock(result_path(experiment, out), on_wait=on_wait):
            return _run_or_accept(experiment, options, reporter, origins, must_stop), ""
    except RunStopped as stopped:
        print(stopped, flush=True)
        return "stopped", ""
    except DeviceMemoryError:
        raise  # a fresh process may have enough memory
    except BittaError as error:
        print(error, flush=True)
        return "failed", str(error)


def _run_or_accept(
    experiment: Experiment,
    options: SweepOptions,
    reporter: _Reporter,
    origins: OriginCache,
    must_stop: Callable[[], bool],
) -> Literal["done", "found"]:
    """Accept an existing result, or run the experiment."""
    path = result_path(experiment, options.run.out)
    existing = ExistingRun.find(experiment, options.run.out)
    if existing.is_outdated and options.outdated == "refuse":
        refuse_outdated([path.stem])
    is_repeated = existing.is_outdated and options.outdated == "rerun"
    if existing.result is not None and not is_repeated:
        check_origin(experiment, existing.result, path, origins)
        print("finished before", flush=True)
        return "found"
    if existing.checkpoint is not None and existing.is_outdated:
        existing.checkpoint.unlink()

    def on_step(done: int, total: int, _: StepRecord) -> None:
        reporter.progress("batch", done, total)

    callbacks = RunCallbacks(
        on_preparation=lambda done, total, _: reporter.progress("preparing", done, total),
        on_wait=reporter.waiting,
        on_start=lambda execution: print(f"path: {execution}", flush=True),
        on_step=on_step,
        should_stop=must_stop,
    )
    result = run(experiment, replace(options.run, resume=True, overwrite=True), callbacks)
    print(f"finished, {result.accuracy:.1f} % right", flush=True)
    return "done"


def _redirect_output(log: Path) -> None:
    """Write all output of this process to a log from now on."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
