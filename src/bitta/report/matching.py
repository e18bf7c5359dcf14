"""The paper's number for a row of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from bitta.report.names import USUAL_FEEDBACK, defaults_of
from bitta.report.paper import PaperRow, PaperTable, paper_table, paper_tables
from bitta.report.row import Row
from bitta.report.rows import Section

PER_DOMAIN = 9984
"""Samples of each corruption in the paper's tables."""
MEASURED_ON: Mapping[str, str] = {"s": "tiny-imagenet-c", "MB": "cifar10-c"}
"""Sets on which the paper measures time and memory, by their units."""
_CORRUPTED = ("cifar10-c", "cifar100-c", "tiny-imagenet-c")
_POLICIES = {"augmentation": "augmentation", "ensemble": "ensemble", "confidence": "softmax"}
"""What a variant of the paper is in our settings."""


@dataclass(frozen=True, slots=True)
class Printed:
    """A row of the paper that measures the same as one of ours."""

    table: PaperTable
    row: PaperRow
    column: str
    """The one that holds the mean over the stream."""

    @property
    def mean(self) -> float:
        """In percent, as it is printed."""
        return self.row.values[self.table.columns.index(self.column)]

    def value(self, domain: str) -> float | None:
        """Of a domain, or a point of a mixed stream, where the table has it."""
        along = domain.startswith("mixed-")
        if domain not in self.table.columns or self.column != ("mixed-100" if along else "mean"):
            return None
        return self.row.values[self.table.columns.index(domain)]


def tables_for(section: Section, asked: str | None = None) -> list[PaperTable]:
    """Tables of accuracy that these results may stand beside: the one asked for, else by folder.

    results/main-cifar10-c belongs to the tables that reproduction/experiments/main-cifar10-c
    measures, and results/cifar10-c, which has more methods, to the same.
    """
    if asked is not None:
        return [paper_table(asked)]
    names = {folder.resolve().name for folder in section.folders}
    names |= {f"main-{name}" for name in names}
    return [
        table
        for table in _all_tables()
        if table.unit == "%" and names & set(table.experiments) and _column(section, table)
    ]


def printed_for(section: Section, tables: Sequence[PaperTable]) -> dict[str, Printed]:
    """By row name, the first that fits; rows the paper does not have are left out."""
    found: dict[str, Printed] = {}
    for table in tables:
        column = _column(section, table)
        for row in section.rows:
            like = [printed for printed in table.rows if _fits(row, printed, table)]
            if column and like:
                found.setdefault(row.name, Printed(table, like[0], column))
    return found


def costs_for(section: Section, unit: str) -> dict[str, Printed]:
    """The paper's seconds or megabytes on the same set, by row name."""
    names = {folder.resolve().name for folder in section.folders}
    kind = section.rows[0].settings["stream"]["kind"]
    if unit == "MB" and not section.has_memory:
        return {}
    tables = [
        replace(table, columns=(kind,))
        for table in _all_tables()
        if table.unit == unit and names & set(table.experiments) and MEASURED_ON[unit] == kind
    ]
    return printed_for(section, tables)


def is_shorter(section: Section) -> bool:
    """Whether a stream of corruptions has not as many samples of each as the paper's."""
    kind = section.rows[0].settings["stream"]["kind"]
    return kind in _CORRUPTED and set(section.domains.values()) != {PER_DOMAIN}


@cache
def _all_tables() -> tuple[PaperTable, ...]:
    return tuple(paper_table(table_id) for table_id in paper_tables())


def _column(section: Section, table: PaperTable) -> str:
    """That of the mean over such a stream; empty where the table has another."""
    kind, domains = section.rows[0].settings["stream"]["kind"], list(section.domains)
    if kind in table.columns:
        return str(kind)
    if domains == ["mixed"]:
        return "mixed-100" if "mixed-100" in table.columns else ""
    part = table.id.partition("/")[2]
    other = part in _CORRUPTED and part != kind
    fits = "mean" in table.columns and set(domains) == _domains(table)
    return "mean" if fits and not other else ""


def _domains(table: PaperTable) -> set[str]:
    return {name for name in table.columns if name != "mean" and not name.startswith("mixed-")}


def _fits(row: Row, printed: PaperRow, table: PaperTable) -> bool:
    if (row.method, row.answers) != (printed.method, printed.feedback):
        return False
    if (printed.label == "E") != ("enhanced" in row.apart):
        return False
    unusual = [key for key in USUAL_FEEDBACK if _is_unusual(row, key)]
    if row.answers != "none" and unusual:
        return False
    if printed.variant:
        return _is_variant(row, printed.variant)
    others = {other.variant for other in table.rows if other.variant}
    settings = set(row.apart) - {"reference", "enhanced", "tiny", "large", "paper"}
    varied = any(_is_variant(row, variant) for variant in (*others, *_POLICIES, "mecta"))
    return not varied and not settings


def _is_unusual(row: Row, key: str) -> bool:
    return bool(row.settings["feedback"].get(key, USUAL_FEEDBACK[key]) != USUAL_FEEDBACK[key])


def _is_variant(row: Row, variant: str) -> bool:
    method = row.settings["method"]
    if variant in _POLICIES:
        return bool(method.get("policy") == _POLICIES[variant])
    if variant.startswith("epochs-"):
        return bool(method["epochs"] == int(variant.removeprefix("epochs-")))
    if variant == "mecta":
        return bool(method.get("mecta", "off") != "off")
    return bool(method.get("micro_batch", 0) != defaults_of(row.method).get("micro_batch", 0))
