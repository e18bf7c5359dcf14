"""Memory that serving and learning have freed goes back to the system now and then."""

from collections.abc import Callable
from time import monotonic

from bitta.allocator import give_back_freed_memory

EVERY = 60.0
"""Seconds. Whoever wants memory waits meanwhile, and the next step asks for pages again."""


class Tidy:
    """Gives back what is free once in a while, if anything was done in it."""

    def __init__(
        self,
        *,
        give_back: Callable[[], None] = give_back_freed_memory,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._give_back, self._clock = give_back, clock
        self._used = False
        self._last = clock()

    def used(self) -> None:
        """Something has taken memory, and freed it."""
        self._used = True

    def when_due(self) -> None:
        """Give back, if the last time is long ago and there is something to give."""
        if self._used and self._clock() - self._last >= EVERY:
            self._give_back()
            self._used, self._last = False, self._clock()
