"""Accuracy in each domain: bars for a few rows, a map for many."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bitta.report.choice import deviations, label_of
from bitta.report.row import Row
from bitta.report.rows import Section
from bitta.report.style import SMALL, WIDE, dress, legend_below, literal, looks_of, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 6
"""Rows that can stand side by side as bars."""
_LEVEL_NAMES = 5
"""As many domains have room for their names side by side."""
_HATCHES = ("", "//", "..", "\\\\", "xx", "--")


def bars_figure(section: Section, rows: Sequence[Row]) -> "Figure":
    """A group of bars per domain, with the deviation over seeds."""
    figure = new_figure(WIDE, 4.4)
    axes = figure.add_subplot()
    domains = list(section.domains)
    width = 0.84 / len(rows)
    looks = looks_of([row.method for row in rows])
    for place, (row, look) in enumerate(zip(rows, looks, strict=True)):
        spreads = [row.by_domain[domain] for domain in domains]
        axes.bar(
            np.arange(len(domains)) + (place - (len(rows) - 1) / 2) * width,
            [spread.mean for spread in spreads], width * 0.94,
            yerr=deviations(spreads),
            error_kw={"elinewidth": 0.8}, label=label_of(row), color=look.colour,
            hatch=_HATCHES[place % len(_HATCHES)], edgecolor="white", linewidth=0,
        )  # fmt: skip
    _name_domains(axes, domains)
    axes.set(ylabel="accuracy (%)", ylim=(0, 100), xlim=(-0.6, len(domains) - 0.4))
    dress(axes, grid="y")
    legend_below(figure, axes, columns=4)
    return figure


def map_figure(section: Section) -> "Figure":
    """Points won or lost against the source model in each domain; accuracy if it was not run."""
    source = section.source
    rows = [row for row in section.rows if row is not source]
    domains = list(section.domains)
    percent = np.array([[row.by_domain[d].mean for d in domains] for row in rows])
    if source is not None:
        percent = percent - np.array([source.by_domain[domain].mean for domain in domains])
    figure = new_figure(WIDE, 1.7 + 0.2 * len(rows))
    axes = figure.add_subplot()
    limit = float(np.abs(percent).max()) or 1.0
    scale = {"cmap": "RdBu", "vmin": -limit, "vmax": limit} if source else {"cmap": "cividis"}
    drawn = axes.imshow(percent, aspect="auto", interpolation="nearest", **scale)
    for (line, column), value in np.ndenumerate(percent):
        red, green, blue, _ = drawn.cmap(drawn.norm(value))
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            column, line, _points(value) if source else f"{value:.0f}", ha="center", va="center",
            fontsize=7, color="white" if dark else "black",
        )  # fmt: skip
    _name_domains(axes, domains)
    axes.set_yticks(range(len(rows)), [label_of(row) for row in rows])
    axes.tick_params(labelsize=SMALL, length=0)
    axes.spines[:].set_visible(False)
    return figure


def _points(value: float) -> str:
    """A difference with its sign, in whole points."""
    whole = round(value)
    return f"{whole:+d}".replace("-", "−") if whole else "0"


def _name_domains(axes: "Axes", domains: Sequence[str]) -> None:
    names = [literal(domain.replace("_", " ")) for domain in domains]
    axes.set_xticks(range(len(names)), names)
    if len(names) > _LEVEL_NAMES:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
