"""Tests of the checks of claims: they hold, fail or stay undecided."""

import doctest
from dataclasses import replace
from functools import partial

import pytest

from bitta.errors import InputError
from bitta.metrics import Reliability
from made_results import made_run, numbers_in
from reproduction.claims import claim
from reproduction.claims.claim import NO_CAUSE, Claim, ClaimStatus, Finding, evaluate_claim
from reproduction.claims.directions import (
    check_above_simatta,
    check_above_simatta_at_equal_cost,
    check_agreeing_is_more_accurate,
    check_agreeing_varies_less,
    check_agreement_beats_thresholds,
    check_answers_above_wrong_labels,
    check_best_value,
    check_both_parts_are_best,
    check_confidence_changes,
    check_dropout_calibration,
    check_far_below,
    check_largest_lead_at_equal_cost,
    check_loses_less,
    check_rising,
    check_robust,
    check_thresholds_vary_more,
    check_true_labels_above_wrong,
)
from reproduction.claims.results import ResultFolders

AGREEING = {"agreement": "policy", "threshold": 0.9}


@pytest.fixture
def write_results(tmp_path):
    """Return a function that writes runs into a folder and reads all folders."""

    def write(folder, *runs):
        (tmp_path / folder).mkdir(exist_ok=True)
        for run in runs:
            run.save(tmp_path / folder / f"{run.name}-seed{run.experiment['seed']}.json")
        return ResultFolders(tmp_path)

    return write


def run(name, right, method="bitta", **changed):
    """Make a run with 10 * `right` percent in each of two domains."""
    return made_run(name, method, [right, right], **changed)


def with_steps(run, changes):
    """Change fields of the steps, one step per domain."""
    steps = [replace(step, **fields) for step, fields in zip(run.steps, changes, strict=True)]
    return replace(run, steps=steps)


def runs_by_feedback(key, rights, method="bitta"):
    """Make a run for each value of a setting in [feedback]."""
    return [run(f"{method}-{key}{v}", r, method, **{key: v}) for v, r in rights.items()]


def runs_by_setting(key, rights):
    """Make a run for each value of a setting in [method]."""
    return [run(f"bitta-{key}-{v}", r, settings={key: v}) for v, r in rights.items()]


def claim_with(holds, *, is_complete=True, **changed):
    """Make a claim whose check returns the given finding."""
    return Claim(
        id="it",
        location="somewhere",
        text="It is so.",
        experiments=("beta", "skip"),
        check=lambda results: Finding("ours", holds, is_complete),
        **changed,
    )


def test_docstring_examples_give_the_shown_output():
    assert doctest.testmod(claim).attempted > 0
    assert doctest.testmod(claim).failed == 0


def test_claim_that_holds_has_no_reason(tmp_path):
    outcome = evaluate_claim(claim_with(True), ResultFolders(tmp_path), {"it": "because"})
    assert (outcome.status, outcome.summary, outcome.reason) == (ClaimStatus.HOLDS, "ours", "")


def test_claim_that_fails_has_the_recorded_reason(tmp_path):
    outcome = evaluate_claim(
        claim_with(False), ResultFolders(tmp_path), {"it": "because", "other": "no"}
    )
    assert (outcome.status, outcome.reason) == (ClaimStatus.FAILS, "because")


def test_claim_that_fails_without_a_recorded_reason_says_so(tmp_path):
    outcome = evaluate_claim(claim_with(False, is_complete=False), ResultFolders(tmp_path), {})
    assert (outcome.status, outcome.reason) == (ClaimStatus.FAILS, NO_CAUSE)


def test_claim_without_results_names_the_commands(tmp_path):
    waiting = replace(claim_with(True), check=lambda results: None)
    outcome = evaluate_claim(waiting, ResultFolders(tmp_path), {"it": "because"})
    assert outcome.status is ClaimStatus.NOT_RUN
    assert (
        "bitta sweep reproduction/experiments/beta --device cuda --out reproduction/results/beta"
        in outcome.reason
    )
    assert "`skip`" in outcome.reason


@pytest.mark.parametrize(("holds", "is_complete"), [(None, True), (True, False)])
def test_claim_with_some_results_names_the_missing_folder(write_results, holds, is_complete):
    results = write_results("beta", run("bitta", 5))
    outcome = evaluate_claim(claim_with(holds, is_complete=is_complete), results, {})
    assert outcome.status is ClaimStatus.PARTLY_RUN
    assert outcome.reason == (
        "`bitta sweep reproduction/experiments/skip --device cuda --out reproduction/results/skip`"
    )


def test_folder_that_lacks_a_needed_run_is_partly_run(write_results):
    results = write_results("beta", run("bitta", 5))
    results.expected = {"beta": ["bitta-seed0", "other-seed0"]}
    assert evaluate_claim(claim_with(True), results, {}).status is ClaimStatus.PARTLY_RUN
    assert evaluate_claim(claim_with(True, runs="bitta-*"), results, {}).status is ClaimStatus.HOLDS


