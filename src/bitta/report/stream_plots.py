"""Plots along the stream: accuracy, agreement and confidence over time, accuracy by domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bitta.report.plot_style import (
    BLUE,
    DARK_GREY,
    FIGURE_WIDTH,
    LIGHT_GREY,
    NORMAL,
    SMALL,
    VERMILION,
    LineStyle,
    Plot,
    add_legend_below,
    collapse_note,
    error_bars,
    escape_dollars,
    join_sentences,
    line_styles,
    new_figure,
    row_label,
    seeds_phrase,
    select_rows,
    style_axes,
)
from bitta.report.rows import Row
from bitta.report.sections import Section
from bitta.results import RunResult, StepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MIN_WINDOW_BATCHES = 8
_MIN_WINDOW_SAMPLES = 64
_MAX_LINES = 8
_MAX_PANELS = 3
_MAX_POINTS = 400
"""Maximum number of points of a line. More points are invisible and make a page large."""
_MAX_MARKED_DOMAINS = 20
_MAX_BAR_ROWS = 6
"""Maximum number of rows drawn as bars. More rows become a heat map."""
_MAX_HORIZONTAL_NAMES = 5
"""Maximum number of domain names that fit side by side without rotation."""
_HATCHES = ("", "//", "..", "\\\\", "xx", "--")

Curve: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AccuracyLine:
    """Line of a plot: the mean over some runs."""

    label: str
    style: LineStyle
    runs: Sequence[RunResult]


@dataclass(frozen=True, slots=True)
class _CurveStyle:
    label: str
    colour: str
    dash: str


_AGREEMENT_STYLES = (
    _CurveStyle("agreement", DARK_GREY, "dotted"),
    _CurveStyle("accuracy if they agree", BLUE, "solid"),
    _CurveStyle("accuracy if they differ", VERMILION, "dashed"),
)
_SERVED_STYLE = _CurveStyle("confidence of the served labels", BLUE, "solid")
_POLICY_STYLE = _CurveStyle("confidence of the policy π", VERMILION, "dashed")


def write_accuracy_plot(results: Mapping[str, RunResult], path: str | Path, *, title: str) -> None:
    """Write an image of accuracy over time with one line per result."""
    methods = [
        str(result.experiment.get("method", {}).get("name", name))
        for name, result in results.items()
    ]
    lines = [
        AccuracyLine(f"{escape_dollars(name)} ({result.accuracy:.1f} %)", style, [result])
        for (name, result), style in zip(results.items(), line_styles(methods), strict=True)
    ]
    figure = _draw_accuracy(lines, height=4.5, width=8)
    figure.axes[0].set(ylim=(0, 100))
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def accuracy_over_time_plot(section: Section) -> Plot:
    """Plot the moving average of accuracy, one line per row."""
    selection = select_rows(section.rows, _MAX_LINES)
    styles = line_styles([row.method for row in selection.drawn])
    lines = [
        AccuracyLine(f"{row_label(row)} ({row.accuracy.mean:.1f})", style, list(row.runs.values()))
        for row, style in zip(selection.drawn, styles, strict=True)
    ]
    caption = join_sentences(
        f"Accuracy in percent over the last {accuracy_window(section.rows[0].first_run)} batches, "
        f"{seeds_phrase(selection.drawn)}. Brackets hold the accuracy over the whole stream.",
        selection.note,
    )
    return Plot("accuracy-over-time", "Accuracy over time", caption, _draw_accuracy(lines))


def agreement_over_time_plot(section: Section) -> Plot | None:
    """Plot agreement of policy and served labels, one panel per row that measured it."""
    measured = [row for row in section.rows if row.first_run.agreement.n_measured]
    if not measured:
        return None
    selection = select_rows(measured, _MAX_PANELS)
    figure, panels = _new_panels(len(selection.drawn))
    for axes, row in zip(panels, selection.drawn, strict=True):
        _draw_agreement(axes, list(row.runs.values()))
    _finish_panels(figure, panels, selection.drawn)
    caption = join_sentences(
        "Share of samples on which the policy's first choice is the served label, and accuracy "
        f"where both agree and where they differ, {seeds_phrase(selection.drawn)}.",
        selection.note,
    )
    return Plot("agreement-over-time", "Agreement over time", caption, figure)


def confidence_over_time_plot(section: Section) -> Plot | None:
    """Plot the confidence of served labels and policy, one panel per row that recorded it."""
    recorded = [row for row in section.rows if all(map(_has_confidence, row.runs.values()))]
    if not recorded:
        return None
    selection = select_rows(recorded, _MAX_PANELS)
    figure, panels = _new_panels(len(selection.drawn))
    for axes, row in zip(panels, selection.drawn, strict=True):
        _draw_confidence(axes, list(row.runs.values()))
    _finish_panels(figure, panels, selection.drawn)
    has_policy = any(row.policy_ece for row in selection.drawn)
    caption = join_sentences(
        "Mean confidence of the served labels, over correct and incorrect ones, "
        f"{seeds_phrase(selection.drawn)}.",
        "The dashed line is the confidence of the policy π in its own first choice, where it was "
        "computed." if has_policy else "",
        selection.note,
    )  # fmt: skip
    return Plot("confidence-over-time", "Confidence over time", caption, figure)


def accuracy_by_domain_plot(section: Section) -> Plot | None:
    """Plot accuracy in each domain: bars for a few rows, a heat map for many."""
    if len(section.domain_sizes) < 2 or len(section.rows) < 2:
        return None
    if len(section.rows) <= _MAX_BAR_ROWS:
        content, figure = "Accuracy of each row in each domain", _draw_domain_bars(section)
    elif section.source_row:
        content = "Accuracy minus that of the source model, in points, of each row in each domain"
        figure = _draw_domain_map(section)
    else:
        content, figure = "Accuracy of each row in each domain", _draw_domain_map(section)
    caption = join_sentences(
        f"{content}, {seeds_phrase(section.rows)}.", collapse_note(section.rows)
    )
    return Plot("accuracy-by-domain", "Accuracy by domain", caption, figure)


def _draw_accuracy(
    lines: Sequence[AccuracyLine], *, width: float = FIGURE_WIDTH, height: float = 4.6
) -> "Figure":
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    window = accuracy_window(lines[0].runs[0])
    for index, line in enumerate(lines):
        curve = _mean_curve([accuracy_curve(run, window) for run in line.runs])
        points = _thinned_points(len(curve))
        axes.plot(
            points + 1, curve[points], label=line.label, color=line.style.colour,
            linestyle=line.style.dash, linewidth=line.style.width, zorder=2 + line.style.width,
            marker=line.style.marker, markersize=5, markevery=_marker_spacing(len(points), index),
        )  # fmt: skip
    axes.set(xlabel="batch", ylabel=f"accuracy, last {window} batches (%)")
    style_axes(axes, grid="y")
    _mark_domains(axes, [run for line in lines for run in line.runs])
    add_legend_below(figure, axes, columns=4)
    return figure


def _draw_agreement(axes: "Axes", runs: Sequence[RunResult]) -> None:
    batches, window = _policy_batches(runs[0])
    by_seed = [agreement_curves(run, window) for run in runs]
    for style, curves in zip(_AGREEMENT_STYLES, zip(*by_seed, strict=True), strict=True):
        _draw_curve(axes, batches, _mean_curve(curves), style)
    unit = "batches" if len(batches) == len(runs[0].steps) else "measured"
    axes.set(ylabel=f"%, last {window} {unit}")


def _draw_confidence(axes: "Axes", runs: Sequence[RunResult]) -> None:
    window = accuracy_window(runs[0])
    served = _mean_curve([confidence_curve(run, window) for run in runs])
    _draw_curve(axes, np.arange(len(served)), served, _SERVED_STYLE)
    batches, policy_window = _policy_batches(runs[0])
    if len(batches):
        policy = _mean_curve([_policy_confidence_curve(run, policy_window) for run in runs])
        _draw_curve(axes, batches, policy, _POLICY_STYLE)
    axes.set(ylabel=f"%, last {window} batches")


def _new_panels(n_panels: int) -> tuple["Figure", list["Axes"]]:
    """Return a figure with panels one below another."""
    figure = new_figure(FIGURE_WIDTH, 1.0 + 2.2 * n_panels)
    panels = figure.subplots(n_panels, sharex=True, sharey=True, squeeze=False)[:, 0]
    return figure, list(panels)


def _draw_curve(axes: "Axes", batches: NDArray[np.int64], curve: Curve, style: _CurveStyle) -> None:
    """Draw a curve with one value per entry of `batches`."""
    points = _thinned_points(len(curve))
    axes.plot(
        batches[points] + 1, curve[points], label=style.label, color=style.colour,
        linestyle=style.dash, linewidth=1.6,
    )  # fmt: skip


def _finish_panels(figure: "Figure", panels: Sequence["Axes"], rows: Sequence[Row]) -> None:
    """Add titles, domain marks and the legend to panels with curves."""
    for axes, row in zip(panels, rows, strict=True):
        axes.set_title(row_label(row), loc="left", fontsize=NORMAL)
        axes.set(ylim=(0, 100))
        style_axes(axes, grid="y")
        _mark_domains(axes, list(row.runs.values()), with_names=axes is panels[0])
    panels[-1].set_xlabel("batch")
    add_legend_below(figure, *panels, columns=3)


def _policy_batches(run: RunResult) -> tuple[NDArray[np.int64], int]:
    """Return the batches with a policy, and the number of these batches in a moving average."""
    n_measured = _column(run.steps, "n_measured")
    batches = np.flatnonzero(n_measured)
    return batches, _window(len(batches), int(n_measured.sum()))


def accuracy_window(run: RunResult) -> int:
    """Return the number of batches in a moving average.

    It is the largest of 8, 1 % of all batches, and the number that holds 64 samples.
    """
    return _window(len(run.steps), sum(step.n for step in run.steps))


def _window(n_batches: int, n_samples: int) -> int:
    for_samples = ceil(_MIN_WINDOW_SAMPLES * n_batches / max(1, n_samples))
    return max(_MIN_WINDOW_BATCHES, n_batches // 100, for_samples)


def accuracy_curve(run: RunResult, window: int) -> Curve:
    """Return the accuracy over the last `window` batches, in percent, at each batch."""
    return _moving_percent(_column(run.steps, "n_correct"), _column(run.steps, "n"), window)


def agreement_curves(run: RunResult, window: int) -> tuple[Curve, Curve, Curve]:
    """Return agreement, accuracy where both agree, and accuracy where they differ, in percent.

    A curve has one value per batch with a policy, averaged over the last `window` of these.
    """
    steps = [step for step in run.steps if step.n_measured]
    measured, agreeing, correct_agreeing, correct = (
        _column(steps, name)
        for name in ("n_measured", "n_agreeing", "n_agreeing_correct", "n_correct")
    )
    return (
        _moving_percent(agreeing, measured, window),
        _moving_percent(correct_agreeing, agreeing, window),
        _moving_percent(correct - correct_agreeing, measured - agreeing, window),
    )


def _has_confidence(run: RunResult) -> bool:
    """Return False for results of versions that did not record confidence."""
    return all(step.confidence is not None for step in run.steps)


def confidence_curve(run: RunResult, window: int) -> Curve:
    """Return the mean confidence of the served labels over the last batches, in percent."""
    return _moving_percent(_column(run.steps, "confidence"), _column(run.steps, "n"), window)


def _policy_confidence_curve(run: RunResult, window: int) -> Curve:
    steps = [step for step in run.steps if step.n_measured]
    confidence, measured = _column(steps, "policy_confidence"), _column(steps, "n_measured")
    return _moving_percent(confidence, measured, window)


def _column(steps: Sequence[StepRecord], name: str) -> Curve:
    return np.array([getattr(step, name) for step in steps], dtype=np.float64)


def _moving_percent(part: Curve, whole: Curve, window: int) -> Curve:
    """Divide sums over a sliding window. The value is NaN where the whole is 0."""
    above, below = _moving_sum(part, window), _moving_sum(whole, window)
    percent = np.divide(100 * above, below, out=np.full(len(part), np.nan), where=below > 0)
    return np.asarray(percent)


def _moving_sum(counts: Curve, window: int) -> Curve:
    sums = np.concatenate([[0.0], counts.cumsum()])
    stops = np.arange(1, len(sums))
    return np.asarray(sums[stops] - sums[np.maximum(0, stops - window)])


def _mean_curve(curves: Sequence[Curve]) -> Curve:
    """Return the mean over seeds, up to the end of the shortest curve."""
    length = min(len(curve) for curve in curves)
    return np.asarray(np.mean([curve[:length] for curve in curves], axis=0))


def _thinned_points(length: int) -> NDArray[np.int64]:
    points = np.linspace(0, length - 1, min(length, _MAX_POINTS))
    return np.unique(points.round().astype(np.int64))


def _marker_spacing(length: int, line_index: int) -> tuple[int, int]:
    """Return first point and distance of the markers. Markers of different lines alternate."""
    distance = max(1, length // 9)
    return line_index * distance // 8 % length, distance


def _mark_domains(axes: "Axes", runs: Sequence[RunResult], *, with_names: bool = True) -> None:
    """Draw a line where a domain begins, and its name above.

    Draw nothing if the runs have different orders of domains, or if there are too many domains.
    """
    orders = {tuple(step.domain for step in run.steps) for run in runs}
    if len(orders) > 1 or len(set(domains := orders.pop())) == 1:
        return
    changes = [batch + 1 for batch, (a, b) in enumerate(pairwise(domains)) if a != b]
    edges = [0, *changes, len(domains)]
    if len(edges) > _MAX_MARKED_DOMAINS + 1:
        return
    for edge in changes:
        axes.axvline(edge + 0.5, color=LIGHT_GREY, linewidth=0.8, zorder=1)
    if with_names:
        above = axes.secondary_xaxis("top")
        names = [_domain_label(domains[start]) for start in edges[:-1]]
        above.set_xticks([(a + b + 1) / 2 for a, b in pairwise(edges)], names)
        above.spines["top"].set_visible(False)
        rotation = {} if len(names) <= _MAX_HORIZONTAL_NAMES else {"rotation": 40, "ha": "left"}
        above.tick_params(length=0, pad=1)
        for label in above.get_xticklabels():
            label.set(fontsize=SMALL, rotation_mode="anchor", color=DARK_GREY, **rotation)


def _draw_domain_bars(section: Section) -> "Figure":
    """Draw a group of bars per domain, with the standard deviation over seeds."""
    figure = new_figure(FIGURE_WIDTH, 4.4)
    axes = figure.add_subplot()
    domains, rows = list(section.domain_sizes), section.rows
    width = 0.84 / len(rows)
    styles = line_styles([row.method for row in rows])
    for index, (row, style) in enumerate(zip(rows, styles, strict=True)):
        spreads = [row.accuracy_by_domain[domain] for domain in domains]
        axes.bar(
            np.arange(len(domains)) + (index - (len(rows) - 1) / 2) * width,
            [spread.mean for spread in spreads], width * 0.94,
            yerr=error_bars(spreads),
            error_kw={"elinewidth": 0.8}, label=row_label(row), color=style.colour,
            hatch=_HATCHES[index % len(_HATCHES)], edgecolor="white", linewidth=0,
        )  # fmt: skip
    _label_domains(axes, domains)
    axes.set(ylabel="accuracy (%)", ylim=(0, 100), xlim=(-0.6, len(domains) - 0.4))
    style_axes(axes, grid="y")
    add_legend_below(figure, axes, columns=4)
    return figure


def _draw_domain_map(section: Section) -> "Figure":
    """Draw a heat map of accuracy, or of the difference to the source model if it was run."""
    source = section.source_row
    rows = [row for row in section.rows if row is not source]
    domains = list(section.domain_sizes)
    percent = np.array([[row.accuracy_by_domain[d].mean for d in domains] for row in rows])
    if source is not None:
        percent = percent - np.array([source.accuracy_by_domain[domain].mean for domain in domains])
    figure = new_figure(FIGURE_WIDTH, 1.7 + 0.2 * len(rows))
    axes = figure.add_subplot()
    limit = float(np.abs(percent).max()) or 1.0
    scale = {"cmap": "RdBu", "vmin": -limit, "vmax": limit} if source else {"cmap": "cividis"}
    image = axes.imshow(percent, aspect="auto", interpolation="nearest", **scale)
    for (line, column), value in np.ndenumerate(percent):
        red, green, blue, _ = image.cmap(image.norm(value))
        is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        axes.text(
            column, line, _signed_points(value) if source else f"{value:.0f}", ha="center",
            va="center", fontsize=7, color="white" if is_dark else "black",
        )  # fmt: skip
    _label_domains(axes, domains)
    axes.set_yticks(range(len(rows)), [row_label(row) for row in rows])
    axes.tick_params(labelsize=SMALL, length=0)
    axes.spines[:].set_visible(False)
    return figure


def _signed_points(value: float) -> str:
    whole = round(value)
    return f"{whole:+d}".replace("-", "−") if whole else "0"


def _domain_label(domain: str) -> str:
    return escape_dollars(domain.replace("_", " "))


def _label_domains(axes: "Axes", domains: Sequence[str]) -> None:
    axes.set_xticks(range(len(domains)), [_domain_label(domain) for domain in domains])
    if len(domains) > _MAX_HORIZONTAL_NAMES:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
