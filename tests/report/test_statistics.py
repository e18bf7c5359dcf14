"""Wilcoxon's test and Holm's correction."""

import doctest
from itertools import product

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from bitta.report import plot_style, rows, sections, statistics, sweeps, tables
from bitta.report.comparison import PairedTest, default_baseline, paired_tests
from bitta.report.statistics import holm_correction, signed_rank_p
from made_results import made_run, made_section


@pytest.mark.parametrize(
    "module", [plot_style, rows, sections, statistics, sweeps, tables], ids=lambda m: m.__name__
)
def test_docstring_examples(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_signed_ranks_by_hand():
    """|1| < |-2| < |3|: ranks 1, 2, 3; the negative sum 2 or less has 3 of 8 signs (0, 1, 2)."""
    assert signed_rank_p([1.0, -2.0, 3.0]) == pytest.approx(2 * 3 / 8)


def test_ties_share_their_rank():
    """Ranks 2, 2, 2: one negative or none is 4 of 8 ways, twice is all."""
    assert signed_rank_p([1.0, 1.0, -1.0]) == pytest.approx(1.0)
    assert signed_rank_p([1.0, 1.0, 1.0]) == pytest.approx(0.25)


def test_no_difference_is_no_evidence():
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize("n", [4, 15, 45])
def test_scipy_says_the_same(n):
    differences = np.random.default_rng(n).normal(0.4, size=n)
    expected = wilcoxon(differences, method="exact").pvalue
    assert signed_rank_p(differences.tolist()) == pytest.approx(expected, rel=1e-9)


def test_with_ties_it_is_what_counting_all_signs_gives():
    differences = [0.5, 0.5, -0.5, 1.0, 1.0, 2.0, -2.0, 3.0]
    ranks = rankdata(np.abs(differences))
    observed = ranks[np.array(differences) > 0].sum()
    far = abs(observed - ranks.sum() / 2)
    sums = [ranks @ signs for signs in product((0, 1), repeat=len(ranks))]
    expected = np.mean([abs(value - ranks.sum() / 2) >= far - 1e-9 for value in sums])
    assert signed_rank_p(differences) == pytest.approx(expected)


def test_holm_never_lets_a_larger_p_come_first():
    """.01 x 3, then .02 x 2 = .04, then .03 x 1, which is raised to .04."""
    assert holm_correction({"a": 0.01, "b": 0.02, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.04, "c": 0.04}
    )
    assert holm_correction({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_rows_are_paired_by_domain_and_seed(tmp_path):
    """Seed 1 is BiTTA's alone. Tent: -10 and -30, median -20, p 2 / 2². Source: 0 and -10."""
    runs = [made_run("bitta", "bitta", [5, 8], seed=seed) for seed in (0, 1)]
    runs += [made_run("tent", "tent", [4, 5]), made_run("source", "source", [5, 7])]
    section = made_section(tmp_path, runs)
    tests = paired_tests(section.rows, default_baseline(section))
    assert tests == {"source": PairedTest(-5.0, 1.0, 2), "tent": PairedTest(-20.0, 1.0, 2)}
    alone = paired_tests([row for row in section.rows if row.name != "source"], section.rows[2])
    assert alone == {"tent": PairedTest(-20.0, 0.5, 2)}


def test_rows_are_tested_against_bitta_or_the_best(tmp_path):
    runs = [made_run("bitta", "bitta", [1, 1]), made_run("tent", "tent", [9, 9])]
    section = made_section(tmp_path, runs)
    assert default_baseline(section).name == "bitta"
    assert default_baseline(section.with_rows(["tent"])).name == "tent"
