"""The report as text, Markdown and CSV."""

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from bitta.report.comparison import compare
from bitta.report.document import ALL_MEASURES, Terminal, csv_report, markdown_report, text_report
from bitta.report.reference_numbers import read_paper_tables
from bitta.report.sections import read_sections
from bitta.report.tables import (
    MEASURES,
    Cell,
    Table,
    accuracy_table,
    fit_accuracy_table,
    measures_table,
)
from made_results import made_run, made_section

ROOT = Path(__file__).parents[2]
PAPER = read_paper_tables(ROOT / "reproduction" / "paper")
WIDE = Terminal(1000, has_bold=False)


@pytest.fixture
def comparison(tmp_path):
    """Fog and snow: source 40 80, TENT* 10 90 and 20 90 (a collapse), BiTTA 60 80 and 80 90."""
    runs = [
        made_run("source", "source", [4, 8]),
        made_run("tent-feedback", "tent", [1, 9]),
        made_run("tent-feedback", "tent", [2, 9], seed=1),
        made_run("bitta", "bitta", [6, 8]),
        made_run("bitta", "bitta", [8, 9], seed=1),
    ]
    return compare(made_section(tmp_path, runs))


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_means_deviations_and_differences_by_hand(comparison):
    """TENT*: 50 and 55. BiTTA: 70 and 85. Their differences: -50 +10, -60 0; median -25."""
    table = accuracy_table(comparison)
    assert table.header == ["method", "fog", "snow", "mean", "vs BiTTA", "p"]
    assert texts(table) == [
        ["Source", "40.0", "80.0", "60.00", "-10.0", "1.000"],
        ["TENT*", "15.0 ± 7.1", "90.0 ± 0.0", "52.50 ± 3.54", "-25.0", "1.000"],
        ["BiTTA", "70.0 ± 14.1", "85.0 ± 7.1", "77.50 ± 10.61", "–", "–"],
    ]


def test_the_best_of_each_column_is_bold(comparison):
    table = accuracy_table(comparison)
    best = {
        (row[0].text, table.header[n]) for row in table.rows for n in range(6) if row[n].is_best
    }
    assert best == {("BiTTA", "fog"), ("TENT*", "snow"), ("BiTTA", "mean")}


def test_a_collapsed_row_is_marked_and_its_seeds_are_told(comparison):
    """Half of the source's 40 % is 20 %, which seed 1 just reaches."""
    table = accuracy_table(comparison)
    assert [row[3].mark for row in table.rows] == ["", " †", ""]
    assert table.notes[0].startswith("† COLLAPSED")
    assert table.notes[1] == "  TENT*: in fog, seed 0 of 2"


def test_rows_with_fewer_seeds_are_told(comparison):
    notes = " ".join(accuracy_table(comparison).notes)
    assert "Mean ± standard deviation over seeds 0, 1. Fewer seeds: Source: 0." in notes
    assert "With fewer than 6 pairs p cannot be below .05." in notes


def test_rows_may_have_different_numbers_of_pairs(comparison):
    """Two domains: TENT* shares two seeds with BiTTA, the source one."""
    assert "median difference over 2 to 4 pairs of domain" in accuracy_table(comparison).notes[-1]


def collapses(folder, *right, domains=("fog", "snow")):
    """What is said of a row with such counts, by seed, beside a source that has 8 everywhere."""
    runs = [made_run("source", "source", [8] * len(domains), domains=domains)]
    runs += [made_run("sar", "sar", n, seed=s, domains=domains) for s, n in enumerate(right)]
    [_, told] = compare(made_section(folder, runs)).collapse_notes
    return told.strip()


def test_few_domains_that_collapsed_are_told_with_their_seeds(tmp_path):
    assert collapses(tmp_path, [1, 8], [1, 1]) == "SAR*: in fog, all seeds; in snow, seed 1 of 2"


def test_many_domains_that_collapsed_are_counted_for_each_seed(tmp_path):
    """Seed 0 collapsed in b, c, d and e, seed 1 in a as well: four or five, never six."""
    right = [8, 1, 1, 1, 1, 8], [1, 1, 1, 1, 1, 8]
    assert collapses(tmp_path, *right, domains="abcdef") == (
        "SAR*: in 4 to 5 of 6 domains, depending on the seed (b, c, d, e, ...), all seeds"
    )


def test_since_when_a_row_gives_no_numbers_is_told(tmp_path):
    """Seed 1 is sure of something in its first batch, and of nothing that is a number after it."""
    source, well, lost = (
        made_run("source", "source", [8, 8]),
        made_run("sar", "sar", [8, 8], step={"confidence": 9.0}),
        made_run("sar", "sar", [8, 0], seed=1, step={"confidence": 9.0}),
    )
    steps = [lost.steps[0], replace(lost.steps[1], confidence=0.0)]
    runs = [source, well, replace(lost, steps=steps)]
    [_, told] = compare(made_section(tmp_path, runs)).collapse_notes
    assert told == "  SAR*: in snow, seed 1 of 2; outputs not finite from batch 2 on, seed 1 of 2"


def test_what_does_not_fit_is_left_out_and_told(comparison):
    wide = fit_accuracy_table(comparison, 200)
    assert wide.header[1:3] == ["fog", "snow"]
    assert "±" in wide.rows[1][1].text
    middle = fit_accuracy_table(comparison, 55)
    assert middle.rows[1][1].text == "15.0"
    assert any("Deviations of the domains" in note for note in middle.notes)
    narrow = fit_accuracy_table(comparison, 40)
    assert narrow.header == ["method", "mean", "vs BiTTA", "p"]
    assert any("Domains do not fit" in note for note in narrow.notes)


