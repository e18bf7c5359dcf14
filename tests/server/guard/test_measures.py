"""Variety of inputs and distance of weights, by hand."""

import pytest
import torch

from bitta.server.guard.measures import distance, variety


def test_variety_is_the_mean_deviation_of_a_pixel():
    """Pixel one: 0 and 2, deviation 1; pixel two: 5 and 5, deviation 0."""
    assert variety(torch.tensor([[0.0, 5.0], [2.0, 5.0]])) == 0.5
    assert variety(torch.tensor([[0, 4], [0, 0]], dtype=torch.uint8)) == 1.0
    assert variety(torch.ones(1, 3)) == 0


def test_distance_is_relative_over_all_tensors_together():
    """Moved by (3, 0) and (4): 5; the source has √(36 + 64) = 10."""
    source = [torch.tensor([6.0, 0.0]), torch.tensor([8.0])]
    now = [torch.tensor([9.0, 0.0]), torch.tensor([4.0])]
    assert distance(now, source) == pytest.approx(0.5)
    assert distance(source, source) == 0
