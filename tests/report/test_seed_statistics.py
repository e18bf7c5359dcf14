"""Tests of Wilcoxon's test and Holm's correction."""

import doctest
from itertools import product

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from bitta.report import plot_style, rows, sections, seed_statistics, sweeps, tables
from bitta.report.seed_statistics import holm_correction, signed_rank_p


@pytest.mark.parametrize(
    "module",
    [plot_style, rows, sections, seed_statistics, sweeps, tables],
    ids=lambda m: m.__name__,
)
def test_docstring_examples_give_the_shown_output(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_signed_rank_p_counts_signs():
    """|1| < |-2| < |3|: ranks 1, 2, 3; the negative sum 2 or less has 3 of 8 signs (0, 1, 2)."""
    assert signed_rank_p([1.0, -2.0, 3.0]) == pytest.approx(2 * 3 / 8)


def test_signed_rank_p_gives_ties_their_mean_rank():
    """Ranks 2, 2, 2: one negative or none is 4 of 8 ways, twice is all."""
    assert signed_rank_p([1.0, 1.0, -1.0]) == pytest.approx(1.0)
    assert signed_rank_p([1.0, 1.0, 1.0]) == pytest.approx(0.25)


def test_signed_rank_p_leaves_out_zeros():
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize("n", [4, 15, 45])
def test_signed_rank_p_equals_scipy_without_ties(n):
    differences = np.random.default_rng(n).normal(0.4, size=n)
    expected = wilcoxon(differences, method="exact").pvalue
    assert signed_rank_p(differences.tolist()) == pytest.approx(expected, rel=1e-9)


def test_signed_rank_p_with_ties_equals_counting_all_signs():
    differences = [0.5, 0.5, -0.5, 1.0, 1.0, 2.0, -2.0, 3.0]
    ranks = rankdata(np.abs(differences))
    observed = ranks[np.array(differences) > 0].sum()
    far = abs(observed - ranks.sum() / 2)
    sums = [ranks @ signs for signs in product((0, 1), repeat=len(ranks))]
    expected = np.mean([abs(value - ranks.sum() / 2) >= far - 1e-9 for value in sums])
    assert signed_rank_p(differences) == pytest.approx(expected)


def test_holm_correction_keeps_the_order_of_p_values():
    """.01 x 3, then .02 x 2 = .04, then .03 x 1, which is raised to .04."""
    assert holm_correction({"a": 0.01, "b": 0.02, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.04, "c": 0.04}
    )
    assert holm_correction({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}
