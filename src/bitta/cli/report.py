"""bitta report: make tables, plots and a web page from results."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bitta.errors import InputError, unknown_name_error
from bitta.report.comparison import Comparison, check_rows, compare
from bitta.report.html_report import report_page
from bitta.report.paper_numbers import NO_PAPER, read_paper_tables
from bitta.report.plots import section_plots
from bitta.report.sections import Section, read_sections
from bitta.report.text_report import (
    ALL_MEASURES,
    Terminal,
    csv_report,
    markdown_report,
    text_report,
)
from bitta.statefile import check_writable, write_atomically

_EPILOG = """\
examples:
  bitta report reproduction/results/main-cifar10-c --paper reproduction/paper
  bitta report bitta-runs/a bitta-runs/b --measure all --format markdown > report.md
  bitta report reproduction/results/cifar10-c --rows 'source,tent*,bitta' --against tent-feedback
  bitta report bitta-runs --out report       report.md, report.csv, report.html, plots

docs/how-to/make-reports.md explains what the columns mean.
"""
_UNLIMITED_WIDTH = 100_000
"""Columns to print if the output is not a terminal."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="folders with the results of bitta run and bitta sweep",
    )
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "csv"),
        default="text",
        help="format of the printed report (default: text)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="write report.md, report.csv, report.html and plots there"
    )
    parser.add_argument("--html", action="store_true", help="with --out: write report.html only")
    parser.add_argument(
        "--paper",
        metavar="DIR",
        help="show the numbers of a paper: a folder with its tables (in a checkout: "
        "reproduction/paper), or one table to compare with results in any folder",
    )
    parser.add_argument(
        "--against",
        metavar="ROW",
        help="test the other rows against this row (default: bitta, else the best)",
    )
    parser.add_argument(
        "--rows", metavar="A,B", help="show only these rows, by name or pattern, as in 'tent*'"
    )
    parser.add_argument(
        "--measure",
        metavar="A,B",
        help=f"{', '.join(ALL_MEASURES)} or all (default: accuracy if printed, all in files)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Read the results, then print the report or write its files."""
    if arguments.html and arguments.out is None:
        raise InputError("--html writes a file; give its folder with --out DIR.")
    measures = _parse_measures(arguments.measure, ALL_MEASURES if arguments.out else ("accuracy",))
    sections = _select_rows(read_sections([Path(f) for f in arguments.folders]), arguments.rows)
    if arguments.against is not None:
        check_rows(sections, [arguments.against])
    paper = NO_PAPER if arguments.paper is None else read_paper_tables(Path(arguments.paper))
    comparisons = [compare(section, paper=paper, against=arguments.against) for section in sections]
    if arguments.out is not None:
        _write_files(comparisons, measures, Path(arguments.out), is_page_only=arguments.html)
        return 0
    match arguments.format:
        case "markdown":
            print(markdown_report(comparisons, measures), end="")
        case "csv":
            print(csv_report(comparisons, measures), end="")
        case _:
            print(text_report(comparisons, measures, _terminal()), end="")
            if measures == ("accuracy",):
                print("\n--measure all adds calibration, questions, time and memory.")
    return 0


def _parse_measures(text: str | None, default: Sequence[str]) -> tuple[str, ...]:
    names = default if text is None else _parse_names(text)
    for name in names:
        if name not in (*ALL_MEASURES, "all"):
            raise unknown_name_error("measure", name, (*ALL_MEASURES, "all"))
    return ALL_MEASURES if "all" in names else tuple(name for name in ALL_MEASURES if name in names)


def _select_rows(sections: Sequence[Section], text: str | None) -> list[Section]:
    """Keep the rows that match these names or patterns. Drop sections without rows."""
    if text is None:
        return list(sections)
    names = _parse_names(text)
    check_rows(sections, names)
    selected = [section.with_rows(names) for section in sections]
    return [section for section in selected if section.rows]


def _parse_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{text!r} has no names; give names, separated by commas.")
    return names


def _terminal() -> Terminal:
    """Return the width of the output and its support for bold text. A file has unlimited width."""
    width = shutil.get_terminal_size((_UNLIMITED_WIDTH, 0)).columns
    return Terminal(width, has_bold=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _write_files(
    comparisons: Sequence[Comparison],
    measures: Sequence[str],
    folder: Path,
    *,
    is_page_only: bool,
) -> None:
    """Write the report in all formats, or the page only.

    Without matplotlib there are neither page nor plots. That is an error if only the page is asked
    for.
    """
    check_writable(folder)
    if is_page_only:
        _write_page(comparisons, folder)
        return
    _write_text(folder / "report.md", markdown_report(comparisons, measures))
    _write_text(folder / "report.csv", csv_report(comparisons, measures))
    try:
        _write_page(comparisons, folder)
        _write_plots(comparisons, folder)
    except InputError as error:
        print(f"no plots: {error}")


def _write_page(comparisons: Sequence[Comparison], folder: Path) -> None:
    _write_text(folder / "report.html", report_page(comparisons, title="bitta report"))


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    print(f"{path.suffix[1:] + ':':<6} {path}")


def _write_plots(comparisons: Sequence[Comparison], folder: Path) -> None:
    """Write each plot as a PNG file. Several sections have numbered file names."""
    for number, comparison in enumerate(comparisons, start=1):
        prefix = "" if len(comparisons) == 1 else f"{number}-"
        for plot in section_plots(comparison.section):
            path = folder / f"{prefix}{plot.name}.png"
            plot.figure.savefig(path, dpi=130)
            print(f"plot:  {path}")
