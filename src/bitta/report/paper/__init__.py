"""The paper's own numbers: every table, and what it states in sentences.

Lee et al., "Test-Time Adaptation with Binary Feedback", ICML 2025. Each table is a file beside this
one; claims.toml holds the sentences.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

from bitta.errors import SettingError, unknown_name_error

Answers = Literal["none", "verdict", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRow:
    """One method in a table of the paper."""

    label: str
    """F: full labels, B: verdicts, E: fine-tuned on verdicts beforehand, -: none of these."""
    name: str
    """As it is printed."""
    method: str
    """What bitta calls it."""
    feedback: Answers
    """What it learns from while it adapts."""
    values: tuple[float, ...]
    """One per column."""
    deviations: tuple[float, ...] = ()
    """Standard deviations, where they are printed."""
    variant: str = ""
    """What is changed about the method; empty for nothing."""
    recomputed: float | None = None
    """The mean of the values, where the printed one is another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperTable:
    """A table of the paper, methods down and measurements across."""

    id: str
    """The label in the LaTeX source; after a slash, which of its parts."""
    place: str
    """Its number in the paper."""
    caption: str
    """What it holds, in our words."""
    unit: str
    decimals: int
    """How many are printed."""
    columns: tuple[str, ...]
    """What bitta calls them: domains, kinds of stream, and their mean."""
    headings: tuple[str, ...]
    """As they are printed."""
    rows: tuple[PaperRow, ...]
    experiments: tuple[str, ...]
    """Folders of experiments that measure the same."""
    transposed: bool = False
    """Whether it is printed with methods across."""

    def row(self, method: str, feedback: Answers, *, variant: str = "") -> PaperRow:
        """The row of a method that learns from such answers."""
        for row in self.rows:
            if (row.method, row.feedback, row.variant) == (method, feedback, variant):
                return row
        there = [" ".join((r.method, r.feedback, r.variant)).strip() for r in self.rows]
        wanted = " ".join((method, feedback, variant)).strip()
        raise SettingError(f"{self.id} has no row {wanted!r}; there are {', '.join(there)}.")

    def value(self, method: str, feedback: Answers, column: str, *, variant: str = "") -> float:
        """One number, in the table's unit.

        >>> paper_table("tab:tinyimagenetc/cifar10-c").value("bitta", "verdict", "mean")
        87.2
        """
        return self.row(method, feedback, variant=variant).values[self._place(column)]

    def deviation(
        self, method: str, feedback: Answers, column: str, *, variant: str = ""
    ) -> float | None:
        """Its standard deviation over three seeds, where it is printed."""
        deviations = self.row(method, feedback, variant=variant).deviations
        return deviations[self._place(column)] if deviations else None

    def _place(self, column: str) -> int:
        if column not in self.columns:
            raise unknown_name_error("column", column, self.columns, of=self.id)
        return self.columns.index(column)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A number that the paper states in a sentence."""

    id: str
    value: float
    printed: str
    """As it is written in the source."""
    unit: str
    heading: str
    """Of the paragraph that states it."""
    gist: str
    """What is claimed, in our words."""
    experiments: tuple[str, ...] = ()
    """Folders of experiments that measure the same; none where nothing can be measured."""


@cache
def paper_tables() -> tuple[str, ...]:
    """The ids of all tables, in the paper's order."""
    tables = [_read(file) for file in _folder().iterdir() if _is_table(file)]
    return tuple(table["id"] for table in sorted(tables, key=_number))


@cache
def paper_table(table_id: str) -> PaperTable:
    """One table, by its label in the LaTeX source."""
    file = _folder() / f"{table_id.removeprefix('tab:').replace('/', '-')}.toml"
    if table_id not in (ids := paper_tables()):
        raise unknown_name_error("table of the paper", table_id, ids)
    given = _read(file)
    rows = tuple(PaperRow(**_tuples(row)) for row in given.pop("rows"))
    return PaperTable(**_tuples(given), rows=rows)


def paper_claims() -> tuple[Claim, ...]:
    """Everything that is stated in sentences only."""
    given = _read(_folder() / "claims.toml")["claims"]
    return tuple(Claim(**_tuples(claim)) for claim in given)


def _folder() -> Traversable:
    return files("bitta.report.paper")


def _is_table(file: Traversable) -> bool:
    return file.name.endswith(".toml") and file.name != "claims.toml"


def _read(file: Traversable) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _number(table: dict[str, Any]) -> tuple[int, str]:
    """Where it comes: (12, "b") for Table 12b."""
    number = table["place"].removeprefix("Table ")
    part = number.lstrip("0123456789")
    return int(number.removesuffix(part)), part


def _tuples(given: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
