"""Report as text for a terminal, as Markdown, and as CSV."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import wrap

from bitta.report.comparison import Comparison
from bitta.report.rows import Row
from bitta.report.sections import Section
from bitta.report.seed_statistics import Spread
from bitta.report.tables import (
    CALIBRATION_MEASURES,
    MEASURES,
    Table,
    accuracy_table,
    fit_accuracy_table,
    measures_table,
    paper_values_of,
)

ALL_MEASURES = ("accuracy", *MEASURES)
SECTIONS_NOTE = (
    "Results of different protocols, source weights or code are not comparable. Each has its own "
    "section."
)
"""Note above a report with several sections."""
_CSV_COLUMNS = (
    "section", "row", "title", "method", "answers", "varied", "seeds", "measure", "domain", "mean",
    "deviation", "n", "paper", "difference", "p", "collapsed", "protocol", "source_weights", "code",
)  # fmt: skip
_HASH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Terminal:
    """Width of a terminal in characters, and its support for bold text."""

    width: int
    has_bold: bool


def text_report(
    comparisons: Sequence[Comparison], measures: Sequence[str], terminal: Terminal
) -> str:
    """Return the sections as text. Tables have as many columns as fit."""
    parts = ["\n".join(_wrap([SECTIONS_NOTE], terminal))] if len(comparisons) > 1 else []
    for number, comparison in enumerate(comparisons, start=1):
        title = list(_wrap([_numbered_title(number, comparisons)], terminal))
        rule = "=" * max(map(len, title))
        conditions = _wrap(condition_lines(comparison.section), terminal)
        parts.append("\n".join([*title, rule, *conditions]))
        for heading, table in _tables(comparison, measures, terminal.width):
            notes = "\n".join(_wrap(table.notes, terminal))
            parts.append("\n".join(_wrap([heading], terminal)))
            parts.append(table.as_text(bold=terminal.has_bold))
            parts += [notes] if notes else []
    return "\n\n".join(parts) + "\n"


def markdown_report(comparisons: Sequence[Comparison], measures: Sequence[str]) -> str:
    """Return the sections as Markdown with complete tables."""
    parts = ["# Report", *([SECTIONS_NOTE] if len(comparisons) > 1 else [])]
    for number, comparison in enumerate(comparisons, start=1):
        parts.append(f"## {_numbered_title(number, comparisons)}")
        parts.append("\n".join(f"* {line}" for line in condition_lines(comparison.section)))
        for heading, table in _tables(comparison, measures, None):
            notes = "\n".join(map(_markdown_note, table.notes))
            parts += [f"### {heading}", table.as_markdown(), notes]
    return "\n\n".join(filter(None, parts)) + "\n"


def csv_report(comparisons: Sequence[Comparison], measures: Sequence[str]) -> str:
    """Return a line per row, measure and domain, in full precision."""
    text = StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for number, comparison in enumerate(comparisons, start=1):
        for row in comparison.section.rows:
            row_fields = _row_fields(number, comparison.section, row)
            for measure_fields in _measure_fields(comparison, row, measures):
                writer.writerow({**row_fields, **measure_fields})
    return text.getvalue()


def condition_lines(section: Section) -> list[str]:
    """Return protocol, model, code and machine, which all rows of a section share."""
    weights, code = (_short_hashes(section, key) for key in ("source_weights", "code"))
    bitta, torch, device = (
        ", ".join(section.environment_values(key)) for key in ("bitta", "torch", "device")
    )
    folders = ", ".join(str(folder) for folder in section.folders)
    seeds = ", ".join(map(str, section.seeds))
    return [
        f"protocol: {section.protocol}",
        f"model: {section.model} (weights {weights})",
        f"run by: bitta {bitta} (code {code}), torch {torch}, {device}",
        f"results: {folders}; {_counted(len(section.rows), 'row')}, "
        f"{_counted(len(section.seeds), 'seed')} ({seeds})",
    ]


def _short_hashes(section: Section, key: str) -> str:
    unknown = "not recorded, possibly several versions"
    return ", ".join(value[:_HASH_DIGITS] or unknown for value in section.environment_values(key))


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' if n > 1 else ''}"


def _numbered_title(number: int, comparisons: Sequence[Comparison]) -> str:
    title = comparisons[number - 1].section.title
    return f"{number}. {title}" if len(comparisons) > 1 else title


def _tables(
    comparison: Comparison, measures: Sequence[str], width: int | None
) -> Iterator[tuple[str, Table]]:
    """Yield headings and tables that fit into the width."""
    if "accuracy" in measures:
        heading = "Accuracy in percent, each sample judged before the model learns from it"
        if width is None:
            yield heading, accuracy_table(comparison)
        else:
            yield heading, fit_accuracy_table(comparison, width)
    if others := [name for name in measures if name != "accuracy"]:
        yield from _measures_tables(comparison, others, width)


def _measures_tables(
    comparison: Comparison, measures: Sequence[str], width: int | None
) -> Iterator[tuple[str, Table]]:
    """Yield one table, without deviations if it is too wide, or two tables if it still is."""
    for with_deviations in (True, False):
        table = measures_table(comparison, measures, with_deviations=with_deviations)
        if width is None or len(table.as_text(bold=False).splitlines()[1]) <= width:
            yield "Other measures", table
            return
    names_by_heading = {
        "Calibration": [name for name in measures if name in CALIBRATION_MEASURES],
        "Questions and cost": [name for name in measures if name not in CALIBRATION_MEASURES],
    }
    for heading, names in names_by_heading.items():
        if names:
            yield heading, measures_table(comparison, names, with_deviations=False)


def _wrap(lines: Sequence[str], terminal: Terminal) -> Iterator[str]:
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from wrap(line, terminal.width, subsequent_indent=indent, break_on_hyphens=False) or [
            ""
        ]


def _markdown_note(note: str) -> str:
    """Return a list item. An indented note becomes a sub-item of the previous note."""
    text = note.strip().replace("*", "\\*")
    return f"  * {text}" if note.startswith(" ") else f"* {text}"


def _row_fields(number: int, section: Section, row: Row) -> dict[str, object]:
    """Return the CSV fields that all lines of a row share."""
    settings = row.effective_settings
    return {
        "section": number,
        "row": row.name,
        "title": row.title,
        "method": row.method,
        "answers": row.answer_kind,
        "varied": " ".join(
            f"{key}={settings[key]}" for key in section.swept_settings if key in settings
        ),
        "seeds": _join_numbers(row.runs),
        "protocol": section.protocol,
        **{key: section.environment_values(key)[0] for key in ("source_weights", "code")},
    }


def _measure_fields(
    comparison: Comparison, row: Row, measures: Sequence[str]
) -> Iterator[Mapping[str, object]]:
    """Yield the CSV fields of each measure and domain."""
    if "accuracy" in measures:
        yield from _accuracy_fields(comparison, row)
    for measure in (measure for name in measures for measure in MEASURES.get(name, ())):
        if spread := row.spread_of(measure.value_of):
            paper = paper_values_of(measure, comparison).get(row.name)
            yield {"measure": measure.key, **_spread_fields(spread), **_paper_fields(spread, paper)}


def _accuracy_fields(comparison: Comparison, row: Row) -> Iterator[Mapping[str, object]]:
    match, test = comparison.paper_matches.get(row.name), comparison.tests.get(row.name)
    points = comparison.section.mixed_stream_points
    at_points = {name: row.accuracy_after(fraction) for name, fraction in points.items()}
    for domain, spread in {**row.accuracy_by_domain, **at_points}.items():
        collapsed = [seed for seed, domains in row.collapsed_domains.items() if domain in domains]
        yield {
            "measure": "accuracy",
            "domain": domain,
            **_spread_fields(spread),
            **_paper_fields(spread, match.value(domain) if match else None),
            "collapsed": _join_numbers(collapsed),
        }
    yield {
        "measure": "accuracy",
        "domain": "mean",
        **_spread_fields(row.accuracy),
        "paper": match.mean if match else None,
        "difference": comparison.difference_to_paper(row),
        "p": test.p if test else None,
        "collapsed": _join_numbers(row.collapsed_domains),
    }


def _spread_fields(spread: Spread) -> dict[str, object]:
    return {"mean": spread.mean, "deviation": spread.deviation, "n": spread.n_seeds}


def _paper_fields(spread: Spread, paper: float | None) -> dict[str, object]:
    return {} if paper is None else {"paper": paper, "difference": spread.mean - paper}


def _join_numbers(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))
