"""Beside accuracy: calibration, agreement, questions and cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bitta.report.accuracy import seeds_note, spread_text
from bitta.report.cells import NOTHING, Cell, Table, best_cells, number
from bitta.report.comparison import Comparison
from bitta.report.reference_numbers import match_costs
from bitta.report.row import Spread
from bitta.results import RunResult


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run."""

    key: str
    title: str
    of: Callable[[RunResult], float | None]
    form: str
    lowest: bool = False
    """Whether the least is the best, and to be shown so."""
    unit: str = ""
    """Of the paper's table of it, where there is one."""
    per_unit: float = 1.0
    """How many of ours make one of that."""


MEASURES: Mapping[str, Sequence[Measure]] = {
    "ece": (
        Measure("ece", "ECE %", lambda run: run.ece, ".1f", lowest=True),
        Measure("policy_ece", "policy's ECE %", lambda run: run.policy_ece, ".1f", lowest=True),
    ),
    "brier": (Measure("brier", "Brier", lambda run: run.brier, ".3f", lowest=True),),
    "agreement": (Measure("agreement", "agreement %", lambda run: run.agreement.rate, ".1f"),),
    "questions": (
        Measure("questions", "questions", lambda run: run.total("n_asked"), ".0f"),
        Measure("answers", "answers", lambda run: run.total("n_answered"), ".0f"),
    ),
    "ms": (
        Measure(
            "ms", "ms/batch", lambda run: 1000 * run.seconds_per_batch, ".1f",
            unit="s", per_unit=1000.0,
        ),
        Measure("forwards", "forwards", lambda run: run.forwards / run.total("n"), ".1f"),
    ),
    "memory": (
        Measure("peak_mb", "peak MB", lambda run: run.peak_memory / 1e6, ".0f", unit="MB"),
    ),
}  # fmt: skip
"""By the name they are asked for."""
_PAPER = "Paper: its table of this measure, on other hardware; difference: ours minus the paper's."
CALIBRATION = ("ece", "brier", "agreement")
"""Those that are not about cost."""


def beside_table(
    comparison: Comparison, names: Sequence[str] = tuple(MEASURES), *, deviations: bool = True
) -> Table:
    """A column per measure that some row has."""
    rows = comparison.section.rows
    header, cells = ["method"], [[Cell(row.title)] for row in rows]
    notes = []
    if len(comparison.section.seeds) > 1:
        notes.append(seeds_note(comparison) if deviations else "Means over seeds.")
    for measure in (measure for name in names for measure in MEASURES[name]):
        found = [row.spread(measure.of) for row in rows]
        if any(found):
            columns = {measure.title: _column(measure, found, deviations)}
            if printed := printed_beside(measure, comparison):
                columns |= _paper_measure(measure, [printed.get(row.name) for row in rows], found)
                notes.append(_PAPER)
            header += columns
            for row_cells, more in zip(cells, zip(*columns.values(), strict=True), strict=True):
                row_cells.extend(more)
    return Table(header, cells, 1, notes)


def printed_beside(measure: Measure, comparison: Comparison) -> dict[str, float]:
    """Return the paper's numbers in our unit by row name. Few measures have them."""
    if not measure.unit:
        return {}
    costs = match_costs(comparison.section, comparison.paper, measure.unit)
    return {name: printed.mean * measure.per_unit for name, printed in costs.items()}


def _column(measure: Measure, found: Sequence[Spread | None], deviations: bool) -> list[Cell]:
    means = [None if spread is None else spread.mean for spread in found]
    best = best_cells(means, lowest=True) if measure.lowest else set()
    return [
        Cell(NOTHING)
        if spread is None
        # Counts that all seeds share need no ± 0.
        else Cell(
            spread_text(spread, measure.form, deviations=deviations and bool(spread.deviation)),
            place in best,
        )
        for place, spread in enumerate(found)
    ]


def _paper_measure(
    measure: Measure, printed: Sequence[float | None], found: Sequence[Spread | None]
) -> dict[str, list[Cell]]:
    """The paper's number for each row, and how far ours is from it."""
    apart = [
        None if value is None or ours is None else ours.mean - value
        for value, ours in zip(printed, found, strict=True)
    ]
    return {
        "paper": [Cell(number(value, measure.form)) for value in printed],
        "difference": [Cell(number(value, f"+z{measure.form}")) for value in apart],
    }
