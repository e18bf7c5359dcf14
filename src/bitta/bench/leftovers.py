"""What an earlier run left behind, read or, where it is damaged, told what to do about."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bitta.errors import UnreadableFileError
from bitta.results import RunResult
from bitta.statefile import load_state
from bitta.types import State


def read_result(path: Path) -> RunResult:
    """Of a finished run."""
    with _remedy("the run is made again"):
        return RunResult.load(path)


def read_checkpoint(path: Path) -> State:
    """Of a run that was cut."""
    with _remedy("the run starts over"):
        return load_state(path)


def read_tuning(path: Path) -> State:
    """Of a fine-tuning, over or not."""
    with _remedy("it is fine-tuned again"):
        return load_state(path)


@contextmanager
def _remedy(then: str) -> Iterator[None]:
    try:
        yield
    except UnreadableFileError as error:
        raise UnreadableFileError(f"{error} Delete that file, and {then}.") from None
