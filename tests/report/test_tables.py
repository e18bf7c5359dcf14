"""Tests that tables show what was measured."""

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from bitta.metrics import Reliability
from bitta.report import summary_rows, text_table
from bitta.report.comparison import compare
from bitta.report.paper_numbers import read_paper_tables
from bitta.report.tables import (
    Cell,
    Table,
    accuracy_table,
    fit_accuracy_table,
    measures_table,
)
from bitta.report.text_report import csv_report
from bitta.results import RunResult, StepRecord
from made_results import made_run, made_section

PAPER = read_paper_tables(Path(__file__).parents[2] / "reproduction" / "paper")


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_accuracy_table_has_means_deviations_and_differences(comparison):
    """TENT*: 50 and 55. BiTTA: 70 and 85. Their differences: -50 +10, -60 0; median -25."""
    table = accuracy_table(comparison)
    assert table.header == ["method", "fog", "snow", "mean", "vs BiTTA", "p"]
    assert texts(table) == [
        ["Source", "40.0", "80.0", "60.00", "-10.0", "1.000"],
        ["TENT*", "15.0 ± 7.1", "90.0 ± 0.0", "52.50 ± 3.54", "-25.0", "1.000"],
        ["BiTTA", "70.0 ± 14.1", "85.0 ± 7.1", "77.50 ± 10.61", "–", "–"],
    ]


def test_best_value_of_each_column_is_bold(comparison):
    table = accuracy_table(comparison)
    best = {
        (row[0].text, table.header[n]) for row in table.rows for n in range(6) if row[n].is_best
    }
    assert best == {("BiTTA", "fog"), ("TENT*", "snow"), ("BiTTA", "mean")}


def test_collapsed_row_has_a_mark_and_a_note_with_its_seeds(comparison):
    """Half of the source's 40 % is 20 %, which seed 1 just reaches."""
    table = accuracy_table(comparison)
    assert [row[3].mark for row in table.rows] == ["", " †", ""]
    assert table.notes[0].startswith("† COLLAPSED")
    assert table.notes[1] == "  TENT*: in fog, seed 0 of 2"


def test_note_names_rows_with_fewer_seeds(comparison):
    notes = " ".join(accuracy_table(comparison).notes)
    assert "Mean ± standard deviation over seeds 0, 1. Fewer seeds: Source: 0." in notes
    assert "With fewer than 6 pairs p cannot be below .05." in notes


def test_note_has_the_range_of_pairs_if_rows_differ(comparison):
    """With two domains, TENT* shares two seeds with BiTTA, the source model one."""
    assert "median difference over 2 to 4 pairs of domain" in accuracy_table(comparison).notes[-1]


def test_columns_that_do_not_fit_are_left_out_with_a_note(comparison):
    wide = fit_accuracy_table(comparison, 200)
    assert wide.header[1:3] == ["fog", "snow"]
    assert "±" in wide.rows[1][1].text
    middle = fit_accuracy_table(comparison, 55)
    assert middle.rows[1][1].text == "15.0"
    assert any("Deviations of the domains" in note for note in middle.notes)
    narrow = fit_accuracy_table(comparison, 40)
    assert narrow.header == ["method", "mean", "vs BiTTA", "p"]
    assert any("Domains do not fit" in note for note in narrow.notes)


def test_domain_names_are_shortened_before_domains_are_left_out(tmp_path):
    domains = ("elastic_transform", "something_long")
    runs = [made_run(name, name, [4, 8], domains=domains) for name in ("source", "tent")]
    table = fit_accuracy_table(compare(made_section(tmp_path, runs)), 50)
    assert table.header[1:3] == ["elas", "someth"]
    assert any("Names of the domains" in note for note in table.notes)


def test_swept_setting_is_the_first_column(tmp_path):
    runs = [made_run(f"bitta-flip{flip}", "bitta", [4, 8], flip=flip) for flip in (0.0, 0.1)]
    table = accuracy_table(compare(made_section(tmp_path, runs)))
    assert table.header[:2] == ["flip", "method"]
    assert [row[:2] for row in texts(table)] == [["0", "BiTTA"], ["0.1", "BiTTA"]]
    assert table.n_text_columns == 2


def by_threshold(value, agreement="threshold"):
    return {"agreement": agreement, "threshold": value}


@pytest.fixture
def thresholds(tmp_path):
    """Comparison of two thresholds and a row with the policy, which needs no threshold."""
    runs = [
        made_run("t0.8", "bitta", [5, 5], n_queries=0, settings=by_threshold(0.8)),
        made_run("t0.85", "bitta", [9, 9], n_queries=0, settings=by_threshold(0.85)),
        made_run("p", "bitta", [4, 8], n_queries=0, settings=by_threshold(0.9, "policy")),
    ]
    return compare(made_section(tmp_path, runs))


