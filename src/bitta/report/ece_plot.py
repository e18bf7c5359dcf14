"""The policy's calibration against how many passes it is the mean of."""

from typing import TYPE_CHECKING

from bitta.report.row import Row, Spread
from bitta.report.style import WIDE, dress, legend_below, new_figure
from bitta.report.sweep_plot import draw_lines
from bitta.report.sweeps import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PASSES = "method.passes"


def has_policies(sweep: Sweep) -> bool:
    """Whether passes are varied, and the policy was measured in every row."""
    rows = [row for series in sweep.series for row in series.rows]
    return sweep.key == _PASSES and all(row.policy_ece for row in rows)


def ece_figure(sweep: Sweep) -> "Figure":
    """A line per series; of a sweep that has policies."""
    figure = new_figure(WIDE, 4.2)
    axes = figure.add_subplot()
    draw_lines(axes, sweep, _policy_ece)
    axes.set(xlabel=sweep.title, ylabel="policy's ECE (%)", ylim=(0, None))
    dress(axes)
    legend_below(figure, axes, columns=4)
    return figure


def _policy_ece(row: Row) -> Spread:
    assert row.policy_ece is not None
    return row.policy_ece
