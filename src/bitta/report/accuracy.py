"""Accuracy: methods down, domains across, then the mean, the paper's, and a test."""

from collections.abc import Callable, Mapping
from typing import Literal

from bitta.report.cells import NOTHING, Cell, Table, as_text, best_cells, number
from bitta.report.comparison import Comparison
from bitta.report.names import shown
from bitta.report.row import Row, Spread

Columns = Literal["spreads", "means", "short", "none"]
"""How domains are shown: mean and deviation, means, means under short names, not at all."""

_LONG = 24
"""Letters of a title that make a column much wider than its numbers."""
_SHORT: Mapping[str, str] = {
    "gaussian_noise": "gaus", "shot_noise": "shot", "impulse_noise": "impu",
    "defocus_blur": "defo", "glass_blur": "glas", "motion_blur": "moti", "zoom_blur": "zoom",
    "snow": "snow", "frost": "fros", "fog": "fog", "brightness": "brig", "contrast": "cont",
    "elastic_transform": "elas", "pixelate": "pixe", "jpeg_compression": "jpeg",
}  # fmt: skip


def accuracy_table(comparison: Comparison, columns: Columns = "spreads") -> Table:
    """A row per method, with as much of the domains as is asked for."""
    section, made = comparison.section, _Columns(comparison)
    for key in section.swept:
        made.words(key.rpartition(".")[2], _setting(key))
    made.words("method", lambda row: row.titled(without=section.swept))
    if len(section.domains) > 1 and columns != "none":
        for domain in section.domains:
            title = _short(domain) if columns == "short" else domain
            made.spreads(title, _domain(domain), ".1f", deviations=columns == "spreads")
    if columns != "none":
        for name, part in section.points.items():
            made.spreads(f"first {name.removeprefix('mixed-')} %", _after(part), ".1f")
    made.means()
    if comparison.printed:
        made.numbers("paper", lambda row: _paper(comparison, row), ".2f")
        made.numbers("difference", comparison.difference, "+z.2f")
    if comparison.tests:
        tests = comparison.tests
        made.numbers(
            f"vs {_cut(comparison.against.title)}",
            lambda row: tests[row.name].difference if row.name in tests else None,
            "+z.1f",
        )
        made.words("p", lambda row: _p(tests[row.name].p) if row.name in tests else NOTHING)
    return Table(made.header, made.rows, len(section.swept) + 1, _notes(comparison, columns))


def fitting_table(comparison: Comparison, width: int) -> Table:
    """With as much of the domains as `width` characters have room for."""
    ways: tuple[Columns, ...] = ("spreads", "means", "short", "none")
    for columns in ways:
        table = accuracy_table(comparison, columns)
        if max(map(len, as_text(table, bold=False).splitlines())) <= width:
            break
    return table


class _Columns:
    """A table that grows to the right."""

    def __init__(self, comparison: Comparison) -> None:
        self.section = comparison.section
        self.header: list[str] = []
        self.rows: list[list[Cell]] = [[] for _ in self.section.rows]

    def words(self, title: str, of: Callable[[Row], str]) -> None:
        self.header.append(title)
        for cells, row in zip(self.rows, self.section.rows, strict=True):
            cells.append(Cell(of(row)))

    def numbers(self, title: str, of: Callable[[Row], float | None], form: str) -> None:
        self.words(title, lambda row: number(of(row), form))

    def spreads(
        self, title: str, of: Callable[[Row], Spread], form: str, *, deviations: bool = True
    ) -> None:
        self.header.append(title)
        found = [of(row) for row in self.section.rows]
        best = best_cells([spread.mean for spread in found])
        for place, (cells, spread) in enumerate(zip(self.rows, found, strict=True)):
            cells.append(Cell(spread_text(spread, form, deviations=deviations), place in best))

    def means(self) -> None:
        title = "mean" if len(self.section.domains) > 1 else "accuracy"
        self.spreads(title, lambda row: row.accuracy, ".2f")
        for cells, row in zip(self.rows, self.section.rows, strict=True):
            if row.collapsed:
                cells[-1] = Cell(cells[-1].text, cells[-1].best, " †")


def spread_text(spread: Spread, form: str, *, deviations: bool = True) -> str:
    """87.20 ± 0.31, or the mean alone."""
    mean = f"{spread.mean:{form}}"
    if spread.deviation is None or not deviations:
        return mean
    return f"{mean} ± {spread.deviation:{form}}"


def seeds_note(comparison: Comparison) -> str:
    """What ± is over, and which rows have fewer seeds."""
    section = comparison.section
    seeds = section.seeds
    if len(seeds) == 1:
        return f"One seed ({seeds[0]}), so there is no standard deviation."
    text = f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}."
    fewer = [
        f"{row.title}: {', '.join(map(str, row.runs))}"
        for row in section.rows
        if tuple(row.runs) != seeds
    ]
    return text + (f" Fewer seeds: {'; '.join(fewer)}." if fewer else "")


def _notes(comparison: Comparison, columns: Columns) -> list[str]:
    several = len(comparison.section.domains) > 1
    omitted = {
        "spreads": "",
        "means": "Deviations of the domains are left out for lack of room.",
        "short": "Names of the domains are cut for lack of room.",
        "none": "Domains are left out for lack of room; a wider window has them, and so has "
        "--format csv.",
    }[columns]
    if columns == "short" and len(comparison.section.seeds) > 1:
        omitted = "Names of the domains are cut, and their deviations left out, for lack of room."
    if columns == "means" and len(comparison.section.seeds) == 1:
        omitted = ""
    return [
        *comparison.collapse_notes,
        *_star_note(comparison),
        seeds_note(comparison),
        *([omitted] if several and omitted else []),
        *comparison.paper_notes,
        *comparison.test_notes,
    ]


def _star_note(comparison: Comparison) -> list[str]:
    starred = any("*" in row.title for row in comparison.section.rows)
    return ["* learns from verdicts, right or wrong, as BiTTA does."] if starred else []


def _setting(key: str) -> Callable[[Row], str]:
    """Who gets no answers has none that could be flipped or late."""
    silent = key.startswith("feedback.") and key != "feedback.n_queries"
    return lambda row: NOTHING if silent and row.answers == "none" else shown(row.varying.get(key))


def _cut(title: str) -> str:
    """Fit for the head of a narrow column; the note below has all of it."""
    name, bracket, _ = title.partition(" (")
    return f"{name} (…)" if bracket and len(title) > _LONG else title


def _domain(name: str) -> Callable[[Row], Spread]:
    return lambda row: row.by_domain[name]


def _after(part: float) -> Callable[[Row], Spread]:
    return lambda row: row.after(part)


def _paper(comparison: Comparison, row: Row) -> float | None:
    printed = comparison.printed.get(row.name)
    return None if printed is None else printed.mean


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}"


def _short(domain: str) -> str:
    return _SHORT.get(domain, domain[:6])
