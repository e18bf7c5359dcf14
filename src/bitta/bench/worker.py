"""The other side of a sweep: a process that takes one run after another.

Orders come as lines of JSON on standard input, reports leave as lines of JSON on a pipe of their
own; what is printed goes to the log of the run. Any exception but a user's mistake ends the
process, for nothing is known of its state then; the sweep starts another.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal

import torch

from bitta.bench.experiment import Experiment
from bitta.bench.locks import alone
from bitta.bench.places import result_path
from bitta.bench.runner import Stopped, run
from bitta.bench.standing import Origins, Stale, Standing, check_origin, refuse_stale
from bitta.errors import BittaError, DeviceMemoryError, InputError
from bitta.nn import Precision
from bitta.results import StepRecord, code_hash

Ending = Literal["done", "found", "failed", "stopped"]
_SECONDS_BETWEEN_REPORTS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How every run of a sweep is made; no part of an experiment."""

    out: str
    device: str = "cpu"
    eager: bool = False
    precision: Precision = "auto"
    checkpoint_seconds: float = 30.0
    stale: Stale = "refuse"
    """What becomes of results of other code: refused, run again, or kept."""


def order(experiment: Experiment, manner: Manner) -> str:
    """The line that asks for a run."""
    table = {"experiment": experiment.as_table(), "manner": asdict(manner), "code": code_hash()}
    return json.dumps(table) + "\n"


def log_path(experiment: Experiment, out: Path) -> Path:
    """Where the output of a run goes: beside its result."""
    return result_path(experiment, out).with_suffix(".log")


def work(reports: int, *, parent: int, should_stop: Callable[[], bool]) -> None:
    """Carry out orders until there are no more, or the sweep wants or is itself at an end."""
    code_hash()  # of what this process has imported, not of what may be there later
    origins: Origins = {}

    def stopping() -> bool:
        return should_stop() or os.getppid() != parent

    for line in sys.stdin:
        with _Teller(reports) as teller:
            teller.end(*_carried_out(json.loads(line), teller, origins, stopping))
        if stopping():
            return
        # Other processes may want the memory, of the GPU above all.
        gc.collect()
        torch.cuda.empty_cache()


class _Teller:
    """Reports to the sweep, the reason of a crash included."""

    def __init__(self, reports: int) -> None:
        self._reports = reports
        self._due = 0.0

    def __enter__(self) -> "_Teller":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is not None:
            self._tell({"event": "crash", "error": _first_line(f"{kind.__name__}: {error}")})

    def step(self, event: str, done: int, total: int) -> None:
        """Often enough to be followed: the first batch, the last, and some between."""
        marked = done > 0 and done in (1, total)
        if marked or monotonic() >= self._due:
            self._due = monotonic() + _SECONDS_BETWEEN_REPORTS
            self._tell({"event": event, "done": done, "total": total})

    def waits(self) -> None:
        """Another process has this run, or the model that it begins with."""
        self.step("waits", 0, 0)

    def end(self, ending: Ending, error: str = "") -> None:
        """The run is over."""
        self._tell({"event": "end", "ending": ending, "error": _first_line(error)})

    def _tell(self, report: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # nobody is left to be told; the checkpoint comes first
            os.write(self._reports, json.dumps(report).encode() + b"\n")


def _carried_out(
    given: Mapping[str, Any], teller: _Teller, origins: Origins, stopping: Callable[[], bool]
) -> tuple[Ending, str]:
    manner = Manner(**given["manner"])
    experiment = Experiment.of(given["experiment"], name="")
    _print_to(log_path(experiment, Path(manner.out)))
    print(f"{datetime.now().isoformat(timespec='seconds')} process {os.getpid()}", flush=True)
    try:
        if given["code"] != code_hash():
            raise InputError("the code of bitta has changed under this sweep; start it again.")
        with alone(result_path(experiment, Path(manner.out)), wait=_patience(teller, stopping)):
            ending = _run(experiment, manner, teller, origins, stopping)
    except Stopped as stopped:
        print(stopped, flush=True)
        return "stopped", ""
    except DeviceMemoryError:
        raise  # there may be room once this process is gone
    except BittaError as error:
        print(error, flush=True)
        return "failed", str(error)
    return ending, ""


def _run(
    experiment: Experiment,
    manner: Manner,
    teller: _Teller,
    origins: Origins,
    stopping: Callable[[], bool],
) -> Literal["done", "found"]:
    out = Path(manner.out)
    path = result_path(experiment, out)
    standing = Standing.of(experiment, out, code=code_hash())
    if standing.stale and manner.stale == "refuse":
        refuse_stale([path.stem])
    again = standing.stale and manner.stale == "rerun"
    if standing.result is not None and not again:
        check_origin(experiment, standing.result, path, origins)
        print("finished before", flush=True)
        return "found"
    if standing.checkpoint is not None and standing.stale:
        standing.checkpoint.unlink()

    def on_step(done: int, total: int, _: StepRecord) -> None:
        teller.step("batch", done, total)

    def on_start(way: str) -> None:
        print(f"path: {way}", flush=True)

    result = run(
        experiment,
        out=out,
        resume=True,
        overwrite=True,
        device=manner.device,
        checkpoint_seconds=manner.checkpoint_seconds,
        eager=manner.eager,
        precision=manner.precision,
        on_tuning=lambda done, total, _: teller.step("enhanced", done, total),
        on_wait=teller.waits,
        on_start=on_start,
        on_step=on_step,
        should_stop=stopping,
    )
    print(f"finished, {result.accuracy:.1f} % right", flush=True)
    return "done"


def _patience(teller: _Teller, stopping: Callable[[], bool]) -> Callable[[], None]:
    def wait() -> None:
        teller.waits()
        if stopping():
            raise Stopped(0, 0)

    return wait


def _print_to(log: Path) -> None:
    """Everything this process says from now on, whoever says it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with open(log, "ab") as file:
        for output in (1, 2):
            os.dup2(file.fileno(), output)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
