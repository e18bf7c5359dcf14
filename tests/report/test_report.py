"""Tables and plots from results alone."""

import pytest
from PIL import Image

from bitta.metrics import Reliability
from bitta.report import summary_rows, text_table, write_accuracy_plot
from bitta.results import RunResult, StepRecord


def result(domains, right):
    steps = [
        StepRecord(domain, 10, n_correct, 3, 2, 1, {}, 0.5)
        for domain, n_correct in zip(domains, right, strict=True)
    ]
    return RunResult({"name": "x"}, "protocol", {}, steps, Reliability(), 0, 0, 0, "hash")


def test_quarters_mean_and_counts_by_hand():
    rows = summary_rows({"A": result(["d"] * 8, [1, 3, 5, 5, 7, 9, 10, 10])})
    assert rows[1] == [
        "A",
        "20.0",
        "50.0",
        "80.0",
        "100.0",
        "62.5",
        "0.0",
        "24",
        "16",
        "8",
        "0.500",
    ]


def test_fewer_batches_than_quarters_get_fewer_columns():
    rows = summary_rows({"A": result(["d"] * 2, [1, 3])})
    assert rows[0][:4] == ["method", "1st", "2nd", "mean"]
    assert rows[1][:4] == ["A", "10.0", "30.0", "20.0"]


def test_several_domains_get_a_column_each():
    rows = summary_rows({"A": result(["fog", "fog", "snow"], [1, 3, 9])})
    assert rows[0][1:4] == ["fog", "snow", "mean"]
    assert rows[1][1:4] == ["20.0", "90.0", "43.3"]


def test_columns_are_aligned():
    text = text_table([["a", "b"], ["long", "1"], ["x", "22"]])
    assert text.splitlines() == ["a      b", "----  --", "long   1", "x     22"]


def test_the_plot_is_a_picture(tmp_path):
    results = {"Source": result(["a", "b"] * 1, [1, 2]), "BiTTA": result(["a", "b"], [3, 9])}
    write_accuracy_plot(results, tmp_path / "p.png", title="t")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size == pytest.approx((1040, 585), abs=2)
