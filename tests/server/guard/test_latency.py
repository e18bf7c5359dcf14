"""Quantiles over the last requests."""

import pytest

from bitta.errors import SettingError
from bitta.server.guard import Latencies


def test_quantiles_by_nearest_rank():
    latencies = Latencies()
    for ms in range(100, 0, -1):
        latencies.add(ms / 1000)
    assert latencies.as_status() == {"p50": pytest.approx(50), "p99": pytest.approx(99)}
    assert latencies.quantile(1) == 0.1
    assert latencies.quantile(0.001) == 0.001


def test_one_time_is_every_quantile():
    latencies = Latencies()
    latencies.add(0.25)
    assert latencies.as_status() == {"p50": 250, "p99": 250}


def test_nothing_yet_is_none():
    assert Latencies().as_status() == {"p50": None, "p99": None}


def test_the_oldest_make_room():
    latencies = Latencies(3)
    for seconds in (9.0, 1.0, 2.0, 3.0):
        latencies.add(seconds)
    assert latencies.quantile(1) == 3.0
    latencies.add(0.5)
    latencies.add(0.6)
    assert latencies.quantile(1) == 3.0
    latencies.add(0.7)
    assert latencies.quantile(1) == 0.7


def test_a_ring_without_room_is_refused():
    with pytest.raises(SettingError, match="1 or more"):
        Latencies(0)