def test_claim_that_cannot_be_measured_says_why(tmp_path):
    outcome = evaluate_claim(
        replace(claim_with(True), check=None, not_measurable="A setting."),
        ResultFolders(tmp_path),
        {},
    )
    assert (outcome.status, outcome.reason) == (ClaimStatus.NOT_MEASURABLE, "A setting.")


DIRECTIONS = [
    partial(check_best_value, "f", "method.selection", "mc_confidence"),
    partial(check_above_simatta, "f", "feedback.flip"),
    partial(check_rising, "f", "feedback.n_queries", "bitta"),
    partial(check_robust, "f", "method.beta", 1.0),
    partial(check_loses_less, "f", "feedback.delay"),
    check_both_parts_are_best,
    check_agreement_beats_thresholds,
    check_thresholds_vary_more,
    partial(check_far_below, "f", "method.policy", "augmentation", "dropout", 2.0),
    partial(check_agreeing_is_more_accurate, "f"),
    partial(check_agreeing_varies_less, "f"),
    check_confidence_changes,
    check_dropout_calibration,
    check_above_simatta_at_equal_cost,
    check_answers_above_wrong_labels,
    partial(check_largest_lead_at_equal_cost, 32),
]


@pytest.mark.parametrize("check", DIRECTIONS)
def test_check_without_results_finds_nothing(tmp_path, check):
    assert check(ResultFolders(tmp_path)) is None


@pytest.mark.parametrize(("entropy", "holds"), [(8, True), (9, False)])
def test_best_value_must_be_above_each_other_value(write_results, entropy, holds):
    runs = runs_by_setting("selection", {"mc_confidence": 9, "random": 7, "entropy": entropy})
    finding = check_best_value(
        "selection", "method.selection", "mc_confidence", write_results("selection", *runs)
    )
    assert finding == Finding(
        f"entropy: {10 * entropy}.00, mc_confidence: 90.00, random: 70.00 (1 seed)", holds
    )


@pytest.mark.parametrize(("second", "holds"), [(7, True), (8, False)])
def test_bitta_must_be_above_simatta_at_each_shared_value(write_results, second, holds):
    results = write_results(
        "feedback-errors",
        *runs_by_feedback("flip", {0.0: 9, 0.1: 8, 0.2: 1}),
        *runs_by_feedback("flip", {0.0: 7, 0.1: second}, "simatta"),
    )
    finding = check_above_simatta("feedback-errors", "feedback.flip", results)
    lead = 80 - 10 * second
    assert finding == Finding(f"BiTTA - SimATTA* at 0.0: +20.00, 0.1: {lead:+.2f} (1 seed)", holds)


@pytest.mark.parametrize(
    ("rights", "holds"),
    [
        ({1: 500, 2: 600, 8: 700, 16: 900}, True),
        ({1: 500, 2: 600, 8: 595, 16: 900}, True),  # falls by .5 points
        ({1: 500, 2: 600, 8: 594, 16: 900}, False),  # by .6
        ({1: 500, 2: 500}, False),
    ],
)
def test_rising_curve_may_dip_by_half_a_point(write_results, rights, holds):
    runs = [run(f"bitta-{k}", right, n=1000, n_queries=k) for k, right in rights.items()]
    finding = check_rising("f", "feedback.n_queries", "bitta", write_results("f", *runs))
    assert finding.holds is holds
    assert finding.summary.startswith("1: 50.00, 2: ")


def test_setting_is_robust_if_best_and_worst_are_close(write_results):
    runs = [
        run(f"bitta-{beta}", right, n=100, settings={"beta": beta, "alpha": alpha})
        for beta, alpha, right in ((0.1, 1.0, 80), (1.0, 1.0, 82), (4.0, 1.0, 81), (2.0, 2.0, 1))
    ]
    results = write_results("f", *runs)
    like = {"method__alpha": 1.0}
    assert check_robust("f", "method.beta", 2.0, results, **like).holds
    assert not check_robust("f", "method.beta", 1.9, results, **like).holds
    summary = "0.1: 80.00, 1.0: 82.00, 4.0: 81.00 (1 seed)"
    assert check_robust("f", "method.beta", 1.0, results, **like, min_value=1.0) == Finding(
        summary, True
    )
    assert not check_robust("f", "method.beta", 2.0, results).holds


