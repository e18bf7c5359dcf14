"""Intervals of shares, against numbers worked out by hand."""

import pytest

from bitta.errors import SettingError
from bitta.server.guard import wilson


def test_eight_of_ten():
    """z² = 3.8416; middle (8 + 1.9208) / 13.8416 = 0.71674;
    reach 1.96 / 13.8416 · √(8 · 2 / 10 + 0.9604) = 0.141602 · 1.600125 = 0.226581."""
    assert wilson(8, 10) == pytest.approx((0.490159, 0.943321), abs=1e-5)


def test_none_and_all_of_ten_end_at_the_end():
    """z² / (n + z²) = 3.8416 / 13.8416 = 0.277540."""
    assert wilson(0, 10) == (0.0, pytest.approx(0.277540, abs=1e-6))
    assert wilson(10, 10) == (pytest.approx(0.722460, abs=1e-6), 1.0)


def test_nothing_counted_allows_every_share():
    assert wilson(0, 0) == (0.0, 1.0)


def test_half_of_four_with_another_z():
    """z = 2: middle (2 + 2) / 8 = 0.5; reach 2 / 8 · √(1 + 1) = 0.353553."""
    assert wilson(2, 4, z=2) == pytest.approx((0.146447, 0.853553), abs=1e-6)


@pytest.mark.parametrize(("k", "n"), [(-1, 3), (4, 3), (1, 0)])
def test_more_than_all_or_less_than_none_is_refused(k, n):
    with pytest.raises(SettingError, match="allowed: 0 to n"):
        wilson(k, n)
