"""Result, checkpoint and lock files of a run, and the rules for using existing files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any, Literal

from bitta.bench.experiment import Experiment, ModelConfig
from bitta.bench.models import image_size_of, load_source_model, match_classes
from bitta.bench.streams import StreamConfig, build_stream
from bitta.errors import InputError, UnreadableFileError
from bitta.nn import weight_hash
from bitta.results import RunResult
from bitta.statefile import load_state
from bitta.types import State
from bitta.version import NUMERICS_VERSION

_SECONDS_BETWEEN_LOCK_ATTEMPTS = 0.1
ORIGIN_DIFFERENCES = {"stream": "another stream", "source_weights": "other source weights"}
"""Parts of a result's origin. The values complete "was made with ..." in the error message for a
result whose part differs."""

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
                f"{str(path)!r} was made with {ORIGIN_DIFFERENCES[part]}; delete it, or "
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
