"""Is a prediction right as often as it is sure?"""

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitta.metrics import Reliability
from bitta.report.choice import label_of
from bitta.report.row import Row, Spread
from bitta.report.style import (
    BLACK,
    BLUE,
    DARK_GREY,
    SMALL,
    VERMILION,
    WIDE,
    dress,
    legend_below,
    new_figure,
)
from bitta.results import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEWEST_SAMPLES = 25
"""In a bin that is drawn: with fewer, chance alone moves a share of one half by over 10 points."""
_COLUMNS = 3
_LETTERS = 24
"""That a panel has room for side by side."""


def has_reliability(row: Row) -> bool:
    """Whether something was served, and was numbers to the end."""
    return any(sum(run.reliability.count) for run in _kept(row))


def reliability_figure(rows: Sequence[Row]) -> "Figure":
    """A panel per row: accuracy in each bin of confidence, beside what it should be."""
    n_columns = 2 if len(rows) == 4 else min(_COLUMNS, len(rows))
    n_lines = -(-len(rows) // n_columns)
    figure = new_figure(max(3.6, WIDE * n_columns / _COLUMNS), 0.6 + 2.6 * n_lines)
    panels = figure.subplots(n_lines, n_columns, sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(panels.flat, rows, strict=False):
        _draw(axes, row)
        axes.set_title(_title(row), loc="left", fontsize=SMALL)
    for axes in panels.flat[len(rows) :]:
        axes.set_visible(False)
    for axes in panels.flat[max(0, len(rows) - n_columns) : len(rows)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("confidence (%)")
    for axes in panels[:, 0]:
        axes.set_ylabel("right (%)")
    legend_below(figure, *panels.flat[: len(rows)], columns=4)
    return figure


def pooled(reliabilities: Sequence[Reliability]) -> Reliability:
    """All seeds in one."""
    return Reliability(
        *(
            np.sum([getattr(one, name) for one in reliabilities], axis=0).tolist()
            for name in ("count", "confidence", "correct")
        )
    )


def _draw(axes: "Axes", row: Row) -> None:
    bins = pooled([run.reliability for run in _kept(row)])
    accuracy, confidence = _percent(bins)
    there = ~np.isnan(accuracy)
    edges = np.linspace(0, 100, len(accuracy) + 1)
    starts, widths = edges[:-1][there], np.diff(edges)[there]
    accuracy, gap = accuracy[there], (confidence - accuracy)[there]
    axes.bar(
        starts, accuracy, widths, align="edge", color=BLUE, alpha=0.75, edgecolor="white",
        linewidth=0.5, label="served",
    )  # fmt: skip
    axes.bar(
        starts, gap, widths, bottom=accuracy, align="edge", facecolor="none", edgecolor=DARK_GREY,
        hatch="////", linewidth=0.4, label="gap to its confidence",
    )  # fmt: skip
    axes.plot([0, 100], [0, 100], color=BLACK, linewidth=0.8, linestyle="dashed", label="ideal")
    if row.policy_ece is not None:
        right, sure = _percent(pooled([run.policy_reliability for run in _kept(row)]))
        axes.plot(
            sure, right, color=VERMILION, marker="o", markersize=3.5, linewidth=1.2,
            label="policy π",
        )  # fmt: skip
    axes.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100))
    axes.set_aspect("equal")
    dress(axes)


def _percent(bins: Reliability) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Right, and sure, in each bin; no number where there are too few samples to tell."""
    count = np.array(bins.count)
    count[count < FEWEST_SAMPLES] = np.nan
    return 100 * np.array(bins.correct) / count, 100 * np.array(bins.confidence) / count


def _kept(row: Row) -> list[RunResult]:
    """Runs of models that kept their weights in range."""
    return [run for run in row.runs.values() if run.lost_at is None]


def _title(row: Row) -> str:
    """Its name and its errors, above the panel, where no data lie."""
    errors = {"ECE": row.ece, "policy's ECE": row.policy_ece}
    told = [f"{name} {_calibration_label(ece)}" for name, ece in errors.items() if ece is not None]
    return "\n".join([fill(label_of(row), _LETTERS), *told])


def _calibration_label(ece: Spread) -> str:
    deviation = "" if ece.deviation is None else f" ± {ece.deviation:.1f}"
    return f"{ece.mean:.1f}{deviation} %"
