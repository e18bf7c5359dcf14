"""The most memory that each row took."""

from typing import TYPE_CHECKING

from bitta.report.choice import deviations, label_of
from bitta.report.row import Row, Spread
from bitta.report.rows import Section
from bitta.report.style import SMALL, WIDE, dress, look_of, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tells_apart(section: Section) -> bool:
    """Whether rows can be compared by it: several, and not all as large."""
    most = [_megabytes(row).mean for row in section.rows]
    return section.has_memory and len(section.rows) > 2 and max(most) > 1.2 * min(most)


def memory_figure(section: Section) -> "Figure":
    """A bar per row, in the order of the table, with the deviation over seeds."""
    figure = new_figure(WIDE, 1.2 + 0.3 * len(section.rows))
    axes = figure.add_subplot()
    spreads = [_megabytes(row) for row in section.rows]
    bars = axes.barh(
        range(len(spreads)), [spread.mean for spread in spreads], xerr=deviations(spreads),
        color=[look_of(row.method).colour for row in section.rows], height=0.7, capsize=2,
        error_kw={"elinewidth": 0.8},
    )  # fmt: skip
    axes.bar_label(bars, [f"{spread.mean:,.0f}" for spread in spreads], padding=5, fontsize=SMALL)
    axes.set_yticks(range(len(spreads)), [label_of(row) for row in section.rows])
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.set(xlabel="peak memory (MB)")
    dress(axes, grid="x")
    return figure


def _megabytes(row: Row) -> Spread:
    return Spread.of([run.peak_memory / 1e6 for run in row.runs.values()])
