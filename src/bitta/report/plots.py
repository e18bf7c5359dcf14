"""All plots of a section, and those that compare rows: sweeps, cost, reliability, time, memory."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import floor, log10
from statistics import fmean
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitta.metrics import Reliability
from bitta.report.plot_style import (
    BLACK,
    BLUE,
    COLLAPSE_MARK,
    DARK_GREY,
    FIGURE_WIDTH,
    SMALL,
    VERMILION,
    LineStyle,
    Plot,
    RowSelection,
    add_legend_below,
    collapse_note,
    deviation_phrase,
    error_bars,
    escape_dollars,
    join_sentences,
    line_styles,
    method_style,
    new_figure,
    row_label,
    select_rows,
    style_axes,
)
from bitta.report.rows import Row, format_value
from bitta.report.sections import Section
from bitta.report.seed_statistics import Spread
from bitta.report.stream_plots import (
    accuracy_by_domain_plot,
    accuracy_over_time_plot,
    agreement_over_time_plot,
    confidence_over_time_plot,
)
from bitta.report.sweeps import SettingSweep, find_sweeps
from bitta.results import RunResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_SWEEPS = 8
_MAX_TICKS = 12
_LOG_RATIO = 30.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
_SWEEP_HATCHES = ("", "//", "..", "xx")

_MAX_COST_POINTS = 8
_MAX_COST_LETTERS = 60
_FURTHER_MARKERS = ("s", "^", "D", "v", "P", "X", "p")
"""Markers of a method's second and further rows."""

_MAX_RELIABILITY_PANELS = 6
_MAX_PANEL_COLUMNS = 3
_MAX_PANEL_LETTERS = 24
"""Maximum number of letters in a line of a panel title."""
_MIN_BIN_SAMPLES = 25
"""Minimum number of samples of a bin that is drawn.

With fewer samples, chance alone moves an accuracy of one half by more than 10 points.
"""

_MAX_TIME_POINTS = 14
_MAX_TIME_POINTS_PER_METHOD = 5


def section_plots(section: Section) -> Iterator[Plot]:
    """Yield the plots for which the section has data."""
    yield from _sweep_plots(section)
    plots: Sequence[Callable[[Section], Plot | None]] = (
        _cost_plot,
        accuracy_over_time_plot,
        accuracy_by_domain_plot,
        _reliability_plot,
        agreement_over_time_plot,
        confidence_over_time_plot,
        _time_plot,
        _memory_plot,
    )
    for make_plot in plots:
        if plot := make_plot(section):
            yield plot


# Sweeps over a setting


def _sweep_plots(section: Section) -> Iterator[Plot]:
    for sweep in find_sweeps(section)[:_MAX_SWEEPS]:
        name = sweep.key.replace(".", "-").replace("_", "-")
        rows = [row for series in sweep.series for row in series.rows]
        note = collapse_note([*rows, *(constant.row for constant in sweep.constant_rows)])
        constant_labels = " and ".join(constant.label for constant in sweep.constant_rows)
        caption = join_sentences(
            f"Accuracy over the whole stream against {sweep.title}{deviation_phrase(section)}.",
            f"Horizontal line: {constant_labels}. The setting has no effect there."
            if constant_labels
            else "",
            note,
        )
        heading = f"Accuracy and {sweep.title}"
        yield Plot(f"accuracy-against-{name}", heading, caption, _draw_sweep(section, sweep))
        if sweep.key == "method.passes" and all(row.policy_ece for row in rows):
            caption = join_sentences(
                f"Calibration error of the policy π against {sweep.title}"
                f"{deviation_phrase(section)}.",
                note,
            )
            heading = f"Calibration and {sweep.title}"
            figure = _draw_policy_calibration(sweep)
            yield Plot(f"calibration-against-{name}", heading, caption, figure)


def _draw_sweep(section: Section, sweep: SettingSweep) -> "Figure":
    """Draw lines if the values are numbers, else bars, with the standard deviation over seeds."""
    figure = new_figure(FIGURE_WIDTH, 4.2)
    axes = figure.add_subplot()
    axes.margins(y=0.1)
    if sweep.is_numeric:
        _draw_sweep_lines(axes, sweep, lambda row: row.accuracy)
    else:
        _draw_sweep_bars(axes, sweep)
    _draw_constant_rows(axes, section, sweep)
    axes.set(xlabel=sweep.title, ylabel="accuracy (%)")
    style_axes(axes, grid="both" if sweep.is_numeric else "y")
    add_legend_below(figure, axes, columns=4)
    return figure


