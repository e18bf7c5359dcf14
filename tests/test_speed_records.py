"""Tests of the growth of time, against power laws and hand computations."""

import pytest

from bitta.speed_records import (
    SpeedCase,
    SpeedMeasurement,
    find_scaling_curves,
    fit_growth_exponent,
)


def measurement(*, ms=1.0, failure="", **changes):
    values = {
        "method": "bitta", "model": "resnet8", "n_classes": 10, "size": 32, "batch": 64,
        "n_queries": 3, "memory": 64, "passes": 4, "epochs": 3,
    }  # fmt: skip
    return SpeedMeasurement(case=SpeedCase(**{**values, **changes}), ms=ms, failure=failure)


def test_exponent_of_a_power_law():
    assert fit_growth_exponent([(x, 3 * x**0.8) for x in (1, 16, 64, 256)]) == pytest.approx(0.8)
    assert fit_growth_exponent([(1, 5), (2, 5)]) == pytest.approx(0)


def test_exponent_of_a_fit_equals_hand_computation():
    """log2: (0, 0), (1, 0), (2, 3); means 1 and 1; slope (1 x 1 + 0 + 1 x 2) / 2 = 1.5."""
    assert fit_growth_exponent([(1, 1), (2, 1), (4, 8)]) == pytest.approx(1.5)


def test_last_exponent_is_higher_with_fixed_costs():
    curve = find_scaling_curves([measurement(batch=b, ms=b + 16) for b in (64, 1, 16)])[0]
    assert curve.points == [(1, 17), (16, 32), (64, 80)]
    assert curve.exponent < curve.last_exponent == pytest.approx(0.661, abs=1e-3)


def test_only_cases_that_differ_along_one_axis_make_a_curve():
    batches = [measurement(batch=b) for b in (1, 16, 64)]
    others = [measurement(method="tent", batch=b) for b in (1, 16, 64)]
    stray = [measurement(batch=256, model="resnet20"), measurement(passes=8)]
    curves = find_scaling_curves([*batches, *stray, *others])
    assert [(curve.axis, curve.method, len(curve.points)) for curve in curves] == [
        ("batch", "bitta", 3),
        ("batch", "tent", 3),
    ]


def test_failed_measurements_are_left_out_of_curves():
    large = measurement(batch=256, failure="does not fit")
    curve = find_scaling_curves([measurement(batch=1, ms=2), measurement(batch=16, ms=8), large])[0]
    assert curve.points == [(1, 2), (16, 8)]
    assert (
        find_scaling_curves([measurement(batch=1), large, measurement(batch=512, failure="x")])
        == []
    )