@pytest.mark.parametrize(("last", "holds"), [(8, True), (6, False)])
def test_bitta_must_lose_less_than_simatta(write_results, last, holds):
    """SimATTA* falls from 70 to 50, BiTTA from 90 to 80 or 60."""
    results = write_results(
        "skip",
        *runs_by_feedback("answer_every", {1: 9, 5: last}),
        *runs_by_feedback("answer_every", {1: 7, 5: 5}, "simatta"),
    )
    finding = check_loses_less("skip", "feedback.answer_every", results)
    assert finding == Finding(f"BiTTA {10 * last - 90:+.2f}, SimATTA* -20.00 (1 seed)", holds)


@pytest.mark.parametrize(
    ("bfa", "aba", "both", "holds"),
    [
        ((2, 2), (6, 6), (8, 8), True),
        ((7, 7), (6, 6), (8, 8), False),
        ((2, 2), (6, 8), (9, 8), False),  # not better in the second domain
    ],
)
def test_both_parts_must_be_best_in_each_domain(write_results, bfa, aba, both, holds):
    runs = [
        made_run(name, "bitta", list(rights), settings={"alpha": alpha, "beta": beta})
        for name, alpha, beta, rights in (
            ("bfa", 1.0, 0.0, bfa), ("aba", 0.0, 1.0, aba), ("both", 1.0, 1.0, both)
        )
    ]  # fmt: skip
    assert check_both_parts_are_best(write_results("components", *runs)).holds is holds


@pytest.mark.parametrize(("fixed", "holds"), [(7, True), (8, False)])
def test_agreement_must_be_above_each_threshold(write_results, fixed, holds):
    runs = [
        run("agreement", 8, settings=AGREEING, n_queries=0),
        *(
            run(f"fixed-{th}", right, settings={"agreement": "threshold", "threshold": th})
            for th, right in ((0.8, 6), (0.99, fixed))
        ),
    ]
    finding = check_agreement_beats_thresholds(write_results("thresholds", *runs))
    assert finding.holds is holds
    assert finding.summary.startswith("agreement: 80.00, 0.8: 60.00, 0.99: ")


@pytest.mark.parametrize(("second", "holds"), [(8, True), (6, False)])
def test_thresholds_must_deviate_more_between_seeds(write_results, second, holds):
    """Agreement has 80 and 70 (deviation 7.07), the threshold 60 and 80, or 60 twice."""
    fixed = {"agreement": "threshold", "threshold": 0.8}
    runs = [
        run(name, right, settings=settings, seed=seed)
        for name, settings, rights in (("a", AGREEING, (8, 7)), ("fixed", fixed, (6, second)))
        for seed, right in enumerate(rights)
    ]
    finding = check_thresholds_vary_more(write_results("thresholds", *runs))
    apart = f"{14.142 if holds else 0:.2f}"
    assert finding == Finding(f"agreement: 7.07, 0.8: {apart} (2 seeds)", holds)


@pytest.mark.parametrize(("low", "holds"), [(6, True), (7, False)])
def test_value_must_be_far_below_another(write_results, low, holds):
    runs = runs_by_setting("policy", {"augmentation": low, "dropout": 8, "softmax": 1})
    check = partial(check_far_below, "f", "method.policy", "augmentation", "dropout", 10.0)
    summary = f"augmentation: {10 * low}.00, dropout: 80.00 (1 seed)"
    assert check(write_results("f", *runs)) == Finding(summary, holds)


@pytest.mark.parametrize(("right", "holds"), [(7, True), (8, False)])
def test_agreeing_samples_must_be_more_accurate_in_each_domain(write_results, right, holds):
    """8 of 10 samples agree, and 6 of these are right: 75 %. 1 or 2 of the other 2 are right."""
    step = {"n_measured": 10, "n_agreeing": 8, "n_agreeing_correct": 6}
    finding = check_agreeing_is_more_accurate(
        "f", write_results("f", run("bitta", right, step=step))
    )
    other, led = (50, 2) if holds else (100, 0)
    assert numbers_in(finding.summary) == [75, other, led, 2, 1]
    assert finding.holds is holds


@pytest.mark.parametrize(("second", "holds"), [(2, True), (1, False)])
def test_agreeing_samples_must_deviate_less_between_domains(write_results, second, holds):
    """Agreeing samples have 6 and 5 right of 8: 75 and 62.5 %, a deviation of 8.84.

    The 2 others have 1 right in fog, and 2 or 1 in snow: a deviation of 35.36, or 0.
    """
    changes = [
        {"n_correct": right, "n_measured": 10, "n_agreeing": 8, "n_agreeing_correct": agreeing}
        for right, agreeing in ((7, 6), (5 + second, 5))
    ]
    finding = check_agreeing_varies_less(
        "f", write_results("f", with_steps(run("bitta", 7), changes))
    )
    others = [50, 100, 35.4] if holds else [50, 50, 0]
    assert numbers_in(finding.summary) == [62.5, 75, 8.8, *others, 1]
    assert finding.holds is holds


