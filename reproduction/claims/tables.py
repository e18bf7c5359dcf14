"""Tables of the paper, row by row beside ours."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from bitta.errors import unknown_name_error
from bitta.report.collapse import behind
from bitta.report.names import defaults_of, plain
from bitta.report.reference_numbers import (
    DATASET_OF_COST,
    PaperRow,
    PaperTable,
    is_shorter,
    match_rows,
    read_paper_tables,
)
from bitta.report.row import POINTS, Row, Spread
from bitta.report.rows import Section
from reproduction.claims.results import STAND_INS, Results
from reproduction.paths import PAPER_TABLES

_MEANS = ("mean", "mixed-100")
_KINDS: Mapping[str, tuple[str, ...]] = {
    unit: tuple(dict.fromkeys((kind, "cifar10-c"))) for unit, kind in DATASET_OF_COST.items()
}
"""Sets on which time and memory are measured; the paper's is the first."""

Slot = tuple[str, str]
"""Name of a row, as it is printed, and column."""


@dataclass(frozen=True)
class Measured:
    """A table of the paper and what we have of it."""

    table: PaperTable
    fair: Mapping[Slot, Row] = field(default_factory=dict)
    handicapped: Mapping[Slot, Row] = field(default_factory=dict)
    """As the published code runs them."""
    shorter: bool = False
    """Whether our streams are shorter than the paper's."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Means over a stream, each of which has an order of its own."""
        if self.table.unit != "%":
            return _KINDS[self.table.unit]
        means = tuple(column for column in self.table.columns if column in _MEANS)
        return means or self.table.columns

    @property
    def shown(self) -> tuple[str, ...]:
        """These, and the points along a mixed stream, which is judged at its end."""
        if self.table.unit != "%":
            return self.columns
        wanted = {*self.columns, *(name for name in self.table.columns if name in POINTS)}
        return tuple(column for column in self.table.columns if column in wanted)

    @property
    def domains(self) -> tuple[str, ...]:
        """Of the stream that the first mean is over; none where it has no columns for them."""
        columns = self.table.columns
        return columns[: columns.index("mean")] if "mean" in columns else ()

    @property
    def bitta(self) -> str:
        """What BiTTA's row is called, as it is usually run."""
        return self.table.row("bitta", "verdict").name

    def printed(self, row: PaperRow, column: str) -> float | None:
        """The paper's number, where it has that column."""
        if self.table.unit != "%":
            return row.values[0] if column == self.columns[0] else None
        return row.values[self.table.columns.index(column)]

    def spread(self, row: Row, column: str = "") -> Spread:
        """Our number, in the table's unit; each domain counts once, as in the paper."""
        if column in POINTS:
            return row.after(POINTS[column])
        if self.table.unit == "s":
            return Spread.of([run.median_seconds for run in row.runs.values()])
        if self.table.unit == "MB":
            return Spread.of([run.peak_memory / 1e6 for run in row.runs.values()])
        return row.domain_mean

    def found(self, printed: PaperRow, column: str, *, handicaps: bool = False) -> Row | None:
        """Our row for one of the paper's; a mixed stream has one for all its points."""
        slot = printed.name, "mixed-100" if column in POINTS else column
        return (self.handicapped if handicaps else self.fair).get(slot)

    def ours(self, column: str, *, handicaps: bool = False) -> dict[str, Row]:
        """Rows of a column, as far as they were run; without answers there are no handicaps."""
        found = {}
        for printed in self.table.rows:
            handicapped = handicaps and printed.feedback != "none"
            row = self.found(printed, column, handicaps=handicapped)
            if row is not None:
                found[printed.name] = row
        return found


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """Return all tables of the paper by id, in the paper's order."""
    return {table.id: table for table in read_paper_tables(PAPER_TABLES).tables}


def paper_table(table_id: str) -> PaperTable:
    """Return one table by its label in the LaTeX source.

    >>> paper_table("tab:tinyimagenetc/cifar10-c").value("bitta", "verdict", "mean")
    87.2
    """
    if table_id not in paper_tables():
        raise unknown_name_error("table of the paper", table_id, paper_tables())
    return paper_tables()[table_id]


def measured(table: PaperTable, results: Results) -> Measured:
    """Find our rows; where several fit, the one with the fewest unusual settings."""
    fair: dict[Slot, list[Row]] = {}
    handicapped: dict[Slot, list[Row]] = {}
    shorter = False
    for section in _sections(table, results):
        if table.unit == "MB" and not section.has_memory:
            continue
        # Time and memory have one column, which is then that of the set.
        kind = section.rows[0].settings["stream"]["kind"]
        asked = table if table.unit == "%" else replace(table, columns=(kind,))
        found = match_rows(section, [asked])
        for row in section.rows:
            if row.name in found:
                slot = found[row.name].row.name, found[row.name].column
                slots = handicapped if "reference" in row.apart else fair
                slots.setdefault(slot, []).append(row)
                shorter |= is_shorter(section)
    usual = _usual(fair)
    sources = {column: row for (_, column), row in usual.items() if row.method == "source"}
    marked = partial(_marked, sources=sources, results=results)
    return Measured(table, marked(usual), marked(_usual(handicapped)), shorter)


def _sections(table: PaperTable, results: Results) -> Iterator[Section]:
    """Own folders first, then those that stand in."""
    for folder in table.experiments:
        yield from results.own_sections(folder)
    for other in dict.fromkeys(STAND_INS[f] for f in table.experiments if f in STAND_INS):
        yield from results.own_sections(other)


def _usual(slots: Mapping[Slot, list[Row]]) -> dict[Slot, Row]:
    return {slot: min(rows, key=_n_unusual) for slot, rows in slots.items()}


def _marked(
    slots: Mapping[Slot, Row], sources: Mapping[str, Row], results: Results
) -> dict[Slot, Row]:
    """Collapsed or not beside the source model of the same column, in whatever folder it lies."""
    marked = {}
    for slot, row in slots.items():
        source = sources.get(slot[1]) or results.source_of(row)
        marked[slot] = replace(row, collapsed=behind(row, source)) if source else row
    return marked


def _n_unusual(row: Row) -> int:
    usual, own = defaults_of(row.method), row.settings["method"]
    return sum(key in own and plain(usual[key]) != own[key] for key in usual)
