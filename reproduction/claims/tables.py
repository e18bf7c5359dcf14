"""The paper's tables, and our rows for each of their rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

from bitta.errors import unknown_name_error
from bitta.report.paper_numbers import (
    PaperRow,
    PaperTable,
    has_other_length,
    match_rows,
    read_paper_tables,
)
from bitta.report.rows import MIXED_STREAM_POINTS, Row, as_json, default_settings
from bitta.report.sections import Section, find_collapsed_domains
from bitta.report.seed_statistics import Spread
from reproduction.claims.results import SUBSTITUTE_FOLDERS, ResultFolders
from reproduction.paths import PAPER_TABLES

_MEAN_COLUMNS = ("mean", "mixed-100")
CellKey = tuple[str, str]
"""The printed name of a row, and a column."""


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


@dataclass(frozen=True)
class TableComparison:
    """A table of the paper and our rows for it."""

    table: PaperTable
    fair: Mapping[CellKey, Row] = field(default_factory=dict)
    """Rows whose methods have BiTTA's budget, memories and selection."""
    handicapped: Mapping[CellKey, Row] = field(default_factory=dict)
    """Rows with the handicaps of the published code (preset "reference")."""
    has_other_lengths: bool = False
    """True if our streams are shorter than the paper's."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns with a mean over a stream. Claims about order are checked in each of them."""
        if self.table.unit != "%":
            # We also measure time and memory on CIFAR-10-C. The paper's dataset comes first.
            return tuple(dict.fromkeys((*self.table.datasets, "cifar10-c")))
        means = tuple(column for column in self.table.columns if column in _MEAN_COLUMNS)
        return means or self.table.columns

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """The columns above, and the points along a mixed stream."""
        if self.table.unit != "%":
            return self.columns
        wanted = {
            *self.columns,
            *(name for name in self.table.columns if name in MIXED_STREAM_POINTS),
        }
        return tuple(column for column in self.table.columns if column in wanted)

    @property
    def domains(self) -> tuple[str, ...]:
        """The columns of single domains; empty if the table has none."""
        columns = self.table.columns
        return columns[: columns.index("mean")] if "mean" in columns else ()

    @property
    def bitta(self) -> str:
        """The printed name of BiTTA's usual row."""
        return self.table.row("bitta", "verdict").name

    def paper_value(self, row: PaperRow, column: str) -> float | None:
        """Return the paper's number, or None if its table has no such column."""
        if self.table.unit != "%":
            return row.values[0] if column == self.columns[0] else None
        return row.values[self.table.columns.index(column)]

    def our_value(self, row: Row, column: str = "") -> Spread:
        """Return our number in the table's unit. Each domain counts once, as in the paper."""
        if column in MIXED_STREAM_POINTS:
            return row.accuracy_after(MIXED_STREAM_POINTS[column])
        if self.table.unit == "s":
            return Spread.from_values([run.median_seconds for run in row.runs.values()])
        if self.table.unit == "MB":
            return Spread.from_values([run.peak_memory / 1e6 for run in row.runs.values()])
        return row.domain_mean

    def our_row(
        self, paper_row: PaperRow, column: str, *, with_handicaps: bool = False
    ) -> Row | None:
        """Return our row for one of the paper's. A mixed stream has one row for all points."""
        key = paper_row.name, "mixed-100" if column in MIXED_STREAM_POINTS else column
        return (self.handicapped if with_handicaps else self.fair).get(key)

    def our_rows(self, column: str, *, with_handicaps: bool = False) -> dict[str, Row]:
        """Return our rows of a column by printed name, as far as they were run.

        Methods without answers have no handicaps. They keep their fair rows.
        """
        found = {}
        for paper_row in self.table.rows:
            is_handicapped = with_handicaps and paper_row.feedback != "none"
            row = self.our_row(paper_row, column, with_handicaps=is_handicapped)
            if row is not None:
                found[paper_row.name] = row
        return found


def compare_table(table: PaperTable, results: ResultFolders) -> TableComparison:
    """Find our rows. If several fit, take the one with the fewest changed settings."""
    fair: dict[CellKey, list[Row]] = {}
    handicapped: dict[CellKey, list[Row]] = {}
    has_other_lengths = False
    for section in _sections(table, results):
        if table.unit == "MB" and not section.has_gpu_memory:
            continue
        # Tables of time and memory have one column. It stands for the dataset of the section.
        kind = section.rows[0].settings["stream"]["kind"]
        wanted = table if table.unit == "%" else replace(table, columns=(kind,))
        matches = match_rows(section, [wanted])
        for row in section.rows:
            if row.name in matches:
                key = matches[row.name].row.name, matches[row.name].column
                rows = handicapped if "reference" in row.qualifiers else fair
                rows.setdefault(key, []).append(row)
                has_other_lengths |= has_other_length(section, paper_tables().values())
    usual = _most_usual(fair)
    sources = {column: row for (_, column), row in usual.items() if row.method == "source"}
    marked = partial(_with_collapse_marks, sources=sources, results=results)
    return TableComparison(
        table, marked(usual), marked(_most_usual(handicapped)), has_other_lengths
    )


def _sections(table: PaperTable, results: ResultFolders) -> Iterator[Section]:
    """Yield the sections of the table's own folders, then those of their substitutes."""
    for folder in table.experiments:
        yield from results.own_sections(folder)
    substitutes = [SUBSTITUTE_FOLDERS[f] for f in table.experiments if f in SUBSTITUTE_FOLDERS]
    for folder in dict.fromkeys(substitutes):
        yield from results.own_sections(folder)


def _most_usual(candidates: Mapping[CellKey, list[Row]]) -> dict[CellKey, Row]:
    return {key: min(rows, key=_n_unusual_settings) for key, rows in candidates.items()}


def _n_unusual_settings(row: Row) -> int:
    defaults, own = default_settings(row.method), row.settings["method"]
    return sum(key in own and as_json(defaults[key]) != own[key] for key in defaults)


def _with_collapse_marks(
    rows: Mapping[CellKey, Row], sources: Mapping[str, Row], results: ResultFolders
) -> dict[CellKey, Row]:
    """Mark collapsed rows by the source model of the same column, or else of any folder."""
    marked = {}
    for key, row in rows.items():
        source = sources.get(key[1]) or results.source_row(row)
        marked[key] = (
            replace(row, collapsed_domains=find_collapsed_domains(row, source)) if source else row
        )
    return marked