def test_setting_without_effect_is_a_dash(thresholds):
    table = accuracy_table(thresholds)
    assert table.header[:3] == ["agreement", "threshold", "method"]
    assert [row[:2] for row in texts(table)] == [
        ["policy", "–"], ["threshold", "0.8"], ["threshold", "0.85"],
    ]  # fmt: skip
    lines = csv.DictReader(StringIO(csv_report([thresholds], ["accuracy"])))
    assert next(lines)["varied"] == "method.agreement=policy"


def test_long_baseline_name_is_short_in_the_header_and_complete_in_the_note(thresholds):
    table = accuracy_table(thresholds)
    assert table.header[-2:] == ["vs BiTTA (…)", "p"]
    whole = "Versus BiTTA (no answers, agreement threshold, threshold 0.85): median"
    assert any(note.startswith(whole) for note in table.notes)


def test_measures_table_has_a_column_per_recorded_measure(tmp_path):
    """0.5 s are 500 ms; 10 forwards for 20 samples; a Brier sum of 4 over 10 samples."""
    runs = [
        made_run("source", "source", [4, 8], step={"brier": 4.0}),
        made_run("bitta", "bitta", [4, 8], step={"brier": 3.0}),
    ]
    table = measures_table(compare(made_section(tmp_path, runs)))
    expected = "ECE %, Brier, questions, answers, ms/batch, forwards, peak MB"
    assert ", ".join(table.header[1:]) == expected
    assert texts(table)[0] == ["Source", "0.0", "0.400", "0", "0", "500.0", "0.5", "1"]
    assert [row[2].is_best for row in table.rows] == [False, True]
    only = measures_table(compare(made_section(tmp_path, runs)), ["ms"])
    assert only.header == ["method", "ms/batch", "forwards"]


TABLE = Table(
    ["method", "a|b"],
    [[Cell("TENT*"), Cell("1.5", mark=" †")], [Cell("X"), Cell("22", is_best=True)]],
    n_text_columns=1,
)


def test_text_table_aligns_digits_despite_marks_and_bold():
    assert TABLE.as_text(bold=False).splitlines() == [
        "method    a|b",
        "------  -----",
        "TENT*   1.5 †",
        "X        22",
    ]
    assert "\x1b" not in TABLE.as_text(bold=False)
    assert "\x1b[1m" in TABLE.as_text(bold=True).splitlines()[-1]


def test_markdown_table_marks_the_best_and_escapes_other_stars():
    assert TABLE.as_markdown().splitlines() == [
        r"| method | a\|b |",
        "| --- | ---: |",
        r"| TENT\* | 1.5 † |",
        "| X | **22** |",
    ]


def test_memory_table_has_the_papers_numbers_only_on_a_gpu(tmp_path):
    """1 MB each; Table 4 has 2,081 for the source model and 8,304 for BiTTA."""
    (tmp_path / "memory").mkdir()
    runs = [made_run("source", "source", [4, 8]), made_run("bitta", "bitta", [6, 8])]
    on_cpu = compare(made_section(tmp_path / "memory", runs), paper=PAPER)
    assert measures_table(on_cpu, ("memory",)).header == ["method", "peak MB"]
    gpu = runs[0].environment | {"device": "H200"}
    compared = compare(
        made_section(tmp_path / "memory", [replace(run, environment=gpu) for run in runs]),
        paper=PAPER,
    )
    table = measures_table(compared, ("memory",))
    assert table.notes == [
        "Paper: its table of this measure, on other hardware; difference: ours minus the paper's."
    ]
    assert table.header == ["method", "peak MB", "paper", "difference"]
    assert texts(table) == [
        ["Source", "1", "2081", "-2080"], ["BiTTA", "1", "8304", "-8303"],
    ]  # fmt: skip
    lines = csv.DictReader(StringIO(csv_report([compared], ("memory",))))
    assert [(line["paper"], line["difference"]) for line in lines] == [
        ("2081.0", "-2080.0"), ("8304.0", "-8303.0"),
    ]  # fmt: skip


def result(domains, right):
    steps = [
        StepRecord(domain, 10, n_correct, 3, 2, 1, {}, 0.5)
        for domain, n_correct in zip(domains, right, strict=True)
    ]
    return RunResult({"name": "x"}, "protocol", {}, steps, Reliability(), 0, 0, 0, "hash")


def test_summary_of_one_domain_has_quarters_mean_and_counts():
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


def test_summary_has_fewer_columns_for_fewer_batches_than_quarters():
    rows = summary_rows({"A": result(["d"] * 2, [1, 3])})
    assert rows[0][:4] == ["method", "1st", "2nd", "mean"]
    assert rows[1][:4] == ["A", "10.0", "30.0", "20.0"]


def test_summary_has_a_column_per_domain():
    rows = summary_rows({"A": result(["fog", "fog", "snow"], [1, 3, 9])})
    assert rows[0][1:4] == ["fog", "snow", "mean"]
    assert rows[1][1:4] == ["20.0", "90.0", "43.3"]


def test_text_table_aligns_columns():
    text = text_table([["a", "b"], ["long", "1"], ["x", "22"]])
    assert text.splitlines() == ["a      b", "----  --", "long   1", "x     22"]
