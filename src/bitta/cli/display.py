"""Progress of long work: a live bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

_SECONDS_BETWEEN_LINES = 5.0


class Progress(Protocol):
    """Shows how far one piece of work is."""

    def update(self, name: str, done: int, total: int, note: str) -> None:
        """Report `done` of `total` steps of the work called `name`."""


class PlainProgress:
    """A line every few seconds, and one at the end of each piece of work."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._last = monotonic()

    def update(self, name: str, done: int, total: int, note: str) -> None:
        """Print if it is time."""
        if done < total and monotonic() - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = monotonic()
        print(f"{name:<10} {self._unit} {done}/{total}  {note}".rstrip(), flush=True)


@contextmanager
def progress(unit: str = "batch") -> Iterator[Progress]:
    """The best display this terminal and this installation allow; work is counted in `unit`s."""
    if not sys.stdout.isatty():
        yield PlainProgress(unit)
        return
    try:
        from bitta.cli.bars import RichProgress  # noqa: PLC0415 (rich is an extra)
    except ImportError:
        yield PlainProgress(unit)
        return
    with RichProgress() as bars:
        yield bars
