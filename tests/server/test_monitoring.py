"""Tests of audit summaries, Wilson intervals, history, latencies and the duty cycle."""

import json

import pytest

from bitta.errors import SettingError
from bitta.server.monitoring import (
    AuditSummary,
    DutyCycle,
    HistoryPoint,
    RecentLatencies,
    ServingHistory,
    SourceAgreement,
    merge_points,
    wilson_interval,
)


def test_wilson_interval_of_eight_of_ten():
    """z² = 3.8416; centre (8 + 1.9208) / 13.8416 = 0.71674;
    half width 1.96 / 13.8416 · √(8 · 2 / 10 + 0.9604) = 0.141602 · 1.600125 = 0.226581."""
    assert wilson_interval(8, 10) == pytest.approx((0.490159, 0.943321), abs=1e-5)


def test_wilson_interval_of_none_or_all_ends_at_0_or_1():
    """z² / (n + z²) = 3.8416 / 13.8416 = 0.277540."""
    assert wilson_interval(0, 10) == (0.0, pytest.approx(0.277540, abs=1e-6))
    assert wilson_interval(10, 10) == (pytest.approx(0.722460, abs=1e-6), 1.0)


def test_wilson_interval_without_samples_is_0_to_1():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_wilson_interval_with_other_z():
    """z = 2: centre (2 + 2) / 8 = 0.5; half width 2 / 8 · √(1 + 1) = 0.353553."""
    assert wilson_interval(2, 4, z=2) == pytest.approx((0.146447, 0.853553), abs=1e-6)


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (1, 0)])
def test_wilson_interval_refuses_k_outside_0_to_n(k, n):
    with pytest.raises(SettingError, match="allowed: 0 to n"):
        wilson_interval(k, n)


def without_source(*correct):
    return [(one, None) for one in correct]


def test_audit_summary_of_eight_of_ten():
    estimate = AuditSummary.from_answers(without_source(*[True] * 8, *[False] * 2), max_n=100)
    assert (estimate.n, estimate.n_correct, estimate.accuracy) == (10, 8, 0.8)
    assert estimate.interval == pytest.approx((0.490159, 0.943321), abs=1e-5)
    assert estimate.to_status()["low"] == pytest.approx(0.490159, abs=1e-5)


def test_audit_summary_without_answers_has_no_accuracy():
    assert AuditSummary.from_answers([], max_n=3).to_status() == {
        "n": 0, "correct": 0, "accuracy": None, "low": None, "high": None,
    }  # fmt: skip


def test_audit_summary_uses_newest_answers_and_counts_all():
    estimate = AuditSummary.from_answers(without_source(False, False, True, True), max_n=3)
    assert (estimate.n, estimate.n_correct, estimate.n_in_lineage) == (3, 2, 4)


def test_audit_summary_counts_earlier_audits_of_lineage():
    assert (
        AuditSummary.from_answers(without_source(True), max_n=3, n_in_lineage=9).n_in_lineage == 9
    )


def test_source_is_wrong_if_it_shares_error_or_differs_from_correct_label():
    verdicts = [(True, True), (False, True), (True, False), (False, False), (True, None)]
    estimate = AuditSummary.from_answers(verdicts, max_n=5)
    assert (estimate.n_compared, estimate.n_source_wrong) == (4, 2)


def test_source_agreement_keeps_newest_predictions():
    agreement = SourceAgreement(size=2)
    for name, value in (("a", True), ("b", False), ("c", True)):
        agreement.add(name, is_same=value)
    assert [agreement.get(name) for name in "abcd"] == [None, False, True, None]


@pytest.mark.parametrize("size", [0, 1.5])
def test_source_agreement_refuses_invalid_size(size):
    with pytest.raises(SettingError, match="allowed"):
        SourceAgreement(size=size)


def test_merged_point_has_weighted_means_of_known_values():
    earlier = HistoryPoint(
        at=1, accuracy=0.6, confidence=0.5, latency_ms=10, latency_p99_ms=90, n=3
    )
    later = HistoryPoint(at=2, accuracy=0.8, low=0.7, latency_ms=30, latency_p99_ms=40)
    merged = merge_points(earlier, later)
    assert merged.accuracy == pytest.approx((3 * 0.6 + 0.8) / 4)
    assert (merged.at, merged.n) == (2, 4)
    assert (merged.low, merged.confidence, merged.agreement) == (0.7, 0.5, None)
    assert merged.latency_ms == pytest.approx(15)
    assert merged.latency_p99_ms == 90


def test_history_keeps_points_up_to_capacity():
    history = ServingHistory(4)
    for at in range(4):
        history.add(HistoryPoint(at=at))
    assert [point.at for point in history.points] == [0, 1, 2, 3]


def test_full_history_merges_oldest_neighbours_with_fewest_points():
    history = ServingHistory(4)
    seen = []
    for at in range(9):
        history.add(HistoryPoint(at=at))
        seen.append([point.n for point in history.points])
    # The newest point stays. Of the others the smallest sum is merged, the oldest among ties:
    # (2 2 2 1) 1 -> 2+1, then (2 2 3 1) 1 -> 2+2.
    assert seen[4:] == [[2, 1, 1, 1], [2, 2, 1, 1], [2, 2, 2, 1], [2, 2, 3, 1], [4, 3, 1, 1]]


