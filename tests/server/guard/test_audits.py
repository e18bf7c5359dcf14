"""What verdicts on audits say."""

import pytest

from bitta.errors import SettingError
from bitta.server.guard import Audited, SameAsSource


def judged(*correct):
    return [(one, None) for one in correct]


def test_accuracy_and_interval_of_eight_of_ten():
    estimate = Audited.of(judged(*[True] * 8, *[False] * 2), size=100)
    assert (estimate.n, estimate.correct, estimate.accuracy) == (10, 8, 0.8)
    assert estimate.interval == pytest.approx((0.490159, 0.943321), abs=1e-5)
    assert estimate.as_status()["low"] == pytest.approx(0.490159, abs=1e-5)


def test_without_answers_nothing_is_claimed():
    assert Audited.of([], size=3).as_status() == {
        "n": 0, "correct": 0, "accuracy": None, "low": None, "high": None,
    }  # fmt: skip


def test_only_the_last_are_looked_at_and_all_are_counted():
    estimate = Audited.of(judged(False, False, True, True), size=3)
    assert (estimate.n, estimate.correct, estimate.total) == (3, 2, 4)


def test_those_left_out_before_count_too():
    assert Audited.of(judged(True), size=3, total=9).total == 9


def test_the_source_is_known_to_err_when_it_shares_an_error_or_differs_from_what_is_right():
    verdicts = [(True, True), (False, True), (True, False), (False, False), (True, None)]
    estimate = Audited.of(verdicts, size=5)
    assert (estimate.compared, estimate.source_wrong) == (4, 2)


def test_what_the_source_says_is_kept_for_the_newest_predictions():
    same = SameAsSource(size=2)
    for name, value in (("a", True), ("b", False), ("c", True)):
        same.add(name, same=value)
    assert [same.of(name) for name in "abcd"] == [None, False, True, None]


@pytest.mark.parametrize("size", [0, 1.5])
def test_a_size_that_holds_nothing_is_refused(size):
    with pytest.raises(SettingError, match="allowed"):
        SameAsSource(size=size)
