"""Beside accuracy: calibration, agreement, questions and cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bitta.report.accuracy import seeds_note, spread_text
from bitta.report.cells import NOTHING, Cell, Table, best_cells
from bitta.report.comparison import Comparison
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
        Measure("ms", "ms/batch", lambda run: 1000 * run.seconds_per_batch, ".1f"),
        Measure("forwards", "forwards", lambda run: run.forwards / run.total("n"), ".1f"),
    ),
    "memory": (Measure("peak_mb", "peak MB", lambda run: run.peak_memory / 1e6, ".0f"),),
}
"""By the name they are asked for."""
CALIBRATION = ("ece", "brier", "agreement")
"""Those that are not about cost."""


def beside_table(
    comparison: Comparison, names: Sequence[str] = tuple(MEASURES), *, deviations: bool = True
) -> Table:
    """A column per measure that some row has."""
    rows = comparison.section.rows
    header, cells = ["method"], [[Cell(row.title)] for row in rows]
    for measure in (measure for name in names for measure in MEASURES[name]):
        found = [row.spread(measure.of) for row in rows]
        if any(found):
            header.append(measure.title)
            for row_cells, cell in zip(cells, _column(measure, found, deviations), strict=True):
                row_cells.append(cell)
    note = seeds_note(comparison) if deviations else "Means over seeds."
    return Table(header, cells, 1, [note] if len(comparison.section.seeds) > 1 else [])


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
