"""Tests of the report as text, Markdown and CSV."""

import csv
from io import StringIO
from pathlib import Path

import pytest

from bitta.report.comparison import compare
from bitta.report.sections import read_sections
from bitta.report.tables import (
    MEASURES,
    fit_accuracy_table,
)
from bitta.report.text_report import (
    ALL_MEASURES,
    Terminal,
    csv_report,
    markdown_report,
    text_report,
)

ROOT = Path(__file__).parents[2]
WIDE = Terminal(1000, has_bold=False)


def test_report_states_the_protocol_before_any_number(comparison):
    for report in (
        text_report([comparison], ALL_MEASURES, WIDE),
        markdown_report([comparison], ALL_MEASURES),
    ):
        assert report.index("protocol: 20 samples") < report.index("code bbbbbbbb")
        assert report.index("code bbbbbbbb") < report.index("77.50 ± 10.61")
        assert "Other measures" in report
        assert report.endswith("\n")
    assert "**77.50 ± 10.61**" in markdown_report([comparison], ["accuracy"])


def test_docs_show_the_printed_table_and_explain_every_column():
    """The page has the table of the demo and the title of every column."""
    page = (ROOT / "docs" / "how-to" / "make-reports.md").read_text()
    [section] = read_sections([ROOT / "reproduction" / "results" / "demo" / "corruptions"])
    comparison = compare(section)
    assert fit_accuracy_table(comparison, 80).as_text(bold=False) in page
    titles = [measure.title for measures in MEASURES.values() for measure in measures]
    columns = ["mean", "paper", "difference", "vs BiTTA", "p", *titles]
    assert all(f"`{title}`" in page for title in columns)


def test_several_sections_are_numbered_and_explained(comparison):
    report = text_report([comparison, comparison], ["accuracy"], WIDE)
    assert report.startswith("Results of different protocols")
    assert "\n2. cifar10-c, continual, 2 domains of 10 samples\n" in report


def test_text_fits_the_width_of_the_terminal(comparison):
    text = text_report([comparison], ALL_MEASURES, Terminal(60, has_bold=False))
    assert max(map(len, text.splitlines())) <= 60
    assert "Questions and cost" in text


def test_csv_has_a_line_per_row_measure_and_domain_in_full_precision(comparison):
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
