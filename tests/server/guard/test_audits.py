"""The window of audit answers."""

import json

import pytest

from bitta.errors import SettingError
from bitta.server.guard import Audits


def filled(verdicts, **settings):
    audits = Audits(**settings)
    for at, correct in enumerate(verdicts):
        audits.add(f"a{at}", correct=correct, served_at=float(at))
    return audits


def test_accuracy_and_interval_of_eight_of_ten():
    estimate = filled([True] * 8 + [False] * 2).estimate(10)
    assert (estimate.n, estimate.correct, estimate.accuracy) == (10, 8, 0.8)
    assert estimate.interval == pytest.approx((0.490159, 0.943321), abs=1e-5)
    assert estimate.as_status()["low"] == pytest.approx(0.490159, abs=1e-5)


def test_without_answers_nothing_is_claimed():
    assert Audits().estimate(0).as_status() == {
        "n": 0, "correct": 0, "accuracy": None, "low": None, "high": None,
    }  # fmt: skip


def test_only_the_last_by_time_served_are_kept_whenever_they_are_answered():
    audits = filled([False, True, True], size=3)
    audits.add("late", correct=False, served_at=-1.0)
    assert audits.estimate(10).correct == 2
    assert audits.estimate(10).n == 3
    audits.add("new", correct=True, served_at=3.0)
    assert audits.estimate(10).correct == 3


def test_old_ones_no_longer_count():
    audits = filled([False, False, True, True], seconds=5)
    assert audits.estimate(7).n == 2
    assert audits.estimate(7).accuracy == 1
    assert audits.estimate(100).n == 0


def test_a_change_of_mind_replaces_and_an_undo_removes():
    audits = filled([True, True])
    audits.add("a0", correct=False, served_at=0.0)
    assert (audits.estimate(2).n, audits.estimate(2).correct) == (2, 1)
    audits.remove("a0")
    audits.remove("never seen")
    assert (audits.estimate(2).n, audits.estimate(2).correct) == (1, 1)
    assert audits.estimate(2).total == 2


def test_after_clearing_only_the_total_is_left():
    audits = filled([True, True])
    audits.clear()
    assert (audits.estimate(2).n, audits.estimate(2).total) == (0, 2)


def test_the_source_is_known_to_err_when_it_shares_an_error_or_differs_from_what_is_right():
    audits = Audits()
    for at, (correct, same) in enumerate(
        [(True, True), (False, True), (True, False), (False, False), (True, None)]
    ):
        audits.add(str(at), correct=correct, served_at=at, source_same=same)
    estimate = audits.estimate(5)
    assert (estimate.compared, estimate.source_wrong) == (4, 2)


def test_state_survives_json_and_a_smaller_window():
    audits = filled([True, False, True], size=5)
    other = Audits(size=2)
    other.load_state_dict(json.loads(json.dumps(audits.state_dict())))
    assert (other.estimate(3).n, other.estimate(3).correct) == (2, 1)
    same = Audits(size=5)
    same.load_state_dict(audits.state_dict())
    assert same.estimate(3) == audits.estimate(3)


@pytest.mark.parametrize("settings", [{"size": 0}, {"size": 1.5}, {"seconds": 0}])
def test_windows_that_hold_nothing_are_refused(settings):
    with pytest.raises(SettingError, match="allowed"):
        Audits(**settings)
