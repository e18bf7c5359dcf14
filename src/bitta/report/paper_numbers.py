"""The numbers of a paper: read its tables from TOML files, and match our rows to its rows."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.report.rows import DEFAULT_FEEDBACK, AnswerKind, Row, default_settings
from bitta.report.sections import Section

_ALWAYS_DEFAULT = ("policy", "mecta")
"""Settings that must have their default in a row without `settings`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRow:
    """One method in a table of the paper."""

    label: str
    """F: full labels, B: binary answers, E: fine-tuned before the stream, -: none of these."""
    name: str
    """The method as the paper prints it."""
    method: str
    """The method's name in bitta."""
    feedback: AnswerKind
    """The kind of answers that the method learns from."""
    values: tuple[float, ...]
    """One number per column."""
    deviations: tuple[float, ...] = ()
    """Standard deviations, if the paper prints them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method that the paper changed, by their name in bitta."""
    recomputed: float | None = None
    """The mean of the values, if the paper prints another mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperTable:
    """A table of the paper, with a row per method and a column per measurement."""

    id: str
    """The label in the LaTeX source; after a slash, the part of the table."""
    title: str
    """The table's number in the paper: "Table 1a"."""
    caption: str
    """A description in our words."""
    unit: str
    decimals: int
    """Number of printed decimals."""
    columns: tuple[str, ...]
    """The names of the columns in bitta: domains, kinds of stream, and the mean."""
    headings: tuple[str, ...]
    """The names of the columns as the paper prints them."""
    rows: tuple[PaperRow, ...]
    experiments: tuple[str, ...]
    """Folders of experiments that measure the same."""
    datasets: Mapping[str, int]
    """Kinds of stream, with the number of samples in each domain; 0 if that varies."""
    transposed: bool = False
    """True if the paper prints a column per method."""

    def row(self, method: str, feedback: AnswerKind, **settings: Any) -> PaperRow:
        """Return the row of a method with these settings that learns from this kind of answers."""
        for row in self.rows:
            if (row.method, row.feedback, row.settings) == (method, feedback, settings):
                return row
        known = [_describe(row.method, row.feedback, row.settings) for row in self.rows]
        wanted = _describe(method, feedback, settings)
        raise SettingError(f"{self.id} has no row {wanted!r}; its rows: {', '.join(known)}.")

    def value(self, method: str, feedback: AnswerKind, column: str, **settings: Any) -> float:
        """Return one number in the table's unit."""
        return self.row(method, feedback, **settings).values[self._index(column)]

    def deviation(
        self, method: str, feedback: AnswerKind, column: str, **settings: Any
    ) -> float | None:
        """Return the standard deviation over seeds, or None if it is not printed."""
        deviations = self.row(method, feedback, **settings).deviations
        return deviations[self._index(column)] if deviations else None

    def _index(self, column: str) -> int:
        if column not in self.columns:
            raise unknown_name_error("column", column, self.columns, of=self.id)
        return self.columns.index(column)


@dataclass(frozen=True, slots=True)
class PaperTables:
    """The paper's tables that a report may show beside our results."""

    tables: tuple[PaperTable, ...] = ()
    is_single: bool = False
    """True if the user named one table. It then applies to results in any folder."""


NO_PAPER = PaperTables()


@dataclass(frozen=True, slots=True)
class PaperMatch:
    """A row of the paper that measures the same as one of our rows."""

    table: PaperTable
    row: PaperRow
    column: str
    """The column with the mean over the stream."""

    @property
    def mean(self) -> float:
        """The printed mean, in the table's unit."""
        return self.row.values[self.table.columns.index(self.column)]

    def value(self, domain: str) -> float | None:
        """Return the number of a domain or of a point of a mixed stream, if the table has it."""
        mean_column = "mixed-100" if domain.startswith("mixed-") else "mean"
        if domain not in self.table.columns or self.column != mean_column:
            return None
        return self.row.values[self.table.columns.index(domain)]


def read_paper_tables(path: Path) -> PaperTables:
    """Read a folder of TOML tables, or one TOML file. Sort the tables as in the paper."""
    if path.is_file():
        table = _read_table(path)
        if table.unit != "%":
            raise InputError(
                f"the table {str(path)!r} is in {table.unit}; give a table of accuracies in %, or "
                "the folder that holds all tables."
            )
        return PaperTables((table,), is_single=True)
    if not path.is_dir():
        raise InputError(
            f"there is no folder {str(path)!r} with tables of a paper; a checkout of bitta has "
            "them in reproduction/paper."
        )
    tables = [_read_table(file) for file in sorted(path.glob("*.toml"))]
    if not tables:
        raise InputError(
            f"{str(path)!r} holds no table of a paper (*.toml); a checkout of bitta has them in "
            "reproduction/paper."
        )
    return PaperTables(tuple(sorted(tables, key=_table_number)))


