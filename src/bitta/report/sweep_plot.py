"""Accuracy against a setting that was varied."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from bitta.report.choice import MARK, deviations, label_of
from bitta.report.names import shown
from bitta.report.row import Row, Spread
from bitta.report.rows import Section
from bitta.report.style import (
    SMALL,
    WIDE,
    Look,
    dress,
    legend_below,
    literal,
    look_of,
    looks_of,
    new_figure,
)
from bitta.report.sweeps import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = ("", "//", "..", "xx")
_LOG_FROM = 30.0
"""A range this wide, largest by smallest, gets a logarithmic axis."""
_MOST_TICKS = 12


def sweep_figure(section: Section, sweep: Sweep) -> "Figure":
    """Lines for numbers and bars for words, with the deviation over seeds."""
    figure = new_figure(WIDE, 4.2)
    axes = figure.add_subplot()
    axes.margins(y=0.1)
    if sweep.numeric:
        draw_lines(axes, sweep, lambda row: row.accuracy)
    else:
        _draw_bars(axes, sweep)
    _draw_levels(axes, section, sweep)
    axes.set(xlabel=sweep.title, ylabel="accuracy (%)")
    dress(axes, grid="both" if sweep.numeric else "y")
    legend_below(figure, axes, columns=4)
    return figure


def _draw_levels(axes: "Axes", section: Section, sweep: Sweep) -> None:
    """What the setting does not change: other methods, and rows in which it has no effect."""
    own = [series.method for series in sweep.series]
    looks = looks_of([*own, *(level.row.method for level in sweep.levels)])[len(own) :]
    for level, look in zip(sweep.levels, looks, strict=True):
        mean, deviation = level.row.accuracy.mean, level.row.accuracy.deviation
        mark = f" {MARK}" if level.row.collapsed else ""
        _level(axes, mean, literal(level.label) + mark, look)
        if deviation is not None:
            axes.axhspan(mean - deviation, mean + deviation, color=look.colour, alpha=0.12, lw=0)
    for row in section.rows:
        if row.method in ("source", "bn_stats"):
            _level(axes, row.accuracy.mean, label_of(row), look_of(row.method))


def _level(axes: "Axes", mean: float, label: str, look: Look) -> None:
    axes.axhline(mean, label=label, color=look.colour, linestyle=look.dash, linewidth=look.width)


def draw_lines(axes: "Axes", sweep: Sweep, measure: Callable[[Row], Spread]) -> None:
    """A line per series, with the deviation over seeds."""
    looks = looks_of([series.method for series in sweep.series])
    for series, look in zip(sweep.series, looks, strict=True):
        spreads = [measure(row) for row in series.rows]
        axes.errorbar(
            series.values, [spread.mean for spread in spreads], yerr=deviations(spreads),
            label=literal(series.label), color=look.colour, linestyle=look.dash,
            marker=look.marker, linewidth=look.width, markersize=6, capsize=3, elinewidth=1.0,
        )  # fmt: skip
        for row, value, spread in zip(series.rows, series.values, spreads, strict=True):
            if row.collapsed:
                axes.annotate(
                    MARK, (value, spread.mean), xytext=(8, 0), va="center",
                    textcoords="offset points", fontsize=SMALL,
                )  # fmt: skip
    values = sorted({value for series in sweep.series for value in series.values})
    if values[0] > 0 and values[-1] / values[0] >= _LOG_FROM:
        axes.set_xscale("log")
    if len(values) <= _MOST_TICKS:
        axes.set_xticks([], minor=True)
        axes.set_xticks(values, [shown(value) for value in values])


def _draw_bars(axes: "Axes", sweep: Sweep) -> None:
    words = list(dict.fromkeys(shown(v) for series in sweep.series for v in series.values))
    width = min(0.8 / len(sweep.series), 0.3)
    looks = looks_of([series.method for series in sweep.series])
    for place, (series, look) in enumerate(zip(sweep.series, looks, strict=True)):
        spreads = [row.accuracy for row in series.rows]
        shift = (place - (len(sweep.series) - 1) / 2) * width
        bars = axes.bar(
            [words.index(shown(value)) + shift for value in series.values],
            [spread.mean for spread in spreads], width * 0.92, label=literal(series.label),
            yerr=deviations(spreads), capsize=3, color=look.colour,
            hatch=_HATCHES[place % len(_HATCHES)], edgecolor="white", linewidth=0,
        )  # fmt: skip
        marks = [f" {MARK}" if row.collapsed else "" for row in series.rows]
        means = [f"{s.mean:.1f}{mark}" for s, mark in zip(spreads, marks, strict=True)]
        axes.bar_label(bars, means, padding=2, fontsize=SMALL)
    axes.set_xticks(range(len(words)), [literal(word.replace("_", " ")) for word in words])
