"""Accuracy against the cost of answers: what a label costs depends on what is counted."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bitta.report.choice import deviations, label_of
from bitta.report.row import Row
from bitta.report.rows import Section
from bitta.report.style import WIDE, dress, legend_below, look_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("s", "^", "D", "v")
"""Of a method's second row and those after, which are smaller: none hides the first."""
_MOST_LETTERS = 60


def prices_of(section: Section) -> dict[str, float]:
    """A full label in verdicts, by what is counted; none where no verdict stands beside it."""
    if not any(row.answers == "verdict" for row in section.rows):
        return {}
    return {
        row.settings["feedback"]["equal"]: row.first.extra["price"]
        for row in section.rows
        if row.answers == "full"
        and row.settings["feedback"]["equal"] != "count"
        and "price" in row.first.extra
    }


def cost_figure(section: Section, prices: Mapping[str, float]) -> "Figure":
    """A panel for each way to count, with a point per row that learned from answers."""
    figure = new_figure(WIDE, 4.6)
    panels = figure.subplots(1, len(prices), sharey=True, squeeze=False)[0]
    for axes, (counted, price) in zip(panels, prices.items(), strict=True):
        _draw(axes, section, price)
        axes.set(xlabel="cost per batch, in verdicts", title=f"in {counted}: {price:.2f} a label")
        dress(axes)
    panels[0].set(ylabel="accuracy (%)")
    legend_below(figure, *panels, columns=2)
    return figure


def _draw(axes: "Axes", section: Section, price: float) -> None:
    rows = [row for row in section.rows if row.answers != "none"]
    costs = [_answers(row) * (price if row.answers == "full" else 1.0) for row in rows]
    seen: Counter[str] = Counter()
    for row, cost in zip(rows, costs, strict=True):
        look, before = look_of(row.method), seen[row.method]
        seen[row.method] += 1
        marker = _MARKERS[(before - 1) % len(_MARKERS)] if before else look.marker
        axes.errorbar(
            cost, row.accuracy.mean, yerr=deviations([row.accuracy]),
            label=label_of(row, most=_MOST_LETTERS), color=look.colour, linestyle="none",
            marker=marker, markersize=6 if before else 11,
            markeredgecolor=look.colour if row.answers == "full" else "white",
            markerfacecolor="white" if row.answers == "full" else look.colour, capsize=3,
        )  # fmt: skip
    for row in section.rows:
        if row.method in ("source", "bn_stats"):
            look = look_of(row.method)
            axes.axhline(
                row.accuracy.mean, label=label_of(row), color=look.colour, linestyle=look.dash
            )
    axes.set_xlim(0, 1.12 * max(costs))
    axes.margins(y=0.1)


def _answers(row: Row) -> float:
    """Per batch, over all seeds."""
    runs = row.runs.values()
    return sum(run.total("n_answered") for run in runs) / sum(len(run.steps) for run in runs)
