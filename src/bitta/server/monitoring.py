"""Measurements of the served model: audited accuracy, history, latencies and time spent learning.

Nothing here reads or writes files.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil, sqrt
from time import monotonic
from typing import Any, NamedTuple, Self

from bitta.config_base import check_integer, require

_MAX_DUTY_SECONDS = 600.0
"""Time for which the duty cycle remembers when learning took place."""


class ConfidenceInterval(NamedTuple):
    """Bounds of a proportion, 0 to 1."""

    low: float
    high: float


def wilson_interval(k: int, n: int, *, z: float = 1.96) -> ConfidenceInterval:
    """Return the Wilson score interval (Wilson, 1927) of k out of n. z = 1.96 gives 95 %.

    With n = 0 the interval is 0 to 1.
    """
    require(0 <= k <= n, "k", k, f"0 to n, which is {n}")
    if n == 0:
        return ConfidenceInterval(0.0, 1.0)
    # (k + z²/2) / (n + z²) ± z / (n + z²) · √(k (n - k) / n + z²/4)
    centre = (k + z * z / 2) / (n + z * z)
    half_width = z / (n + z * z) * sqrt(k * (n - k) / n + z * z / 4)
    # At k = 0 and k = n one bound is exactly 0 or 1. Rounding would miss it by a little.
    low = 0.0 if k == 0 else max(0.0, centre - half_width)
    high = 1.0 if k == n else min(1.0, centre + half_width)
    return ConfidenceInterval(low, high)


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Accuracy on the recent audits: answered questions about samples drawn at random.

    Random sampling makes the estimate unbiased.
    """

    n: int = 0
    n_correct: int = 0
    n_compared: int = 0
    """Number of the n audits for which the source model's prediction is known."""
    n_source_wrong: int = 0
    """Number of those on which the source model is known to be wrong: it predicts the served class
    and the verdict is "incorrect", or it predicts another class and the verdict is "correct"."""
    n_in_lineage: int | None = None
    """Number of all audits of the lineage, of which the newest n are used. If it is None, the guard
    cannot leave out audits from before the inputs changed."""

    @classmethod
    def from_answers(
        cls,
        answers: Sequence[tuple[bool, bool | None]],
        *,
        max_n: int,
        n_in_lineage: int | None = None,
    ) -> Self:
        """Summarise the last `max_n` audits, oldest first.

        Each is a pair: True if the verdict is "correct", and True if the source model predicts the
        judged class (None if unknown). `n_in_lineage` defaults to the number of answers given.
        """
        recent = answers[-max_n:]
        compared = [(correct, same) for correct, same in recent if same is not None]
        return cls(
            n=len(recent),
            n_correct=sum(correct for correct, _ in recent),
            n_compared=len(compared),
            n_source_wrong=sum(correct != same for correct, same in compared),
            n_in_lineage=len(answers) if n_in_lineage is None else n_in_lineage,
        )

    @property
    def accuracy(self) -> float | None:
        """Share of audits with the verdict "correct"; None without audits."""
        return self.n_correct / self.n if self.n else None

    @property
    def interval(self) -> ConfidenceInterval:
        """95 % confidence interval of the accuracy."""
        return wilson_interval(self.n_correct, self.n)

    @property
    def source_error_interval(self) -> ConfidenceInterval:
        """95 % confidence interval of the share n_source_wrong / n_compared."""
        return wilson_interval(self.n_source_wrong, self.n_compared)

    def to_status(self) -> dict[str, int | float | None]:
        """Return the value of `audits` in /v1/status."""
        low, high = self.interval if self.n else (None, None)
        return {"n": self.n, "correct": self.n_correct, "accuracy": self.accuracy,
                "low": low, "high": high}  # fmt: skip


class SourceAgreement:
    """Table of the newest audited predictions: True if the source model predicts the same class.

    An entry is computed when the audit is asked, because the input may be gone when it is answered.
    """

    def __init__(self, size: int = 1000) -> None:
        self.size = check_integer("size", size)
        require(self.size >= 1, "size", size, "1 or more predictions")
        self._is_same: OrderedDict[str, bool] = OrderedDict()

    def add(self, prediction_id: str, *, is_same: bool) -> None:
        """Add a prediction. The oldest is dropped if there are more than `size`."""
        self._is_same[prediction_id] = is_same
        if len(self._is_same) > self.size:
            self._is_same.popitem(last=False)

    def get(self, prediction_id: str) -> bool | None:
        """Return the entry of a prediction; None if it is unknown."""
        return self._is_same.get(prediction_id)

    def state_dict(self) -> dict[str, bool]:
        """Return the entries by prediction id, oldest first."""
        return dict(self._is_same)

    def load_state_dict(self, state: Mapping[str, bool]) -> None:
        """Restore saved entries, at most `size` of them."""
        self._is_same.clear()
        for prediction_id, is_same in state.items():
            self.add(prediction_id, is_same=is_same)


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryPoint:
    """Measurements of one period; None for unknown values."""

    at: float
    """End of the period, in seconds since the epoch."""
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    agreement: float | None = None
    answers_per_minute: float | None = None
    latency_ms: float | None = None
    """Median."""
    latency_p99_ms: float | None = None
    n: int = 1
    """Number of original points merged into this one."""