@pytest.mark.parametrize(("sure", "holds"), [(6.0, True), (6.5, False)])
def test_confidence_must_change_by_ten_points(write_results, sure, holds):
    """The policy's confidence is 70 % in fog, and 60 or 65 % in snow."""
    changes = [
        {"confidence": served, "n_measured": 10, "policy_confidence": policy}
        for served, policy in ((8.0, 7.0), (8.5, sure))
    ]
    finding = check_confidence_changes(
        write_results("confidence", with_steps(run("bitta", 5), changes))
    )
    assert numbers_in(finding.summary.removeprefix("cifar10-c")) == [10 * sure, 70, 80, 85, 1]
    assert finding.holds is holds


def test_results_without_policy_confidence_decide_nothing(write_results):
    assert check_confidence_changes(write_results("confidence", run("bitta", 5))) is None


def test_policy_confidence_is_averaged_over_measured_samples(write_results):
    """It was measured on 5 of 10 samples in fog, with a sum of 4.5, and not at all in snow."""
    changes = [{"confidence": 8.0, "n_measured": 5, "policy_confidence": 4.5}, {"confidence": 8.0}]
    finding = check_confidence_changes(
        write_results("confidence", with_steps(run("bitta", 5), changes))
    )
    assert numbers_in(finding.summary.removeprefix("cifar10-c")) == [90, 90, 80, 80, 1]
    assert finding.holds is False


def test_results_on_other_images_are_not_joined(write_results):
    one = run("bitta", 5)
    two = replace(run("tent", 6, "tent"), environment={**one.environment, "code": "0" * 64})
    assert len(write_results("f", one, two).rows("f", "tent")) == 1
    elsewhere = replace(two, environment={**two.environment, "stream": "other"})
    with pytest.raises(InputError, match="were run on different images, with seed 0"):
        write_results("f", elsewhere).rows("f", "tent")


def test_collapsed_row_is_marked_in_the_summary(write_results):
    """An accuracy of 30 is less than half of the median, 80."""
    runs = runs_by_setting("beta", {0.1: 3, 1.0: 8, 4.0: 9})
    finding = check_robust("f", "method.beta", 2.0, write_results("f", *runs))
    assert finding.summary == "0.1: 30.00 ‡, 1.0: 80.00, 4.0: 90.00 (1 seed)"


@pytest.mark.parametrize(("sure", "holds"), [(9.0, True), (6.5, False)])
def test_dropout_must_have_the_lower_calibration_error(write_results, sure, holds):
    """6 of 10 are right. A mean confidence of 0.7 is off by 0.1, 0.9 by 0.3, 0.65 by 0.05."""
    runs = []
    for policy, confidence in (("dropout", 7.0), ("softmax", sure)):
        bins = Reliability(*([0.0] * 13 + [value, 0.0] for value in (10.0, confidence, 6.0)))
        runs.append(run(policy, 6, settings={"policy": policy}, policy_reliability=bins))
    finding = check_dropout_calibration(write_results("calibration", *runs))
    softmax = sure / 10 - 0.6
    assert finding == Finding(f"dropout 0.100, softmax {softmax:.3f} (1 seed)", holds)


def at_equal_cost(bitta, simatta, wrong):
    full = {"labels": "full", "equal": "bits"}
    return [
        run("bitta", bitta, n_queries=10, equal="bits"),
        run("simatta", simatta, "simatta", **full),
        run("simatta-gpt-4o", wrong, "simatta", error=0.4, **full),
    ]


def test_lead_at_equal_cost_is_shown_in_percent_and_points(write_results):
    """80 is 60 % more than 50, or 30 points."""
    results = write_results("equal-cost", *at_equal_cost(8, 5, 4))
    summary = "cifar10-c in bits: +60.0 % (+30.0 points) (1 seed)"
    assert check_largest_lead_at_equal_cost(32, results) == Finding(summary, True, False)
    # Two sets are missing, which may have a larger lead.
    assert check_largest_lead_at_equal_cost(61, results) == Finding(summary, None, False)
    assert check_above_simatta_at_equal_cost(results) == Finding(
        "cifar10-c +30.00 (1 seed)", True, False
    )
    true_labels, answers = (
        check_true_labels_above_wrong(results),
        check_answers_above_wrong_labels(results),
    )
    assert true_labels == Finding("cifar10-c +10.00 (1 seed)", True, False)
    assert answers == Finding("cifar10-c +40.00 (1 seed)", True, False)


def test_seeds_of_two_code_versions_share_a_row(write_results):
    first, second = (run("bitta", right, seed=seed) for seed, right in ((0, 8), (1, 6)))
    later = replace(second, environment={**second.environment, "code": "e" * 64})
    [section] = write_results("f", first, later).own_sections("f")
    [row] = section.rows
    assert list(row.runs) == [0, 1]
    assert row.accuracy.mean == 70.0
    assert len(section.environment_values("code")) == 2
