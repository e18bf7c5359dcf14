"""Accuracy against time per batch."""

from collections.abc import Sequence
from math import floor, log10
from statistics import fmean
from typing import TYPE_CHECKING

from bitta.report.choice import label_of
from bitta.report.row import Row
from bitta.report.rows import Section
from bitta.report.style import WIDE, dress, legend_below, looks_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_MARKS = 14
MOST_OF_ONE = 5
"""Rows of a method that have marks of their own."""


def has_times(section: Section) -> bool:
    """Whether times can be compared: several methods, on one machine, not all as fast."""
    same = all(len(section.environment(key)) == 1 for key in ("device", "threads"))
    times = [_time(row) for row in section.rows]
    return same and len({row.method for row in section.rows}) > 2 and max(times) > 1.2 * min(times)


def time_figure(rows: Sequence[Row]) -> "Figure":
    """A point per row; filled if it learned from answers."""
    figure = new_figure(WIDE, 4.6)
    axes = figure.add_subplot()
    times = [_time(row) for row in rows]
    looks = looks_of([row.method for row in rows])
    for row, ms, look in zip(rows, times, looks, strict=True):
        axes.plot(
            ms, row.accuracy.mean, linestyle="none", marker=look.marker, color=look.colour,
            markersize=10 if row.method == "bitta" else 7, label=label_of(row),
            markerfacecolor="none" if row.answers == "none" else look.colour,
        )  # fmt: skip
    axes.set(xscale="log", xlabel="ms per batch: serving, choosing questions, learning")
    ticks = _ticks(times)
    axes.set_xticks([], minor=True)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(ylabel="accuracy (%)", xlim=(min(times) / 1.3, max(times) * 1.3))
    dress(axes)
    legend_below(figure, axes, columns=4)
    return figure


def _time(row: Row) -> float:
    """Milliseconds per batch; a run too fast for the clock took a microsecond."""
    return 1000 * max(fmean(run.seconds_per_batch for run in row.runs.values()), 1e-6)


def _ticks(times: Sequence[float]) -> list[float]:
    """1, 2 and 5 of every power of ten among some times."""
    powers = range(floor(log10(min(times))), floor(log10(max(times))) + 2)
    ticks = [first * 10.0**power for power in powers for first in (1, 2, 5)]
    return [tick for tick in ticks if min(times) / 1.3 <= tick <= max(times) * 1.3]
