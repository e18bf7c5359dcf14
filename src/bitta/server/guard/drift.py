"""How the model has fared since it was started, in a bounded number of points."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from bitta.config import check_integer, require


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What was seen in one stretch of time; None where nothing is known."""

    at: float
    """End of the stretch, seconds since the epoch."""
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
    """How many points were merged into this."""


class History:
    """At most `capacity` points: the newest quarter as they came, older ones merged.

    Of the older ones the two neighbours that together hold the fewest points are merged, so all of
    them come to cover about the same time, however long the server runs.
    """

    def __init__(self, capacity: int = 512) -> None:
        self.capacity = check_integer("capacity", capacity)
        require(self.capacity >= 4, "capacity", capacity, "4 or more points")
        self._points: tuple[Point, ...] = ()

    def __len__(self) -> int:
        return len(self._points)

    @property
    def points(self) -> tuple[Point, ...]:
        """Oldest first; never changed in place, so that any thread may read."""
        return self._points

    def add(self, point: Point) -> None:
        """Take one in."""
        self._points = (*self._points, point)
        while len(self._points) > self.capacity:
            self._merge()

    def as_status(self) -> dict[str, list[float | None]]:
        """One list per quantity, for `history` of /v1/status."""
        names = [field.name for field in fields(Point) if field.name != "n"]
        points = self._points
        return {name: [getattr(point, name) for point in points] for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"points": [asdict(point) for point in self._points]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, within the capacity of now."""
        self._points = ()
        for point in state["points"]:
            self.add(Point(**point))

    def _merge(self) -> None:
        points = self._points
        n_older = len(points) - self.capacity // 4
        first = min(range(n_older - 1), key=lambda row: points[row].n + points[row + 1].n)
        both = merged(points[first], points[first + 1])
        self._points = (*points[:first], both, *points[first + 2 :])


def merged(earlier: Point, later: Point) -> Point:
    """One point for two neighbours: means by how many points each holds, the worse of the p99."""
    tails = [p.latency_p99_ms for p in (earlier, later) if p.latency_p99_ms is not None]
    return Point(
        at=later.at,
        accuracy=_mean(earlier, later, "accuracy"),
        low=_mean(earlier, later, "low"),
        high=_mean(earlier, later, "high"),
        confidence=_mean(earlier, later, "confidence"),
        agreement=_mean(earlier, later, "agreement"),
        answers_per_minute=_mean(earlier, later, "answers_per_minute"),
        latency_ms=_mean(earlier, later, "latency_ms"),
        latency_p99_ms=max(tails, default=None),
        n=earlier.n + later.n,
    )


def _mean(earlier: Point, later: Point, name: str) -> float | None:
    known = [(getattr(p, name), p.n) for p in (earlier, later) if getattr(p, name) is not None]
    weight = sum(n for _, n in known)
    return sum(value * n for value, n in known) / weight if known else None
