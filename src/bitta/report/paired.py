"""Is one row better than another, or was it luck? Wilcoxon's signed-rank test, Holm's correction.

The test is exact, ties included: under the null hypothesis each difference is as likely to have the
other sign, and the sums of ranks of all ways to choose the signs are counted. Wilcoxon, Biometrics
1945; Holm, Scandinavian Journal of Statistics 1979.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from bitta.report.rows import Row, Section

FEWEST_PAIRS = 6
"""With fewer even the most extreme outcome has p above .05: two signs of 2⁵."""


@dataclass(frozen=True, slots=True)
class Paired:
    """A row against another, over the domains and seeds that both have."""

    difference: float
    """Median of ours minus theirs, in points."""
    p: float
    """Two-sided; of a table, corrected for how many rows were compared."""
    n: int
    """Pairs."""


def default_against(section: Section) -> Row:
    """BiTTA as it is, if there is one; else the best row."""
    plain = [row for row in section.rows if row.title == "BiTTA"]
    return plain[0] if len(plain) == 1 else best_of(section.rows)


def best_of(rows: Sequence[Row]) -> Row:
    """Of the highest accuracy."""
    return max(rows, key=lambda row: row.accuracy.mean)


def paired_tests(rows: Sequence[Row], against: Row) -> dict[str, Paired]:
    """Every other row against one, by name; rows that share no two pairs with it are left out."""
    tests = {}
    for row in rows:
        differences = _differences(row, against)
        if row.name != against.name and len(differences) > 1:
            tests[row.name] = Paired(
                median(differences), signed_rank(differences), len(differences)
            )
    corrected = holm({name: test.p for name, test in tests.items()})
    return {name: replace(test, p=corrected[name]) for name, test in tests.items()}


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of the signed-rank test; differences of zero are left out.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    signed = np.array([value for value in differences if value])
    if not len(signed):
        return 1.0
    _, place, count = np.unique(abs(signed), return_inverse=True, return_counts=True)
    # Twice the mean rank of each tie, which is whole.
    ranks = (2 * np.cumsum(count) - count + 1)[place]
    chance = np.zeros(ranks.sum() + 1)  # of each sum of the ranks of positive differences
    chance[0] = 1.0
    for rank in ranks:
        shifted = np.zeros_like(chance)
        shifted[rank:] = chance[:-rank]
        chance = (chance + shifted) / 2
    observed = ranks[signed > 0].sum()
    smaller = min(observed, ranks.sum() - observed)
    return min(1.0, float(2 * chance[: smaller + 1].sum()))


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """p-values that stay valid although there are several.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected, highest = {}, 0.0
    for place, name in enumerate(sorted(values, key=lambda name: values[name])):
        highest = max(highest, min(1.0, (len(values) - place) * values[name]))
        corrected[name] = highest
    return corrected


def _differences(row: Row, other: Row) -> list[float]:
    found = []
    for seed in row.runs:
        if seed in other.runs:
            ours, theirs = (each.runs[seed].accuracy_by_domain for each in (row, other))
            found += [ours[domain] - theirs[domain] for domain in ours if domain in theirs]
    # Percentages of counts: what differs by less than this is equal.
    return [round(value, 9) for value in found]
