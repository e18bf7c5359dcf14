"""Where the time of a run goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Self

from bitta.bench.prefetch import Prefetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Of one run, over all its lives; what is lost with a life that was killed is not in here."""

    start_up: float = 0.0
    """Until the first batch is asked for, less the images made on the way."""
    making: float = 0.0
    """Decoding and corrupting images; on a GPU most of it goes on behind `learning`."""
    waiting: float = 0.0
    """The model's, for batches that were not ready: the part of `making` that costs time."""
    learning: float = 0.0
    """Serving, asking and learning, with the device caught up after each batch."""
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


class Clock:
    """Takes the seconds of one life of a run."""

    def __init__(self) -> None:
        self._begun = self._ready = perf_counter()
        self._made = 0.0

    @contextmanager
    def making(self) -> Iterator[None]:
        """Images that the start-up needs: they are made, and waited for."""
        started = perf_counter()
        yield
        self._made += perf_counter() - started

    def start(self) -> None:
        """The first batch is asked for."""
        self._ready = perf_counter()

    def read(self, batches: Prefetch, *, learning: float, capture: float) -> Seconds:
        """So far."""
        return Seconds(
            start_up=self._ready - self._begun - self._made,
            making=self._made + batches.making,
            waiting=self._made + batches.waiting,
            learning=learning,
            capture=capture,
            total=perf_counter() - self._begun,
        )
