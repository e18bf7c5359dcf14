"""Result, checkpoint and lock files of a run, and the rules for using existing files."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Literal, Self

import torch
from torch import Tensor

from bitta.bench.experiment import Experiment, ModelConfig
from bitta.bench.models import image_size_of, load_source_model, match_classes
from bitta.bench.prefetch import Prefetch
from bitta.bench.streams import StreamConfig, build_stream
from bitta.errors import InputError, UnreadableFileError
from bitta.metrics import LabelHistograms, Reliability, peak_memory
from bitta.nn import weight_hash
from bitta.results import RunResult, StepRecord, columns_to_steps, steps_to_columns
from bitta.session import Session
from bitta.statefile import load_state, save_state
from bitta.types import State
from bitta.version import NUMERICS_VERSION

_SECONDS_BETWEEN_LOCK_ATTEMPTS = 0.1
_PATH_SEPARATOR = "; then "
OTHER_ORIGINS = {"stream": "another stream", "source_weights": "other source weights"}
"""Text for the error message if a part of a result's origin differs, by the name of the part."""

OutdatedPolicy = Literal["refuse", "rerun", "keep"]
"""Treatment of results with another numerics version."""
OriginCache = dict[tuple[StreamConfig, ModelConfig, int], dict[str, str]]
"""Hashes of data and weights by stream, model and seed. Most runs of a sweep share them."""


def result_path(experiment: Experiment, out: Path) -> Path:
    """Return the path of the result of an experiment."""
    return out / f"{experiment.name}-seed{experiment.seed}.json"


def checkpoint_path(experiment: Experiment, out: Path) -> Path:
    """Return the path of the checkpoint of an unfinished run."""
    return result_path(experiment, out).with_suffix(".safetensors")


@contextmanager
def file_lock(path: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock that belongs to a file. The lock is released when the process ends.

    `on_wait` is called between attempts to get the lock. It may raise an exception to give up.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    while (descriptor := _try_lock(lock_path)) is None:
        on_wait()
        sleep(_SECONDS_BETWEEN_LOCK_ATTEMPTS)
    try:
        yield
    finally:
        lock_path.unlink(missing_ok=True)
        os.close(descriptor)


def _try_lock(lock_path: Path) -> int | None:
    import fcntl  # noqa: PLC0415 (not available on every system, and used here only)

    lock_path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder may have removed the file. A lock on a removed file is useless.
        if os.path.samestat(os.fstat(descriptor), os.stat(lock_path)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def read_result(path: Path) -> RunResult:
    """Read the result of a finished run."""
    with _advise_deletion("the run is repeated"):
        return RunResult.load(path)


def read_checkpoint(path: Path) -> State:
    """Read the checkpoint of an unfinished run."""
    with _advise_deletion("the run starts from the beginning"):
        return load_state(path)


def read_checkpoint_of(path: Path, identity: Mapping[str, Any]) -> State:
    """Read a checkpoint. Refuse one with other settings, data, weights or numerics version."""
    state = read_checkpoint(path)
    saved = state.get("identity", {})
    different = [part for part, value in identity.items() if saved.get(part) != value]
    if different:
        raise InputError(
            f"{str(path)!r} was written with another {' and '.join(different)}; run with "
            "the same, or without --resume to start from the beginning."
        )
    return state


def read_preparation(path: Path) -> State:
    """Read the file of a model that was prepared before the stream."""
    with _advise_deletion("the model is prepared again"):
        return load_state(path)


@contextmanager
def _advise_deletion(consequence: str) -> Iterator[None]:
    """Add to the error about a damaged file that it can be deleted."""
    try:
        yield
    except UnreadableFileError as error:
        raise UnreadableFileError(f"{error} Delete that file, and {consequence}.") from None


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


def load_progress(state: Mapping[str, Any]) -> RunProgress:
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


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """Files that an earlier run of the same experiment left behind."""

    result: RunResult | None
    checkpoint: Path | None
    """Checkpoint of an unfinished run."""
    is_outdated: bool
    """True if the result or, without one, the checkpoint has another numerics version."""

    @classmethod
    def find(cls, experiment: Experiment, out: Path) -> "ExistingRun":
        """Read the files. Refuse files with other settings, and unreadable ones."""
        path = result_path(experiment, out)
        result = read_result(path) if path.exists() else None
        is_current = False
        if result is not None:
            _refuse_other_settings(path, "result", experiment, result.experiment)
            is_current = result.environment.get("numerics_version") == NUMERICS_VERSION
        checkpoint = checkpoint_path(experiment, out)
        if not checkpoint.exists() or is_current:
            return cls(result, None, is_outdated=result is not None and not is_current)
        identity = read_checkpoint(checkpoint).get("identity", {})
        _refuse_other_settings(checkpoint, "checkpoint", experiment, identity.get("experiment"))
        if identity.get("numerics_version") == NUMERICS_VERSION:
            # If there is a result, it is outdated, and this run was started to replace it.
            return cls(None, checkpoint, is_outdated=False)
        return cls(result, checkpoint, is_outdated=True)


def refuse_outdated(labels: Sequence[str]) -> None:
    """Raise an error if there are runs with another numerics version."""
    if labels:
        were = f"and {len(labels) - 1} more were" if len(labels) > 1 else "was"
        raise InputError(
            f"{labels[0]!r} {were} made with another numerics version than that of this code "
            f"({NUMERICS_VERSION}); give --rerun to replace such runs, or --keep to keep finished "
            "ones as they are."
        )


def check_origin(experiment: Experiment, result: RunResult, path: Path, cache: OriginCache) -> None:
    """Raise an error if a result was made with other data or source weights."""
    key = (experiment.stream, experiment.model, experiment.seed)
    if key not in cache:
        cache[key] = _find_origin(experiment)
    for part, value in cache[key].items():
        if result.environment.get(part) != value:
            raise InputError(
                f"{str(path)!r} was made with {OTHER_ORIGINS[part]}; delete it, or "
                "choose another folder (--out)."
            )


def _find_origin(experiment: Experiment) -> dict[str, str]:
    model, card = load_source_model(experiment.model)
    stream = build_stream(
        experiment.stream, seed=experiment.seed, preprocessing=image_size_of(card)
    )
    model = match_classes(model, card, stream.domains[0].classes)
    return {"stream": stream.fingerprint, "source_weights": weight_hash(model)}


def _refuse_other_settings(
    path: Path, kind: str, experiment: Experiment, found: Mapping[str, Any] | None
) -> None:
    if found is None or not experiment.matches(found):
        raise InputError(
            f"{str(path)!r} is a {kind} with other settings; delete it, give this run another "
            "name, or choose another folder (--out)."
        )