def test_long_names_are_cut_before_domains_are_left_out(tmp_path):
    domains = ("elastic_transform", "something_long")
    runs = [made_run(name, name, [4, 8], domains=domains) for name in ("source", "tent")]
    table = fit_accuracy_table(compare(made_section(tmp_path, runs)), 50)
    assert table.header[1:3] == ["elas", "someth"]
    assert any("Names of the domains" in note for note in table.notes)


def test_a_swept_setting_is_the_first_column(tmp_path):
    runs = [made_run(f"bitta-flip{flip}", "bitta", [4, 8], flip=flip) for flip in (0.0, 0.1)]
    table = accuracy_table(compare(made_section(tmp_path, runs)))
    assert table.header[:2] == ["flip", "method"]
    assert [row[:2] for row in texts(table)] == [["0", "BiTTA"], ["0.1", "BiTTA"]]
    assert table.n_text_columns == 2


def by_threshold(value, agreement="threshold"):
    return {"agreement": agreement, "threshold": value}


@pytest.fixture
def thresholds(tmp_path):
    """The best is one of the thresholds; the policy needs none."""
    runs = [
        made_run("t0.8", "bitta", [5, 5], n_queries=0, settings=by_threshold(0.8)),
        made_run("t0.85", "bitta", [9, 9], n_queries=0, settings=by_threshold(0.85)),
        made_run("p", "bitta", [4, 8], n_queries=0, settings=by_threshold(0.9, "policy")),
    ]
    return compare(made_section(tmp_path, runs))


def test_a_setting_without_effect_is_a_dash_and_no_value(thresholds):
    table = accuracy_table(thresholds)
    assert table.header[:3] == ["agreement", "threshold", "method"]
    assert [row[:2] for row in texts(table)] == [
        ["policy", "–"], ["threshold", "0.8"], ["threshold", "0.85"],
    ]  # fmt: skip
    lines = csv.DictReader(StringIO(csv_report([thresholds], ["accuracy"])))
    assert next(lines)["varied"] == "method.agreement=policy"


def test_a_long_name_is_cut_in_the_header_and_whole_in_the_note(thresholds):
    table = accuracy_table(thresholds)
    assert table.header[-2:] == ["vs BiTTA (…)", "p"]
    whole = "Versus BiTTA (no answers, agreement threshold, threshold 0.85): median"
    assert any(note.startswith(whole) for note in table.notes)


def test_beside_accuracy_has_a_column_for_what_was_measured(tmp_path):
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


def test_marks_do_not_move_digits_and_bold_is_for_terminals():
    assert TABLE.as_text(bold=False).splitlines() == [
        "method    a|b",
        "------  -----",
        "TENT*   1.5 †",
        "X        22",
    ]
    assert "\x1b" not in TABLE.as_text(bold=False)
    assert "\x1b[1m" in TABLE.as_text(bold=True).splitlines()[-1]


def test_markdown_has_stars_for_the_best_and_escapes_others():
    assert TABLE.as_markdown().splitlines() == [
        r"| method | a\|b |",
        "| --- | ---: |",
        r"| TENT\* | 1.5 † |",
        "| X | **22** |",
    ]


def test_a_report_says_its_protocol_before_any_number(comparison):
    for report in (
        text_report([comparison], ALL_MEASURES, WIDE),
        markdown_report([comparison], ALL_MEASURES),
    ):
        assert report.index("protocol: 20 samples") < report.index("code bbbbbbbb")
        assert report.index("code bbbbbbbb") < report.index("77.50 ± 10.61")
        assert "Other measures" in report
        assert report.endswith("\n")
    assert "**77.50 ± 10.61**" in markdown_report([comparison], ["accuracy"])


def test_the_page_about_reports_shows_what_the_command_prints():
    """And explains every column."""
    page = (ROOT / "docs" / "how-to" / "make-reports.md").read_text()
    [section] = read_sections([ROOT / "results" / "demo" / "corruptions"])
    comparison = compare(section)
    assert fit_accuracy_table(comparison, 80).as_text(bold=False) in page
    titles = [measure.title for measures in MEASURES.values() for measure in measures]
    columns = ["mean", "paper", "difference", "vs BiTTA", "p", *titles]
    assert all(f"`{title}`" in page for title in columns)


def test_several_sections_are_numbered_and_say_why(comparison):
    report = text_report([comparison, comparison], ["accuracy"], WIDE)
    assert report.startswith("Results of different protocols")
    assert "\n2. cifar10-c, continual, 2 domains of 10 samples\n" in report


def test_no_line_of_text_is_wider_than_the_terminal(comparison):
    text = text_report([comparison], ALL_MEASURES, Terminal(60, has_bold=False))
    assert max(map(len, text.splitlines())) <= 60
    assert "Questions and cost" in text


def test_csv_is_long_plain_and_precise(comparison):
    lines = list(csv.DictReader(StringIO(csv_report([comparison], ALL_MEASURES))))
    [fog] = [x for x in lines if (x["row"], x["domain"]) == ("tent-feedback", "fog")]
    assert float(fog["mean"]) == 15.0
    assert float(fog["deviation"]) == pytest.approx(50**0.5, rel=1e-15)
    assert (fog["n"], fog["seeds"], fog["collapsed"], fog["p"]) == ("2", "0 1", "0", "")
    [mean] = [x for x in lines if (x["row"], x["domain"]) == ("bitta", "mean")]
    assert float(mean["mean"]) == 77.5
    assert (mean["title"], mean["answers"], mean["collapsed"]) == ("BiTTA", "verdict", "")
    assert {x["measure"] for x in lines} >= {"accuracy", "ece", "ms"}
    assert {x["code"] for x in lines} == {"b" * 64}


def test_the_papers_memory_stands_beside_ours(tmp_path):
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
