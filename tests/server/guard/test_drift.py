"""History in a bounded number of points."""

import json

import pytest

from bitta.errors import SettingError
from bitta.server.guard import History, Point
from bitta.server.guard.drift import merged


def test_points_merge_by_how_many_each_holds_and_nothing_known_stays_out():
    earlier = Point(at=1, accuracy=0.6, confidence=0.5, latency_ms=10, latency_p99_ms=90, n=3)
    later = Point(at=2, accuracy=0.8, low=0.7, latency_ms=30, latency_p99_ms=40)
    both = merged(earlier, later)
    assert both.accuracy == pytest.approx((3 * 0.6 + 0.8) / 4)
    assert (both.at, both.n) == (2, 4)
    assert (both.low, both.confidence, both.agreement) == (0.7, 0.5, None)
    assert both.latency_ms == pytest.approx(15)
    assert both.latency_p99_ms == 90


def test_up_to_its_capacity_a_history_holds_what_came():
    history = History(4)
    for at in range(4):
        history.add(Point(at=at))
    assert [point.at for point in history.points] == [0, 1, 2, 3]


def test_beyond_it_the_oldest_neighbours_with_the_fewest_points_merge():
    history = History(4)
    seen = []
    for at in range(9):
        history.add(Point(at=at))
        seen.append([point.n for point in history.points])
    # The newest stays as it came. Of the others the smallest sum, the oldest of equals:
    # (2 2 2 1) 1 -> 2+1, then (2 2 3 1) 1 -> 2+2.
    assert seen[4:] == [[2, 1, 1, 1], [2, 2, 1, 1], [2, 2, 2, 1], [2, 2, 3, 1], [4, 3, 1, 1]]


def test_old_points_come_to_cover_about_the_same_time_and_new_ones_stay_fine():
    history = History(64)
    for at in range(10_000):
        history.add(Point(at=at, confidence=at))
    weights = [point.n for point in history.points]
    assert len(history) == 64
    assert sum(weights) == 10_000
    assert weights[-16:] == [1] * 16
    assert max(weights[:40]) <= 4 * min(weights[:40])
    assert [p.at for p in history.points] == sorted(p.at for p in history.points)


def test_status_gives_a_list_for_each_quantity():
    history = History()
    history.add(Point(at=5, accuracy=0.5, low=0.2, high=0.8))
    status = history.as_status()
    assert status["at"] == [5]
    assert status["low"] == [0.2]
    assert status["agreement"] == [None]
    assert set(status) == {
        "at", "accuracy", "low", "high", "confidence", "agreement", "answers_per_minute",
        "latency_ms", "latency_p99_ms",
    }  # fmt: skip


def test_state_survives_json_and_a_smaller_capacity():
    history = History(8)
    for at in range(20):
        history.add(Point(at=at, agreement=0.5))
    saved = json.loads(json.dumps(history.state_dict()))
    other = History(8)
    other.load_state_dict(saved)
    assert other.points == history.points
    small = History(4)
    small.load_state_dict(saved)
    assert len(small) == 4
    assert sum(point.n for point in small.points) == 20


def test_a_history_too_small_to_merge_is_refused():
    with pytest.raises(SettingError, match="4 or more"):
        History(3)