def _draw_policy_calibration(sweep: SettingSweep) -> "Figure":
    """Draw the policy's calibration error against the number of passes it is averaged over."""

    def policy_ece(row: Row) -> Spread:
        assert row.policy_ece is not None, "the caller has checked all rows"
        return row.policy_ece

    figure = new_figure(FIGURE_WIDTH, 4.2)
    axes = figure.add_subplot()
    _draw_sweep_lines(axes, sweep, policy_ece)
    axes.set(xlabel=sweep.title, ylabel="policy's ECE (%)", ylim=(0, None))
    style_axes(axes)
    add_legend_below(figure, axes, columns=4)
    return figure


def _draw_constant_rows(axes: "Axes", section: Section, sweep: SettingSweep) -> None:
    """Draw horizontal lines for rows that the setting does not change."""
    swept = [series.method for series in sweep.series]
    constant = [constant.row.method for constant in sweep.constant_rows]
    styles = line_styles([*swept, *constant])[len(swept) :]
    for constant_row, style in zip(sweep.constant_rows, styles, strict=True):
        accuracy = constant_row.row.accuracy
        mean, deviation = accuracy.mean, accuracy.deviation
        mark = f" {COLLAPSE_MARK}" if constant_row.row.collapsed_domains else ""
        _draw_horizontal_line(axes, mean, escape_dollars(constant_row.label) + mark, style)
        if deviation is not None:
            axes.axhspan(mean - deviation, mean + deviation, color=style.colour, alpha=0.12, lw=0)
    for row in section.rows:
        if row.method in ("source", "bn_stats"):
            label, style = row_label(row), method_style(row.method)
            _draw_horizontal_line(axes, row.accuracy.mean, label, style)


def _draw_horizontal_line(axes: "Axes", height: float, label: str, style: LineStyle) -> None:
    axes.axhline(
        height, label=label, color=style.colour, linestyle=style.dash, linewidth=style.width
    )


def _draw_sweep_lines(axes: "Axes", sweep: SettingSweep, measure: Callable[[Row], Spread]) -> None:
    styles = line_styles([series.method for series in sweep.series])
    for series, style in zip(sweep.series, styles, strict=True):
        spreads = [measure(row) for row in series.rows]
        axes.errorbar(
            series.values, [spread.mean for spread in spreads], yerr=error_bars(spreads),
            label=escape_dollars(series.label), color=style.colour, linestyle=style.dash,
            marker=style.marker, linewidth=style.width, markersize=6, capsize=3, elinewidth=1.0,
        )  # fmt: skip
        for row, value, spread in zip(series.rows, series.values, spreads, strict=True):
            if row.collapsed_domains:
                axes.annotate(
                    COLLAPSE_MARK, (value, spread.mean), xytext=(8, 0), va="center",
                    textcoords="offset points", fontsize=SMALL,
                )  # fmt: skip
    values = sorted({value for series in sweep.series for value in series.values})
    if values[0] > 0 and values[-1] / values[0] >= _LOG_RATIO:
        axes.set_xscale("log")
    if len(values) <= _MAX_TICKS:
        axes.set_xticks([], minor=True)
        axes.set_xticks(values, [format_value(value) for value in values])


def _draw_sweep_bars(axes: "Axes", sweep: SettingSweep) -> None:
    words = list(dict.fromkeys(format_value(v) for series in sweep.series for v in series.values))
    width = min(0.8 / len(sweep.series), 0.3)
    styles = line_styles([series.method for series in sweep.series])
    for index, (series, style) in enumerate(zip(sweep.series, styles, strict=True)):
        spreads = [row.accuracy for row in series.rows]
        shift = (index - (len(sweep.series) - 1) / 2) * width
        bars = axes.bar(
            [words.index(format_value(value)) + shift for value in series.values],
            [spread.mean for spread in spreads], width * 0.92, label=escape_dollars(series.label),
            yerr=error_bars(spreads), capsize=3, color=style.colour,
            hatch=_SWEEP_HATCHES[index % len(_SWEEP_HATCHES)], edgecolor="white", linewidth=0,
        )  # fmt: skip
        marks = [f" {COLLAPSE_MARK}" if row.collapsed_domains else "" for row in series.rows]
        means = [f"{s.mean:.1f}{mark}" for s, mark in zip(spreads, marks, strict=True)]
        axes.bar_label(bars, means, padding=2, fontsize=SMALL)
    axes.set_xticks(range(len(words)), [escape_dollars(word.replace("_", " ")) for word in words])


