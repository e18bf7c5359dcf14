"""Accuracy against the cost of answers: what a label costs depends on what is counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bitta.report.choice import Choice, choose, deviations, label_of
from bitta.report.row import Row
from bitta.report.rows import Section
from bitta.report.style import WIDE, dress, legend_below, look_of, looks_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_POINTS = 8
_MARKERS = ("s", "^", "D", "v", "P", "X", "p")
"""Of a method's second row and those after."""
_MOST_LETTERS = 60


def prices_of(section: Section) -> dict[str, float]:
    """A full label in verdicts, by what is counted; none where no verdict stands beside it."""
    if not any(row.answers == "verdict" for row in section.rows):
        return {}
    return {
        _counted(row): row.first.extra["price"]
        for row in section.rows
        if row.answers == "full" and _counted(row) != "count" and "price" in row.first.extra
    }


def compared(section: Section) -> Choice:
    """Rows with answers that a plot has room for; first those that count in bits or seconds."""
    rows = [row for row in section.rows if row.answers != "none"]
    paying = choose([row for row in rows if _counted(row) != "count"], _MOST_POINTS)
    room = _MOST_POINTS - len(paying.shown)
    others = choose([row for row in rows if _counted(row) == "count"], room)
    return Choice(paying.shown + others.shown, paying.left_out + others.left_out)


def cost_figure(section: Section, rows: Sequence[Row], prices: Mapping[str, float]) -> "Figure":
    """A panel for each way to count, with a point per row; source and BN-Stats are levels."""
    figure = new_figure(WIDE, 3.6 + 0.2 * len(rows))
    panels = figure.subplots(1, len(prices), sharey=True, squeeze=False)[0]
    for axes, (counted, price) in zip(panels, prices.items(), strict=True):
        _draw_points(axes, rows, price)
        for row in section.rows:
            if row.method in ("source", "bn_stats"):
                look, level = look_of(row.method), row.accuracy.mean
                axes.axhline(level, label=label_of(row), color=look.colour, linestyle=look.dash)
        axes.set(xlabel="cost per batch, in verdicts", title=f"in {counted}: {price:.2f} a label")
        dress(axes)
    panels[0].set(ylabel="accuracy (%)")
    legend_below(figure, *panels, columns=2)
    return figure


def _draw_points(axes: "Axes", rows: Sequence[Row], price: float) -> None:
    """A method's later rows are smaller, so that none hides another."""
    costs = [_answers(row) * (price if row.answers == "full" else 1.0) for row in rows]
    looks = looks_of([row.method for row in rows])
    seen: Counter[str] = Counter()
    for row, cost, look in zip(rows, costs, looks, strict=True):
        before = seen[row.method]
        seen[row.method] += 1
        axes.errorbar(
            cost, row.accuracy.mean, yerr=deviations([row.accuracy]),
            label=label_of(row, most=_MOST_LETTERS), color=look.colour, linestyle="none",
            marker=_MARKERS[before - 1] if before else look.marker,
            markersize=9 - before if before else 12,
            markeredgecolor=look.colour if row.answers == "full" else "white",
            markerfacecolor="white" if row.answers == "full" else look.colour, capsize=3,
        )  # fmt: skip
    axes.set_xlim(0, 1.12 * max(costs))
    axes.margins(y=0.1)


def _counted(row: Row) -> str:
    """What its budget is counted in."""
    return str(row.settings["feedback"].get("equal", "count"))


def _answers(row: Row) -> float:
    """Per batch, over all seeds."""
    runs = row.runs.values()
    return sum(run.total("n_answered") for run in runs) / sum(len(run.steps) for run in runs)
