"""Checkpoint of an unfinished run: what it has recorded, and the session to continue from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitta.bench.prefetch import Prefetch
from bitta.bench.run_files import read_checkpoint
from bitta.errors import InputError
from bitta.feedback import FeedbackSource
from bitta.metrics import LabelHistograms, Reliability, peak_memory
from bitta.nn import Precision
from bitta.results import StepRecord, columns_to_steps, steps_to_columns
from bitta.session import Session
from bitta.statefile import save_state

_PATH_SEPARATOR = "; then "


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeconds:
    """Seconds of a run over all its processes. Work that a killed process lost is not counted."""

    start_up: float = 0.0
    """Time until the first batch is requested, without the time for making images."""
    making: float = 0.0
    """Decoding and corrupting images. On a GPU most of it overlaps with `learning`."""
    waiting: float = 0.0
    """The part of `making` that does not overlap: the model waits for a batch."""
    learning: float = 0.0
    """Serving, asking and learning, with the device synchronised after each batch."""
    capture: float = 0.0
    """The part of `learning` in which CUDA graphs are captured."""
    total: float = 0.0

    def __add__(self, other: Self) -> Self:
        mine, theirs = asdict(self), asdict(other)
        return type(self)(**{name: mine[name] + theirs[name] for name in mine})

    def __str__(self) -> str:
        return (
            f"{self.start_up:.1f} start-up, {self.making:.1f} making images "
            f"({self.waiting:.1f} waited for), {self.learning:.1f} learning, "
            f"{self.capture:.1f} of it capture; {self.total:.1f} in all"
        )


class RunClock:
    """Measures the time of a run in this process."""

    def __init__(self) -> None:
        self._started = self._first_batch_requested = perf_counter()
        self._making_seconds = 0.0

    @contextmanager
    def making_images(self) -> Iterator[None]:
        """Count the time of a block that makes images during start-up."""
        started = perf_counter()
        yield
        self._making_seconds += perf_counter() - started

    def end_start_up(self) -> None:
        """Mark the moment in which the first batch is requested."""
        self._first_batch_requested = perf_counter()

    def read(self, batches: Prefetch, *, learning: float, capture: float) -> RunSeconds:
        """Return the time so far."""
        return RunSeconds(
            start_up=self._first_batch_requested - self._started - self._making_seconds,
            making=self._making_seconds + batches.making_seconds,
            waiting=self._making_seconds + batches.waiting_seconds,
            learning=learning,
            capture=capture,
            total=perf_counter() - self._started,
        )


@dataclass(slots=True)
class RunProgress:
    """Everything that a run has recorded, in this process and before its checkpoint."""

    steps: list[StepRecord] = field(default_factory=list)
    reliability: Reliability = field(default_factory=Reliability)
    policy_reliability: Reliability = field(default_factory=Reliability)
    histograms: LabelHistograms = field(default_factory=LabelHistograms)
    before_stream: Mapping[str, Any] = field(default_factory=dict)
    """Values for the result that were measured before the first batch."""
    peak_memory: int = 0
    """Peak memory of earlier processes, in bytes."""
    seconds: RunSeconds = field(default_factory=RunSeconds)
    """Time of earlier processes."""
    execution: str = ""
    """Execution paths of earlier processes, one after another."""


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A run while it is executed by this process."""

    session: Session
    progress: RunProgress
    batches: Prefetch
    clock: RunClock
    n_earlier_steps: int
    """Steps of earlier processes."""

    @property
    def peak_memory(self) -> int:
        """Peak memory over all processes, in bytes."""
        return max(self.progress.peak_memory, peak_memory(self.session.adapter.wrapped.device))

    @property
    def execution(self) -> str:
        """The execution path, or the paths of all processes one after another."""
        before, now = self.progress.execution, str(self.session.execution)
        if before.split(_PATH_SEPARATOR)[-1] == now:
            return before
        return _PATH_SEPARATOR.join(filter(None, (before, now)))

    @property
    def seconds(self) -> RunSeconds:
        """Time so far, over all processes."""
        steps = self.progress.steps[self.n_earlier_steps :]
        return self.progress.seconds + self.clock.read(
            self.batches,
            learning=sum(step.seconds for step in steps),
            capture=self.session.adapter.wrapped.graphs.seconds,
        )


def save_checkpoint(path: Path, identity: Mapping[str, Any], run: ActiveRun) -> None:
    """Write everything that another process needs to continue the run."""
    progress = run.progress
    save_state(
        path,
        {
            "identity": dict(identity),
            "session": run.session.state_dict(),
            "steps": _pack_steps(progress.steps),
            "reliability": asdict(progress.reliability),
            "policy_reliability": asdict(progress.policy_reliability),
            "histograms": progress.histograms.state_dict(),
            "before_stream": dict(progress.before_stream),
            "peak_memory": run.peak_memory,
            "seconds": asdict(run.seconds),
            "execution": run.execution,
        },
    )


def continue_from_checkpoint(
    path: Path,
    identity: Mapping[str, Any],
    model: nn.Module,
    *,
    feedback: FeedbackSource,
    eager: bool,
    precision: Precision,
) -> tuple[Session, RunProgress]:
    """Restore the session and the progress of a run.

    Refuse a checkpoint with other settings, data, weights or numerics version.
    """
    state = read_checkpoint(path)
    saved = state.get("identity", {})
    different = [part for part, value in identity.items() if saved.get(part) != value]
    if different:
        raise InputError(
            f"{str(path)!r} was written with another {' and '.join(different)}; run with "
            "the same, or without --resume to start from the beginning."
        )
    session = Session.from_state(
        state["session"], model, feedback=feedback, eager=eager, precision=precision
    )
    return session, _load_progress(state)


def _load_progress(state: Mapping[str, Any]) -> RunProgress:
    """Read the progress of a run from its checkpoint."""
    return RunProgress(
        steps=columns_to_steps(json.loads(bytes(state["steps"].tolist()))),
        reliability=Reliability(**state["reliability"]),
        policy_reliability=Reliability(**state["policy_reliability"]),
        histograms=LabelHistograms.from_state_dict(state["histograms"]),
        before_stream=state["before_stream"],
        peak_memory=state["peak_memory"],
        seconds=RunSeconds(**state["seconds"]),
        execution=state["execution"],
    )


def _pack_steps(steps: Sequence[StepRecord]) -> Tensor:
    """Return the steps as bytes, because the header of a state file can be too small for them."""
    text = json.dumps(steps_to_columns(steps))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
