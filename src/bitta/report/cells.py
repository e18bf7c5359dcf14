"""A table before it is text, Markdown or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from bitta.report.tables import text_table

NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place."""

    text: str
    best: bool = False
    """To be shown bold."""
    mark: str = ""
    """Behind the text, where it does not move the digits."""


@dataclass(frozen=True, slots=True)
class Table:
    """A header, rows, and what has to be said below."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: int
    """How many columns hold words."""
    notes: Sequence[str] = ()


def number(value: float | None, form: str) -> str:
    """A number, or a dash.

    >>> number(1.25, "+.1f"), number(None, ".1f")
    ('+1.2', '–')
    """
    return NOTHING if value is None else f"{value:{form}}"


def best_cells(values: Sequence[float | None], *, lowest: bool = False) -> set[int]:
    """Places of the best value, several if they are equal; none where there is no other."""
    there = [value for value in values if value is not None]
    if len(there) < 2:
        return set()
    best = min(there) if lowest else max(there)
    return {place for place, value in enumerate(values) if value == best}


def as_text(table: Table, *, bold: bool) -> str:
    """Aligned columns for a terminal; `bold` allows its escape codes."""
    marks = [max(len(row[column].mark) for row in table.rows) for column in _columns(table)]
    rows = [list(table.header)]
    rows += [
        [cell.text + cell.mark.ljust(mark) for cell, mark in zip(row, marks, strict=True)]
        for row in table.rows
    ]
    best = {
        (place, column)
        for place, row in enumerate(table.rows, start=1)
        for column, cell in enumerate(row)
        if bold and cell.best
    }
    return text_table(rows, left=table.left, bold=best)


def as_markdown(table: Table) -> str:
    """A table of GitHub's kind, the best in bold."""
    rule = ["---" if column < table.left else "---:" for column in _columns(table)]
    rows = [[_escaped(_marked(cell)) for cell in row] for row in table.rows]
    lines = [[_escaped(word) for word in table.header], rule, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _columns(table: Table) -> range:
    return range(len(table.header))


def _marked(cell: Cell) -> str:
    return (f"**{cell.text}**" if cell.best else cell.text) + cell.mark


def _escaped(text: str) -> str:
    """A star that is no emphasis: TENT*."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("\\*\\*", "**")
