"""Measures by hand."""

import pytest
import torch

from bitta.metrics import Reliability, Stopwatch, peak_memory


def test_ece_by_hand():
    """Two in the bin around .9 (one right), one in the bin around .5 (right).

    Gaps: |1.8 - 1| = .8 and |.5 - 1| = .5, so ECE = 1.3 / 3.
    """
    confidence, correct = torch.tensor([0.9, 0.9, 0.5]), torch.tensor([True, False, True])
    reliability = Reliability().add(confidence, correct)
    assert reliability.ece == pytest.approx(100 * 1.3 / 3, abs=1e-4)


def test_ece_does_not_depend_on_batches():
    confidence, correct = torch.linspace(0, 1, 40), torch.arange(40) % 3 == 0
    whole = Reliability().add(confidence, correct)
    parts = Reliability()
    for sure, right in zip(confidence.split(7), correct.split(7), strict=True):
        parts = parts.add(sure, right)
    assert parts.ece == pytest.approx(whole.ece)
    assert sum(parts.count) == 40


def test_zero_and_one_have_bins():
    reliability = Reliability().add(torch.tensor([0.0, 0.05, 1.0]), torch.ones(3))
    assert reliability.count[0] == 2
    assert reliability.count[-1] == 1
    assert Reliability().ece == 0


def test_cost_is_positive():
    watch = Stopwatch(torch.device("cpu"))
    watch.start()
    assert watch.stop() >= 0
    assert peak_memory(torch.device("cpu")) > 1e6
