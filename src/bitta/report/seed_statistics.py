"""Statistics over seeds: mean and deviation, Wilcoxon's signed-rank test, Holm's correction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Self

import numpy as np

MIN_PAIRS = 6
"""Smallest number of pairs with which p can be below .05. With 5 pairs, p is at least 2 / 2⁵."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one seed."""
    n_seeds: int

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Self:
        """Return mean and deviation of one value per seed.

        >>> Spread.from_values([1.0, 2.0, 3.0])
        Spread(mean=2.0, deviation=1.0, n_seeds=3)
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def signed_rank_p(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test. Zeros are left out.

    The test is exact, also with ties: under the null hypothesis each difference has either sign
    with probability one half, and the sums of ranks of all choices of signs are counted.
    Wilcoxon, Biometrics 1945.

    >>> signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    signed = np.array([value for value in differences if value])
    if not len(signed):
        return 1.0
    _, index, count = np.unique(abs(signed), return_inverse=True, return_counts=True)
    # Twice the mean rank of each tie is an integer.
    ranks = (2 * np.cumsum(count) - count + 1)[index]
    probability = np.zeros(ranks.sum() + 1)  # of each sum of the ranks of positive differences
    probability[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[:-rank]
        probability = (probability + shifted) / 2
    observed = ranks[signed > 0].sum()
    smaller = min(observed, ranks.sum() - observed)
    return min(1.0, float(2 * probability[: smaller + 1].sum()))


def holm_correction(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p-values for the number of tests. Holm, Scandinavian Journal of Statistics 1979.

    >>> holm_correction({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected, highest = {}, 0.0
    for index, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min(1.0, (len(p_values) - index) * p_values[name]))
        corrected[name] = highest
    return corrected
