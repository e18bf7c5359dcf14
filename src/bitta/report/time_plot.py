"""Accuracy against time per batch."""

from collections.abc import Sequence
from math import floor, log10
from statistics import fmean
from typing import TYPE_CHECKING

from bitta.report.names import TITLES
from bitta.report.rows import Section
from bitta.report.style import WIDE, dress, legend_below, look_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def has_times(section: Section) -> bool:
    """Whether times can be compared: several methods, on one machine, not all as fast."""
    same = all(len(section.environment(key)) == 1 for key in ("device", "threads"))
    times = _times(section)
    return same and len({row.method for row in section.rows}) > 2 and max(times) > 1.2 * min(times)


def time_figure(section: Section) -> "Figure":
    """A point per row; filled if it learned from answers."""
    figure = new_figure(WIDE, 4.4)
    axes = figure.add_subplot()
    times = _times(section)
    for row, ms in zip(section.rows, times, strict=True):
        look = look_of(row.method)
        axes.plot(
            ms, row.accuracy.mean, linestyle="none", marker=look.marker, color=look.colour,
            markersize=10 if row.method == "bitta" else 7,
            markerfacecolor="none" if row.answers == "none" else look.colour,
        )  # fmt: skip
    for method in dict.fromkeys(row.method for row in section.rows):
        look = look_of(method)
        axes.plot(
            [], [], linestyle="none", marker=look.marker, color=look.colour, markersize=7,
            label=TITLES.get(method, method),
        )  # fmt: skip
    axes.set(xscale="log", xlabel="ms per batch: serving, choosing questions, learning")
    ticks = _ticks(times)
    axes.set_xticks([], minor=True)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(ylabel="accuracy (%)", xlim=(min(times) / 1.3, max(times) * 1.3))
    dress(axes)
    legend_below(figure, axes, columns=5)
    return figure


def _times(section: Section) -> list[float]:
    """Milliseconds per batch of each row; a run too fast for the clock took a microsecond."""
    means = [fmean(run.seconds_per_batch for run in row.runs.values()) for row in section.rows]
    return [1000 * max(mean, 1e-6) for mean in means]


def _ticks(times: Sequence[float]) -> list[float]:
    """1, 2 and 5 of every power of ten among some times."""
    powers = range(floor(log10(min(times))), floor(log10(max(times))) + 2)
    ticks = [first * 10.0**power for power in powers for first in (1, 2, 5)]
    return [tick for tick in ticks if min(times) / 1.3 <= tick <= max(times) * 1.3]