# Accuracy against the cost of answers


def _cost_plot(section: Section) -> Plot | None:
    prices = _label_prices(section)
    if not prices:
        return None
    selection = _select_cost_rows(section)
    caption = join_sentences(
        "Accuracy against the cost of answers per batch, for rows that learned from answers"
        f"{deviation_phrase(section)}. The unit is the cost of one verdict; each panel has its own "
        "price of a full label. Rows with hollow markers learned from full labels.",
        selection.note,
    )
    figure = _draw_cost(section, selection.drawn, prices)
    return Plot("accuracy-against-cost", "Accuracy and cost of answers", caption, figure)


def _label_prices(section: Section) -> dict[str, float]:
    """Return the price of a full label, in verdicts, by budget unit; empty without verdict rows."""
    if not any(row.answer_kind == "verdict" for row in section.rows):
        return {}
    return {
        _budget_unit(row): row.first_run.extra["price"]
        for row in section.rows
        if row.answer_kind == "full"
        and _budget_unit(row) != "count"
        and "price" in row.first_run.extra
    }


def _select_cost_rows(section: Section) -> RowSelection:
    """Select rows with answers. Rows with a budget in bits or seconds come first."""
    rows = [row for row in section.rows if row.answer_kind != "none"]
    priced = select_rows([r for r in rows if _budget_unit(r) != "count"], _MAX_COST_POINTS)
    n_left = _MAX_COST_POINTS - len(priced.drawn)
    others = select_rows([r for r in rows if _budget_unit(r) == "count"], n_left)
    return RowSelection(priced.drawn + others.drawn, priced.omitted + others.omitted)


def _draw_cost(section: Section, rows: Sequence[Row], prices: Mapping[str, float]) -> "Figure":
    """Draw a panel per budget unit. Source model and BN-Stats are horizontal lines."""
    figure = new_figure(FIGURE_WIDTH, 3.6 + 0.2 * len(rows))
    panels = figure.subplots(1, len(prices), sharey=True, squeeze=False)[0]
    for axes, (unit, price) in zip(panels, prices.items(), strict=True):
        _draw_cost_points(axes, rows, price)
        for row in section.rows:
            if row.method in ("source", "bn_stats"):
                style, mean = method_style(row.method), row.accuracy.mean
                axes.axhline(mean, label=row_label(row), color=style.colour, linestyle=style.dash)
        axes.set(xlabel="cost per batch, in verdicts", title=f"in {unit}: {price:.2f} a label")
        style_axes(axes)
    panels[0].set(ylabel="accuracy (%)")
    add_legend_below(figure, *panels, columns=2)
    return figure


def _draw_cost_points(axes: "Axes", rows: Sequence[Row], label_price: float) -> None:
    """Draw a point per row. A method's further rows are smaller, so that none hides another."""
    costs = [
        _answers_per_batch(r) * (label_price if r.answer_kind == "full" else 1.0) for r in rows
    ]
    styles = line_styles([row.method for row in rows])
    n_drawn: Counter[str] = Counter()
    for row, cost, style in zip(rows, costs, styles, strict=True):
        n_earlier = n_drawn[row.method]
        n_drawn[row.method] += 1
        axes.errorbar(
            cost, row.accuracy.mean, yerr=error_bars([row.accuracy]),
            label=row_label(row, max_letters=_MAX_COST_LETTERS), color=style.colour,
            linestyle="none", capsize=3,
            marker=_FURTHER_MARKERS[n_earlier - 1] if n_earlier else style.marker,
            markersize=9 - n_earlier if n_earlier else 12,
            markeredgecolor=style.colour if row.answer_kind == "full" else "white",
            markerfacecolor="white" if row.answer_kind == "full" else style.colour,
        )  # fmt: skip
    axes.set_xlim(0, 1.12 * max(costs))
    axes.margins(y=0.1)


def _budget_unit(row: Row) -> str:
    return str(row.settings["feedback"].get("equal", "count"))