def tables_for(section: Section, paper: PaperTables) -> list[PaperTable]:
    """Return the tables of accuracy that belong to these results.

    A folder main-cifar10-c belongs to the tables that name the experiments main-cifar10-c.
    The folder cifar10-c, which has more methods, belongs to the same tables.
    """
    if paper.is_single:
        return list(paper.tables)
    folders = {folder.resolve().name for folder in section.folders}
    folders |= {f"main-{name}" for name in folders}
    return [
        table
        for table in paper.tables
        if table.unit == "%" and folders & set(table.experiments) and _mean_column(section, table)
    ]


def match_rows(section: Section, tables: Sequence[PaperTable]) -> dict[str, PaperMatch]:
    """Return the first fitting row of the paper for each of our rows, by the name of our row."""
    found: dict[str, PaperMatch] = {}
    for table in tables:
        column = _mean_column(section, table)
        for row in section.rows:
            fitting = [paper_row for paper_row in table.rows if _fits(row, paper_row, table)]
            if column and fitting:
                found.setdefault(row.name, PaperMatch(table, fitting[0], column))
    return found


def match_costs(section: Section, paper: PaperTables, unit: str) -> dict[str, PaperMatch]:
    """Return the paper's seconds or megabytes on the same dataset, by the name of our row."""
    folders = {folder.resolve().name for folder in section.folders}
    kind = section.rows[0].settings["stream"]["kind"]
    if unit == "MB" and not section.has_gpu_memory:
        return {}
    tables = [
        replace(table, columns=(kind,))
        for table in paper.tables
        if table.unit == unit and folders & set(table.experiments) and kind in table.datasets
    ]
    return match_rows(section, tables)


def has_other_length(section: Section, tables: Iterable[PaperTable]) -> bool:
    """Return True if the domains have another number of samples than in one of the tables."""
    sizes = set(section.domain_sizes.values())
    return any(sizes != {n} for n in paper_sizes(section, tables))


def paper_sizes(section: Section, tables: Iterable[PaperTable]) -> set[int]:
    """Return the numbers of samples that the tables have in each domain of this kind of stream."""
    kind = section.rows[0].settings["stream"]["kind"]
    return {table.datasets.get(kind, 0) for table in tables} - {0}


def _read_table(file: Path) -> PaperTable:
    try:
        fields = tomllib.loads(file.read_text(encoding="utf-8"))
        rows = tuple(PaperRow(**_with_tuples(row)) for row in fields.pop("rows"))
        return PaperTable(**_with_tuples(fields), rows=rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{str(file)!r} is not a table of a paper ({error}); "
            "it needs the fields of those in reproduction/paper."
        ) from error


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}


def _table_number(table: PaperTable) -> tuple[int, str]:
    """Return (12, "b") for Table 12b."""
    number, part = re.findall(r"(\d*)(\D*)$", table.title)[0]
    return int(number or 0), part


def _mean_column(section: Section, table: PaperTable) -> str:
    """Return the column with the mean over the section's stream; empty if the table has none."""
    kind, domains = section.rows[0].settings["stream"]["kind"], list(section.domain_sizes)
    if kind in table.columns:
        return str(kind)
    if domains == ["mixed"]:
        return "mixed-100" if "mixed-100" in table.columns else ""
    fits = "mean" in table.columns and set(domains) == _domains(table)
    return "mean" if fits and kind in table.datasets else ""


def _domains(table: PaperTable) -> set[str]:
    return {name for name in table.columns if name != "mean" and not name.startswith("mixed-")}


def _fits(row: Row, paper_row: PaperRow, table: PaperTable) -> bool:
    if (row.method, row.answer_kind) != (paper_row.method, paper_row.feedback):
        return False
    if (paper_row.label == "E") != ("prepared" in row.qualifiers):
        return False
    if row.answer_kind != "none" and any(_is_not_default(row, key) for key in DEFAULT_FEEDBACK):
        return False
    if paper_row.settings:
        return _has_settings(row, paper_row.settings)
    if set(row.qualifiers) - {"reference", "prepared", "tiny", "large", "paper"}:
        return False
    defaults = default_settings(row.method)
    changed = {key for other in table.rows for key in other.settings}.union(_ALWAYS_DEFAULT)
    return _has_settings(row, {key: defaults[key] for key in changed & defaults.keys()})


def _is_not_default(row: Row, key: str) -> bool:
    return bool(row.settings["feedback"].get(key, DEFAULT_FEEDBACK[key]) != DEFAULT_FEEDBACK[key])


def _has_settings(row: Row, settings: Mapping[str, Any]) -> bool:
    method = default_settings(row.method) | dict(row.settings["method"])
    return all(method.get(key) == value for key, value in settings.items())


def _describe(method: str, feedback: AnswerKind, settings: Mapping[str, Any]) -> str:
    return " ".join((method, feedback, *(f"{key}={value}" for key, value in settings.items())))
