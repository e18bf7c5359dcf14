"""The policy's calibration against how many passes it is the mean of."""

from typing import TYPE_CHECKING

from bitta.report.choice import deviations
from bitta.report.names import shown
from bitta.report.style import WIDE, dress, legend_below, literal, looks_of, new_figure
from bitta.report.sweeps import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PASSES = "method.passes"


def has_policies(sweep: Sweep) -> bool:
    """Whether passes are varied, and the policy was measured in every row."""
    rows = [row for series in sweep.series for row in series.rows]
    return sweep.key == _PASSES and all(row.policy_ece for row in rows)


def ece_figure(sweep: Sweep) -> "Figure":
    """A line per series, with the deviation over seeds."""
    figure = new_figure(WIDE, 4.2)
    axes = figure.add_subplot()
    looks = looks_of([series.method for series in sweep.series])
    for series, look in zip(sweep.series, looks, strict=True):
        spreads = [row.policy_ece for row in series.rows if row.policy_ece]
        axes.errorbar(
            series.values, [spread.mean for spread in spreads], yerr=deviations(spreads),
            label=literal(series.label), color=look.colour, linestyle=look.dash,
            marker=look.marker, linewidth=look.width, markersize=6, capsize=3, elinewidth=1.0,
        )  # fmt: skip
    values = sorted({value for series in sweep.series for value in series.values})
    axes.set_xticks(values, [shown(value) for value in values])
    axes.set(xlabel=sweep.title, ylabel="policy's ECE (%)", ylim=(0, None))
    dress(axes)
    legend_below(figure, axes, columns=4)
    return figure