class ServingHistory:
    """History of at most `capacity` points: the newest quarter unchanged, older ones merged.

    Each merge joins the two neighbours that hold the fewest original points. In the long run all
    older points cover about the same time.
    """

    def __init__(self, capacity: int = 512) -> None:
        self.capacity = check_integer("capacity", capacity)
        require(self.capacity >= 4, "capacity", capacity, "4 or more points")
        self._points: tuple[HistoryPoint, ...] = ()

    def __len__(self) -> int:
        return len(self._points)

    @property
    def points(self) -> tuple[HistoryPoint, ...]:
        """All points, oldest first. The tuple is replaced, never changed: any thread may read."""
        return self._points

    def add(self, point: HistoryPoint) -> None:
        """Append a point, and merge older ones if there are too many."""
        self._points = (*self._points, point)
        while len(self._points) > self.capacity:
            self._merge_oldest()

    def to_status(self) -> dict[str, list[float | None]]:
        """Return one list per quantity, the value of `history` in /v1/status."""
        names = [field.name for field in fields(HistoryPoint) if field.name != "n"]
        points = self._points
        return {name: [getattr(point, name) for point in points] for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return the points as plain numbers."""
        return {"points": [asdict(point) for point in self._points]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore saved points, merged to the current capacity."""
        self._points = ()
        for point in state["points"]:
            self.add(HistoryPoint(**point))

    def _merge_oldest(self) -> None:
        points = self._points
        n_older = len(points) - self.capacity // 4
        first = min(range(n_older - 1), key=lambda row: points[row].n + points[row + 1].n)
        merged = merge_points(points[first], points[first + 1])
        self._points = (*points[:first], merged, *points[first + 2 :])


def merge_points(earlier: HistoryPoint, later: HistoryPoint) -> HistoryPoint:
    """Merge two neighbours: weighted means of all values, and the larger 99 % latency."""
    tails = [p.latency_p99_ms for p in (earlier, later) if p.latency_p99_ms is not None]
    return HistoryPoint(
        at=later.at,
        accuracy=_weighted_mean(earlier, later, "accuracy"),
        low=_weighted_mean(earlier, later, "low"),
        high=_weighted_mean(earlier, later, "high"),
        confidence=_weighted_mean(earlier, later, "confidence"),
        agreement=_weighted_mean(earlier, later, "agreement"),
        answers_per_minute=_weighted_mean(earlier, later, "answers_per_minute"),
        latency_ms=_weighted_mean(earlier, later, "latency_ms"),
        latency_p99_ms=max(tails, default=None),
        n=earlier.n + later.n,
    )


def _weighted_mean(earlier: HistoryPoint, later: HistoryPoint, name: str) -> float | None:
    known = [(getattr(p, name), p.n) for p in (earlier, later) if getattr(p, name) is not None]
    weight = sum(n for _, n in known)
    return sum(value * n for value, n in known) / weight if known else None


class RecentLatencies:
    """Latencies of the last `size` requests. One thread may add while others read."""

    def __init__(self, size: int = 2048) -> None:
        self.size = check_integer("size", size)
        require(self.size >= 1, "size", size, "1 or more")
        self._seconds: list[float] = []
        self._next = 0

    def add(self, seconds: float) -> None:
        """Add a latency. It replaces the oldest if there are `size` already."""
        if len(self._seconds) < self.size:
            self._seconds.append(seconds)
            return
        self._seconds[self._next] = seconds
        self._next = (self._next + 1) % self.size

    def quantile(self, q: float) -> float | None:
        """Return the q-quantile of the latencies (nearest rank); None if there are none."""
        require(0 < q <= 1, "q", q, "more than 0, at most 1")
        known = sorted(self._seconds)
        return known[ceil(q * len(known) - 1e-9) - 1] if known else None

    def to_status(self) -> dict[str, float | None]:
        """Return the value of `latency_ms` in /v1/status."""
        return {"p50": self._milliseconds(0.5), "p99": self._milliseconds(0.99)}

    def _milliseconds(self, q: float) -> float | None:
        seconds = self.quantile(q)
        return None if seconds is None else 1000 * seconds


class DutyCycle:
    """Limit of the share of time spent on learning.

    After learning for t seconds, the next learning waits for t (1 - share) / share seconds. Idle
    time counts as waiting.
    """

    def __init__(self, share: float = 0.5, *, clock: Callable[[], float] = monotonic) -> None:
        require(
            0 < share <= 1, "share", share, "more than 0, and at most 1; pause to stop learning"
        )
        self.share = share
        self._clock = clock
        self._allowed_at = clock()
        self._periods: deque[tuple[float, float]] = deque()  # (end, seconds)

    def add_learning(self, seconds: float) -> None:
        """Count learning that has just ended."""
        require(seconds >= 0, "seconds", seconds, "0 or more")
        now = self._clock()
        # Add to the waiting time that has not passed yet.
        self._allowed_at = max(self._allowed_at, now) + seconds * (1 - self.share) / self.share
        self._periods.append((now, seconds))
        while self._periods[0][0] < now - _MAX_DUTY_SECONDS:
            self._periods.popleft()

    def remaining_seconds(self) -> float:
        """Return the seconds until learning may start; 0 if it may start now."""
        return max(0.0, self._allowed_at - self._clock())

    def used_share(self, over: float = 60.0) -> float:
        """Return the share of the last `over` seconds (600 at most) that was spent on learning."""
        require(
            0 < over <= _MAX_DUTY_SECONDS,
            "over",
            over,
            f"more than 0, at most {_MAX_DUTY_SECONDS:g} s",
        )
        now = self._clock()
        used = sum(
            min(seconds, end - (now - over))
            for end, seconds in tuple(self._periods)
            if end > now - over
        )
        return min(1.0, used / over)