def _answers_per_batch(row: Row) -> float:
    runs = row.runs.values()
    return sum(run.total("n_answered") for run in runs) / sum(len(run.steps) for run in runs)


# Reliability diagrams


def _reliability_plot(section: Section) -> Plot | None:
    rows = [r for r in section.rows if any(sum(run.reliability.count) for run in _finite_runs(r))]
    if not rows:
        return None
    selection = select_rows(rows, _MAX_RELIABILITY_PANELS)
    has_policy = any(row.policy_ece for row in selection.drawn)
    caption = join_sentences(
        "Accuracy in each bin of confidence. Predictions are calibrated if the bars end on the "
        "dashed line. The hatching is the gap between confidence and accuracy; ECE is its mean. "
        f"Bins of fewer than {_MIN_BIN_SAMPLES} samples are not drawn.",
        "The line with dots is the policy π, where it was computed." if has_policy else "",
        selection.note,
    )
    return Plot("reliability", "Reliability", caption, _draw_reliability(selection.drawn))


def _draw_reliability(rows: Sequence[Row]) -> "Figure":
    """Draw a reliability diagram per row."""
    n_columns = 2 if len(rows) == 4 else min(_MAX_PANEL_COLUMNS, len(rows))
    n_lines = -(-len(rows) // n_columns)
    width = max(3.6, FIGURE_WIDTH * n_columns / _MAX_PANEL_COLUMNS)
    figure = new_figure(width, 0.6 + 2.6 * n_lines)
    panels = figure.subplots(n_lines, n_columns, sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(panels.flat, rows, strict=False):
        _draw_reliability_panel(axes, row)
        axes.set_title(_reliability_title(row), loc="left", fontsize=SMALL)
    for axes in panels.flat[len(rows) :]:
        axes.set_visible(False)
    for axes in panels.flat[max(0, len(rows) - n_columns) : len(rows)]:
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("confidence (%)")
    for axes in panels[:, 0]:
        axes.set_ylabel("accuracy (%)")
    add_legend_below(figure, *panels.flat[: len(rows)], columns=4)
    return figure


def _draw_reliability_panel(axes: "Axes", row: Row) -> None:
    accuracy, confidence = _bin_percentages([run.reliability for run in _finite_runs(row)])
    is_drawn = ~np.isnan(accuracy)
    edges = np.linspace(0, 100, len(accuracy) + 1)
    starts, widths = edges[:-1][is_drawn], np.diff(edges)[is_drawn]
    accuracy, gap = accuracy[is_drawn], (confidence - accuracy)[is_drawn]
    axes.bar(
        starts, accuracy, widths, align="edge", color=BLUE, alpha=0.75, edgecolor="white",
        linewidth=0.5, label="served labels",
    )  # fmt: skip
    axes.bar(
        starts, gap, widths, bottom=accuracy, align="edge", facecolor="none", edgecolor=DARK_GREY,
        hatch="////", linewidth=0.4, label="gap to confidence",
    )  # fmt: skip
    axes.plot([0, 100], [0, 100], color=BLACK, linewidth=0.8, linestyle="dashed", label="ideal")
    if row.policy_ece is not None:
        accuracy, confidence = _bin_percentages(
            [run.policy_reliability for run in _finite_runs(row)]
        )
        axes.plot(
            confidence, accuracy, color=VERMILION, marker="o", markersize=3.5, linewidth=1.2,
            label="policy π",
        )  # fmt: skip
    axes.set(xlim=(0, 100), ylim=(0, 100), xticks=(0, 50, 100), yticks=(0, 50, 100))
    axes.set_aspect("equal")
    style_axes(axes)


def _bin_percentages(
    reliabilities: Sequence[Reliability],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return accuracy and confidence of each bin over all seeds; NaN where samples are few."""
    count, confidence, correct = (
        np.sum([getattr(reliability, name) for reliability in reliabilities], axis=0)
        for name in ("count", "confidence", "correct")
    )
    count[count < _MIN_BIN_SAMPLES] = np.nan
    return 100 * correct / count, 100 * confidence / count


def _finite_runs(row: Row) -> list[RunResult]:
    """Return the runs without a batch of NaN predictions."""
    return [run for run in row.runs.values() if run.first_nan_batch is None]


def _reliability_title(row: Row) -> str:
    """Return name and calibration errors. They stand above the panel and cover no data."""
    errors = {"ECE": row.ece, "policy's ECE": row.policy_ece}
    lines = [f"{name} {_percent_text(ece)}" for name, ece in errors.items() if ece is not None]
    return "\n".join([fill(row_label(row), _MAX_PANEL_LETTERS), *lines])


def _percent_text(ece: Spread) -> str:
    deviation = "" if ece.deviation is None else f" ± {ece.deviation:.1f}"
    return f"{ece.mean:.1f}{deviation} %"


# Time and memory


def _time_plot(section: Section) -> Plot | None:
    """Plot accuracy against time for several methods on one machine, unless all times are close."""
    if any(len(section.environment_values(key)) > 1 for key in ("device", "threads")):
        return None
    times = [_ms_per_batch(row) for row in section.rows]
    if len({row.method for row in section.rows}) <= 2 or max(times) <= 1.2 * min(times):
        return None
    selection = select_rows(
        section.rows, _MAX_TIME_POINTS, max_per_method=_MAX_TIME_POINTS_PER_METHOD
    )
    caption = join_sentences(
        f"Accuracy against time per batch on {section.environment_values('device')[0]}. Rows with "
        "filled markers learned from answers.",
        selection.note,
    )
    figure = _draw_time(selection.drawn)
    return Plot("accuracy-against-time", "Accuracy and time", caption, figure)


def _draw_time(rows: Sequence[Row]) -> "Figure":
    figure = new_figure(FIGURE_WIDTH, 4.6)
    axes = figure.add_subplot()
    times = [_ms_per_batch(row) for row in rows]
    styles = line_styles([row.method for row in rows])
    for row, ms, style in zip(rows, times, styles, strict=True):
        axes.plot(
            ms, row.accuracy.mean, linestyle="none", marker=style.marker, color=style.colour,
            markersize=10 if row.method == "bitta" else 7, label=row_label(row),
            markerfacecolor="none" if row.answer_kind == "none" else style.colour,
        )  # fmt: skip
    axes.set(xscale="log", xlabel="ms per batch: serving, choosing questions, learning")
    ticks = _log_ticks(times)
    axes.set_xticks([], minor=True)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set(ylabel="accuracy (%)", xlim=(min(times) / 1.3, max(times) * 1.3))
    style_axes(axes)
    add_legend_below(figure, axes, columns=4)
    return figure


def _ms_per_batch(row: Row) -> float:
    """Return milliseconds per batch, at least 0.001: a clock may be too coarse for a short run."""
    return 1000 * max(fmean(run.seconds_per_batch for run in row.runs.values()), 1e-6)


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten in the range of the values."""
    powers = range(floor(log10(min(values))), floor(log10(max(values))) + 2)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in ticks if min(values) / 1.3 <= tick <= max(values) * 1.3]


def _memory_plot(section: Section) -> Plot | None:
    """Plot peak memory of three or more rows on one GPU, unless all values are close."""
    if not section.has_gpu_memory or len(section.rows) <= 2:
        return None
    means = [_peak_megabytes(row).mean for row in section.rows]
    if max(means) <= 1.2 * min(means):
        return None
    device = section.environment_values("device")[0]
    caption = join_sentences(
        f"Peak memory of tensors on {device}{deviation_phrase(section)}.",
        collapse_note(section.rows),
    )
    return Plot("memory", "Memory", caption, _draw_memory(section.rows))


def _draw_memory(rows: Sequence[Row]) -> "Figure":
    """Draw a bar per row in the order of the table."""
    figure = new_figure(FIGURE_WIDTH, 1.2 + 0.3 * len(rows))
    axes = figure.add_subplot()
    spreads = [_peak_megabytes(row) for row in rows]
    bars = axes.barh(
        range(len(spreads)), [spread.mean for spread in spreads], xerr=error_bars(spreads),
        color=[method_style(row.method).colour for row in rows], height=0.7, capsize=2,
        error_kw={"elinewidth": 0.8},
    )  # fmt: skip
    axes.bar_label(bars, [f"{spread.mean:,.0f}" for spread in spreads], padding=5, fontsize=SMALL)
    axes.set_yticks(range(len(spreads)), [row_label(row) for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)
    axes.set(xlabel="peak memory (MB)")
    style_axes(axes, grid="x")
    return figure


def _peak_megabytes(row: Row) -> Spread:
    return Spread.from_values([run.peak_memory / 1e6 for run in row.runs.values()])
