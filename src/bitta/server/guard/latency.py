"""How long answers take, over the last requests."""

from math import ceil

from bitta.config import check_integer, require


class Latencies:
    """The last `size` times; one thread may add while another reads."""

    def __init__(self, size: int = 2048) -> None:
        self.size = check_integer("size", size)
        require(self.size >= 1, "size", size, "1 or more times")
        self._seconds: list[float] = []
        self._next = 0

    def add(self, seconds: float) -> None:
        """Take one in, in place of the oldest if there is no room."""
        if len(self._seconds) < self.size:
            self._seconds.append(seconds)
            return
        self._seconds[self._next] = seconds
        self._next = (self._next + 1) % self.size

    def quantile(self, q: float) -> float | None:
        """The smallest time that at least a share q of them does not exceed; None without any."""
        require(0 < q <= 1, "q", q, "more than 0, at most 1")
        known = sorted(self._seconds)
        return known[ceil(q * len(known) - 1e-9) - 1] if known else None

    def as_status(self) -> dict[str, float | None]:
        """For `latency_ms` of /v1/status."""
        return {"p50": self._ms(0.5), "p99": self._ms(0.99)}

    def _ms(self, q: float) -> float | None:
        seconds = self.quantile(q)
        return None if seconds is None else 1000 * seconds