def test_long_history_has_even_old_points_and_unmerged_new_points():
    history = ServingHistory(64)
    for at in range(10_000):
        history.add(HistoryPoint(at=at, confidence=at))
    weights = [point.n for point in history.points]
    assert len(history) == 64
    assert sum(weights) == 10_000
    assert weights[-16:] == [1] * 16
    assert max(weights[:40]) <= 4 * min(weights[:40])
    assert [p.at for p in history.points] == sorted(p.at for p in history.points)


def test_history_status_has_list_per_quantity():
    history = ServingHistory()
    history.add(HistoryPoint(at=5, accuracy=0.5, low=0.2, high=0.8))
    status = history.to_status()
    assert status["at"] == [5]
    assert status["low"] == [0.2]
    assert status["agreement"] == [None]
    assert set(status) == {
        "at", "accuracy", "low", "high", "confidence", "agreement", "answers_per_minute",
        "latency_ms", "latency_p99_ms",
    }  # fmt: skip


def test_history_state_survives_json_and_smaller_capacity():
    history = ServingHistory(8)
    for at in range(20):
        history.add(HistoryPoint(at=at, agreement=0.5))
    saved = json.loads(json.dumps(history.state_dict()))
    other = ServingHistory(8)
    other.load_state_dict(saved)
    assert other.points == history.points
    small = ServingHistory(4)
    small.load_state_dict(saved)
    assert len(small) == 4
    assert sum(point.n for point in small.points) == 20


def test_history_refuses_capacity_below_four():
    with pytest.raises(SettingError, match="4 or more"):
        ServingHistory(3)


def test_latency_quantiles_by_nearest_rank():
    latencies = RecentLatencies()
    for ms in range(100, 0, -1):
        latencies.add(ms / 1000)
    assert latencies.to_status() == {"p50": pytest.approx(50), "p99": pytest.approx(99)}
    assert latencies.quantile(1) == 0.1
    assert latencies.quantile(0.001) == 0.001


def test_single_latency_is_every_quantile():
    latencies = RecentLatencies()
    latencies.add(0.25)
    assert latencies.to_status() == {"p50": 250, "p99": 250}


def test_latency_quantiles_without_values_are_none():
    assert RecentLatencies().to_status() == {"p50": None, "p99": None}


def test_new_latency_replaces_oldest():
    latencies = RecentLatencies(3)
    for seconds in (9.0, 1.0, 2.0, 3.0):
        latencies.add(seconds)
    assert latencies.quantile(1) == 3.0
    latencies.add(0.5)
    latencies.add(0.6)
    assert latencies.quantile(1) == 3.0
    latencies.add(0.7)
    assert latencies.quantile(1) == 0.7


def test_latencies_refuse_size_zero():
    with pytest.raises(SettingError, match="1 or more"):
        RecentLatencies(0)


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return FakeClock()


def test_duty_of_half_waits_as_long_as_learning_took(clock):
    duty = DutyCycle(0.5, clock=clock)
    assert duty.remaining_seconds() == 0
    duty.add_learning(3.0)
    assert duty.remaining_seconds() == 3.0
    clock.now += 1
    assert duty.remaining_seconds() == 2.0
    clock.now += 5
    assert duty.remaining_seconds() == 0


def test_duty_of_a_fifth_waits_four_times_as_long(clock):
    duty = DutyCycle(0.2, clock=clock)
    duty.add_learning(2.0)
    assert duty.remaining_seconds() == pytest.approx(8.0)


def test_duty_of_one_never_waits(clock):
    duty = DutyCycle(1, clock=clock)
    duty.add_learning(9.0)
    assert duty.remaining_seconds() == 0


def test_waiting_time_adds_up_but_idle_time_does_not(clock):
    duty = DutyCycle(0.5, clock=clock)
    duty.add_learning(3.0)
    duty.add_learning(2.0)
    assert duty.remaining_seconds() == 5.0
    clock.now += 1000
    duty.add_learning(4.0)
    assert duty.remaining_seconds() == 4.0


def test_used_share_counts_only_learning_inside_interval(clock):
    """Learning at 90-100 and 110-120, now 140: of the last 60 s 20, of the last 25 s 5."""
    duty = DutyCycle(0.5, clock=clock)
    assert duty.used_share() == 0
    duty.add_learning(10.0)
    clock.now = 120.0
    duty.add_learning(10.0)
    clock.now = 140.0
    assert duty.used_share() == pytest.approx(20 / 60)
    assert duty.used_share(25) == pytest.approx(5 / 25)
    assert duty.used_share(20) == 0


def test_memory_of_periods_is_bounded(clock):
    duty = DutyCycle(0.5, clock=clock)
    for _ in range(2000):
        clock.now += 1
        duty.add_learning(0.5)
    assert len(duty._periods) <= 601


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_duty_refuses_share_out_of_range(share):
    with pytest.raises(SettingError, match="pause to stop learning"):
        DutyCycle(share)
