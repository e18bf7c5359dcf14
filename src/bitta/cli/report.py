"""bitta report: make tables, plots and a page from results."""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bitta.errors import InputError, unknown_name_error
from bitta.report.comparison import Comparison, check_rows, compare
from bitta.report.document import ALL_MEASURES, Terminal, csv_report, markdown_report, text_report
from bitta.report.page import report_page
from bitta.report.plots import section_plots
from bitta.report.reference_numbers import NO_PAPER, read_paper_tables
from bitta.report.sections import Section, read_sections
from bitta.statefile import check_writable, write_atomically

_EPILOG = """\
examples:
  bitta report results/main-cifar10-c --paper reproduction/paper
  bitta report results/a results/b --measure all --format markdown > report.md
  bitta report results/cifar10-c --rows 'source,tent*,bitta' --against tent-feedback
  bitta report results/main-cifar10-c --out report      report.md, report.csv, report.html, plots

docs/how-to/make-reports.md explains what the columns mean.
"""
_NO_LIMIT = 100_000
"""Columns of a file."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="results of bitta run and bitta sweep"
    )
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "csv"),
        default="text",
        help="of what is printed (default: text)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="write report.md, report.csv, report.html and plots there"
    )
    parser.add_argument(
        "--html", action="store_true", help="with --out: write report.html and nothing else"
    )
    parser.add_argument(
        "--paper",
        metavar="DIR",
        help="folder with the tables of a paper (in a checkout: reproduction/paper), shown beside "
        "results in folders of the same experiments; or one table, for results in any folder",
    )
    parser.add_argument(
        "--against", metavar="ROW", help="row to test the others against (default: bitta, or best)"
    )
    parser.add_argument(
        "--rows", metavar="A,B", help="only these rows, by name or pattern, as in 'tent*'"
    )
    parser.add_argument(
        "--measure",
        metavar="A,B",
        help=f"{', '.join(ALL_MEASURES)} or all (default: accuracy when printed, all in files)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Read, compare, print or write."""
    if arguments.html and arguments.out is None:
        raise InputError("--html writes a file; say where with --out DIR.")
    measures = _measures(arguments.measure, ALL_MEASURES if arguments.out else ("accuracy",))
    sections = _chosen(read_sections([Path(f) for f in arguments.folders]), arguments.rows)
    if arguments.against is not None:
        check_rows(sections, [arguments.against])
    paper = NO_PAPER if arguments.paper is None else read_paper_tables(Path(arguments.paper))
    compared = [compare(section, paper=paper, against=arguments.against) for section in sections]
    if arguments.out is not None:
        _write(compared, measures, Path(arguments.out), html_alone=arguments.html)
        return 0
    match arguments.format:
        case "markdown":
            print(markdown_report(compared, measures), end="")
        case "csv":
            print(csv_report(compared, measures), end="")
        case _:
            print(text_report(compared, measures, _terminal()), end="")
            if measures == ("accuracy",):
                print("\n--measure all adds calibration, questions, time and memory.")
    return 0


def _measures(given: str | None, default: Sequence[str]) -> tuple[str, ...]:
    names = default if given is None else _split(given)
    for name in names:
        if name not in (*ALL_MEASURES, "all"):
            raise unknown_name_error("measure", name, (*ALL_MEASURES, "all"))
    return ALL_MEASURES if "all" in names else tuple(name for name in ALL_MEASURES if name in names)


def _chosen(sections: Sequence[Section], rows: str | None) -> list[Section]:
    if rows is None:
        return list(sections)
    names = _split(rows)
    check_rows(sections, names)
    chosen = [section.with_rows(names) for section in sections]
    return [section for section in chosen if section.rows]


def _split(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{text!r} names nothing; give names, separated by commas.")
    return names


def _terminal() -> Terminal:
    """The terminal; a file has room for everything."""
    width = shutil.get_terminal_size((_NO_LIMIT, 0)).columns
    return Terminal(width, has_bold=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _write(
    compared: Sequence[Comparison], measures: Sequence[str], out: Path, *, html_alone: bool
) -> None:
    check_writable(out)
    if not html_alone:
        texts: dict[str, Callable[[Sequence[Comparison], Sequence[str]], str]] = {
            "report.md": markdown_report,
            "report.csv": csv_report,
        }
        for name, report in texts.items():
            write_atomically(out / name, report(compared, measures).encode())
            print(f"{name.rpartition('.')[2] + ':':<6} {out / name}")
    try:
        _draw(compared, out, html_alone=html_alone)
    except InputError as error:
        if html_alone:
            raise
        print(f"no plots: {error}")


def _draw(compared: Sequence[Comparison], out: Path, *, html_alone: bool) -> None:
    write_atomically(out / "report.html", report_page(compared, title="bitta report").encode())
    print(f"html:  {out / 'report.html'}")
    for place, comparison in enumerate([] if html_alone else compared, start=1):
        for plot in section_plots(comparison.section):
            path = out / (f"{plot.name}.png" if len(compared) == 1 else f"{place}-{plot.name}.png")
            plot.figure.savefig(path, dpi=130)
            print(f"plot:  {path}")
