"""A report in words and tables: for a terminal, as Markdown, or as CSV."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from textwrap import wrap

from bitta.report.accuracy import accuracy_table, fitting_table
from bitta.report.beside import CALIBRATION, MEASURES, beside_table, printed_beside
from bitta.report.cells import Table, as_markdown, as_text
from bitta.report.comparison import Comparison
from bitta.report.row import Row, Spread
from bitta.report.rows import Section

ALL = ("accuracy", *MEASURES)
"""Every measure."""
APART = "Results of different protocols, source weights or code are never put in one table."
_COLUMNS = (
    "section", "row", "title", "method", "answers", "varied", "seeds", "measure", "domain", "mean",
    "deviation", "n", "paper", "difference", "p", "collapsed", "protocol", "source_weights", "code",
)  # fmt: skip
_SHOWN_HASH = 8


@dataclass(frozen=True, slots=True)
class Screen:
    """What a terminal can show."""

    width: int
    bold: bool


def text_report(comparisons: Sequence[Comparison], measures: Sequence[str], screen: Screen) -> str:
    """Sections one below another, each in as many columns as there is room for."""
    parts = [APART] if len(comparisons) > 1 else []
    for place, comparison in enumerate(comparisons, start=1):
        title = list(_wrapped([_numbered(place, comparisons, comparison.section)], screen))
        rule = "=" * max(map(len, title))
        told = _wrapped(circumstances(comparison.section), screen)
        parts.append("\n".join([*title, rule, *told]))
        for name, table in _tables(comparison, measures, screen.width):
            heading = "\n".join(_wrapped([name], screen))
            notes = "\n".join(_wrapped(table.notes, screen))
            parts += [heading, as_text(table, bold=screen.bold), *([notes] if notes else [])]
    return "\n\n".join(parts) + "\n"


def markdown_report(comparisons: Sequence[Comparison], measures: Sequence[str]) -> str:
    """The same with everything in it."""
    parts = ["# Report", *([APART] if len(comparisons) > 1 else [])]
    for place, comparison in enumerate(comparisons, start=1):
        parts.append(f"## {_numbered(place, comparisons, comparison.section)}")
        parts.append("\n".join(f"* {line}" for line in circumstances(comparison.section)))
        for name, table in _tables(comparison, measures, None):
            notes = "\n".join(_listed(note) for note in table.notes)
            parts += [f"### {name}", as_markdown(table), notes]
    return "\n\n".join(filter(None, parts)) + "\n"


def csv_report(comparisons: Sequence[Comparison], measures: Sequence[str]) -> str:
    """A line per row, measure and domain, in full precision."""
    text = StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for place, comparison in enumerate(comparisons, start=1):
        for row in comparison.section.rows:
            shared = _shared(place, comparison.section, row)
            for line in _lines(comparison, row, measures):
                writer.writerow({**shared, **line})
    return text.getvalue()


def circumstances(section: Section) -> list[str]:
    """The protocol, the model, the code, the machine: the same for all rows."""
    weights, code = (_hashes(section, key) for key in ("source_weights", "code"))
    told = {key: ", ".join(section.environment(key)) for key in ("bitta", "torch", "device")}
    folders = ", ".join(str(folder) for folder in section.folders)
    seeds = ", ".join(map(str, section.seeds))
    return [
        f"protocol: {section.protocol}",
        f"model: {section.model} (weights {weights})",
        f"run by: bitta {told['bitta']} (code {code}), torch {told['torch']}, {told['device']}",
        f"results: {folders}; {_counted(len(section.rows), 'row')}, "
        f"{_counted(len(section.seeds), 'seed')} ({seeds})",
    ]


def _hashes(section: Section, key: str) -> str:
    """Short; results of long ago do not know their code."""
    unknown = "not recorded, so maybe of several versions"
    return ", ".join(value[:_SHOWN_HASH] or unknown for value in section.environment(key))


def _counted(n: int, word: str) -> str:
    return f"{n} {word}{'s' if n > 1 else ''}"


def _tables(
    comparison: Comparison, measures: Sequence[str], width: int | None
) -> Iterator[tuple[str, Table]]:
    if "accuracy" in measures:
        yield (
            "Accuracy in percent, each sample judged before it is learned from",
            accuracy_table(comparison) if width is None else fitting_table(comparison, width),
        )
    if others := [name for name in measures if name != "accuracy"]:
        yield from _fitting_beside(comparison, others, width)


def _fitting_beside(
    comparison: Comparison, measures: Sequence[str], width: int | None
) -> Iterator[tuple[str, Table]]:
    """In one table, without deviations if it must be, or in two."""
    for deviations in (True, False):
        table = beside_table(comparison, measures, deviations=deviations)
        if width is None or len(as_text(table, bold=False).splitlines()[1]) <= width:
            yield "Beside accuracy", table
            return
    parts = {
        "Beside accuracy: calibration": [name for name in measures if name in CALIBRATION],
        "Beside accuracy: questions and cost": [n for n in measures if n not in CALIBRATION],
    }
    for title, part in parts.items():
        if part:
            yield title, beside_table(comparison, part, deviations=False)


def _numbered(place: int, comparisons: Sequence[Comparison], section: Section) -> str:
    return f"{place}. {section.title}" if len(comparisons) > 1 else section.title


def _wrapped(lines: Sequence[str], screen: Screen) -> Iterator[str]:
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        yield from wrap(line, screen.width, subsequent_indent=indent, break_on_hyphens=False) or [
            ""
        ]


def _listed(note: str) -> str:
    """Indented lines belong to the one before."""
    text = note.strip().replace("*", "\\*")
    return f"  * {text}" if note.startswith(" ") else f"* {text}"


def _shared(place: int, section: Section, row: Row) -> dict[str, object]:
    return {
        "section": place,
        "row": row.name,
        "title": row.title,
        "method": row.method,
        "answers": row.answers,
        "varied": " ".join(
            f"{key}={row.varying[key]}" for key in section.swept if key in row.varying
        ),
        "seeds": " ".join(map(str, row.runs)),
        "protocol": section.protocol,
        **{key: section.environment(key)[0] for key in ("source_weights", "code")},
    }


def _lines(
    comparison: Comparison, row: Row, measures: Sequence[str]
) -> Iterator[Mapping[str, object]]:
    if "accuracy" in measures:
        yield from _accuracy_lines(comparison, row)
    for measure in (measure for name in measures for measure in MEASURES.get(name, ())):
        if spread := row.spread(measure.of):
            paper = printed_beside(measure, comparison).get(row.name)
            apart = {} if paper is None else {"paper": paper, "difference": spread.mean - paper}
            yield {"measure": measure.key, **_spread(spread), **apart}


def _accuracy_lines(comparison: Comparison, row: Row) -> Iterator[Mapping[str, object]]:
    printed, test = comparison.printed.get(row.name), comparison.tests.get(row.name)
    points = comparison.section.points
    along = {name: row.after(part) for name, part in points.items()}
    for domain, spread in {**row.by_domain, **along}.items():
        paper = printed.value(domain) if printed else None
        yield {
            "measure": "accuracy",
            "domain": domain,
            **_spread(spread),
            "paper": paper,
            "difference": None if paper is None else spread.mean - paper,
            "collapsed": _seeds(seed for seed, of in row.collapsed.items() if domain in of),
        }
    yield {
        "measure": "accuracy",
        "domain": "mean",
        **_spread(row.accuracy),
        "paper": printed.mean if printed else None,
        "difference": comparison.difference(row),
        "p": test.p if test else None,
        "collapsed": _seeds(row.collapsed),
    }


def _spread(spread: Spread) -> dict[str, object]:
    return {"mean": spread.mean, "deviation": spread.deviation, "n": spread.n}


def _seeds(seeds: Iterator[int] | Mapping[int, object]) -> str:
    """Those that collapsed; empty for none."""
    return " ".join(map(str, seeds))
