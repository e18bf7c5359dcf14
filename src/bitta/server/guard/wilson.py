"""How sure a share is that was counted on few samples (Wilson, 1927)."""

from math import sqrt
from typing import NamedTuple

from bitta.config import require


class Interval(NamedTuple):
    """Bounds of a share, 0 to 1."""

    low: float
    high: float


def wilson(k: int, n: int, *, z: float = 1.96) -> Interval:
    """The shares that k of n do not contradict; z 1.96 for 95 %. Nothing counted allows all."""
    require(0 <= k <= n, "k", k, f"0 to n, which is {n}")
    if n == 0:
        return Interval(0.0, 1.0)
    # (k + z²/2) / (n + z²) ± z / (n + z²) · √(k (n - k) / n + z²/4)
    middle = (k + z * z / 2) / (n + z * z)
    reach = z / (n + z * z) * sqrt(k * (n - k) / n + z * z / 4)
    # At k = 0 and k = n a bound is the end itself; rounding would leave it a hair beside.
    low = 0.0 if k == 0 else max(0.0, middle - reach)
    high = 1.0 if k == n else min(1.0, middle + reach)
    return Interval(low, high)
