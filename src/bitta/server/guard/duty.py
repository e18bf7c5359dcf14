"""How much of the worker's time learning may take, and choosing what to ask for it."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from bitta.config import require


class DutyCycle:
    """After learning for t seconds, learning waits t (1 - share) / share: `share` of all time.

    Time in which nothing is asked of the worker counts as waiting too.
    """

    def __init__(self, share: float = 0.5, *, clock: Callable[[], float] = monotonic) -> None:
        require(
            0 < share <= 1, "share", share, "more than 0, and at most 1; pause to stop learning"
        )
        self.share = share
        self._clock = clock
        self._free_at = clock()
        self._spells: deque[tuple[float, float]] = deque()  # (end, seconds)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Count what happens inside, if it fails too."""
        began = self._clock()
        try:
            yield
        finally:
            self.spent(self._clock() - began)

    def spent(self, seconds: float) -> None:
        """Learning has just ended and took this long."""
        require(seconds >= 0, "seconds", seconds, "0 or more")
        now = self._clock()
        # What is still owed stays owed.
        self._free_at = max(self._free_at, now) + seconds * (1 - self.share) / self.share
        self._spells.append((now, seconds))
        self._drop_before(now - _LOOK_BACK)

    def wait(self) -> float:
        """Seconds until learning may begin; 0 if now."""
        return max(0.0, self._free_at - self._clock())

    def used(self, over: float = 60.0) -> float:
        """Share of the last `over` seconds (10 minutes at most) that learning took."""
        require(0 < over <= _LOOK_BACK, "over", over, f"more than 0, at most {_LOOK_BACK:g} s")
        now = self._clock()
        taken = sum(
            min(seconds, end - (now - over))
            for end, seconds in tuple(self._spells)
            if end > now - over
        )
        return min(1.0, taken / over)

    def _drop_before(self, time: float) -> None:
        while self._spells and self._spells[0][0] < time:
            self._spells.popleft()


_LOOK_BACK = 600.0
