"""Accuracy, agreement with the policy, and confidence along the stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bitta.report.style import (
    BLUE,
    DARK_GREY,
    NORMAL,
    RULE,
    SMALL,
    VERMILION,
    WIDE,
    Look,
    dress,
    legend_below,
    literal,
    looks_of,
    new_figure,
)
from bitta.results import RunResult, StepRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_WINDOW = 8
_LEAST_SAMPLES = 64
"""In a mean along the stream: so many batches, and samples in them."""
_MOST_POINTS = 400
"""Of a line; more cannot be seen and only make a page large."""
_MOST_NAMES = 20
"""Of domains along an axis."""
_LONG_NAMES = 5
"""As many domains have room for their names side by side."""

Curve: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """Runs that make one line, a mean over seeds."""

    label: str
    look: Look
    runs: Sequence[RunResult]


def plot_accuracy(results: Mapping[str, RunResult], path: str | Path, *, title: str) -> None:
    """Write a picture of accuracy over time, one line per method."""
    looks = looks_of([_method(name, result) for name, result in results.items()])
    lines = [
        Line(f"{literal(name)} ({result.accuracy:.1f} %)", look, [result])
        for (name, result), look in zip(results.items(), looks, strict=True)
    ]
    figure = accuracy_figure(lines, height=4.5, width=8)
    figure.axes[0].set(ylim=(0, 100))
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def accuracy_figure(lines: Sequence[Line], *, width: float = WIDE, height: float = 4.6) -> "Figure":
    """Accuracy over time: a mean over the last batches and over seeds, domains marked."""
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    window = window_of(lines[0].runs[0])
    for number, line in enumerate(lines):
        curve = _mean([accuracy_curve(run, window) for run in line.runs])
        places = _places(len(curve))
        axes.plot(
            places + 1, curve[places], label=line.label, color=line.look.colour,
            linestyle=line.look.dash, linewidth=line.look.width, zorder=2 + line.look.width,
            marker=line.look.marker, markersize=5, markevery=_marks(len(places), number),
        )  # fmt: skip
    axes.set(xlabel="batch", ylabel=f"accuracy, last {window} batches (%)")
    dress(axes, grid="y")
    _mark_domains(axes, [run for line in lines for run in line.runs])
    legend_below(figure, axes, columns=4)
    return figure


def agreement_figure(rows: Mapping[str, Sequence[RunResult]]) -> "Figure":
    """Per row: how often policy and model agree, and what is right where they do and do not."""
    figure, panels = _panels(rows)
    for axes, runs in zip(panels, rows.values(), strict=True):
        measured, window = _measured(runs[0])
        curves = zip(*(agreement_curves(run, window) for run in runs), strict=True)
        for stroke, of_seeds in zip(_AGREEMENT, curves, strict=True):
            _draw(axes, measured, _mean(list(of_seeds)), stroke)
        what = "batches" if len(measured) == len(runs[0].steps) else "measured"
        axes.set(ylabel=f"%, last {window} {what}")
    _finish(figure, panels, rows)
    return figure


def confidence_figure(rows: Mapping[str, Sequence[RunResult]]) -> "Figure":
    """Per row: how sure the model is of what it serves and the policy, where there is one."""
    figure, panels = _panels(rows)
    for axes, runs in zip(panels, rows.values(), strict=True):
        window = window_of(runs[0])
        served = _mean([confidence_curve(run, window) for run in runs])
        _draw(axes, np.arange(len(served)), served, _SERVED)
        measured, apart = _measured(runs[0])
        if len(measured):
            policy = _mean([policy_confidence_curve(run, apart) for run in runs])
            _draw(axes, measured, policy, _POLICY)
        axes.set(ylabel=f"%, last {window} batches")
    _finish(figure, panels, rows)
    return figure


_AGREEMENT = (
    ("samples that agree", DARK_GREY, "dotted"),
    ("right where they agree", BLUE, "solid"),
    ("right where they do not", VERMILION, "dashed"),
)
_SERVED = ("confidence in what is served", BLUE, "solid")
_POLICY = ("confidence of the policy π", VERMILION, "dashed")


def _panels(rows: Mapping[str, Sequence[RunResult]]) -> tuple["Figure", list["Axes"]]:
    """One below the other, a row each."""
    figure = new_figure(WIDE, 1.0 + 2.2 * len(rows))
    panels = figure.subplots(len(rows), sharex=True, sharey=True, squeeze=False)[:, 0]
    return figure, list(panels)


def _draw(
    axes: "Axes", batches: NDArray[np.int64], curve: Curve, stroke: tuple[str, str, str]
) -> None:
    """A curve with a value at each of these batches."""
    label, colour, dash = stroke
    places = _places(len(curve))
    axes.plot(
        batches[places] + 1, curve[places], label=label, color=colour, linestyle=dash,
        linewidth=1.6,
    )  # fmt: skip


def _finish(
    figure: "Figure", panels: Sequence["Axes"], rows: Mapping[str, Sequence[RunResult]]
) -> None:
    """What all panels have, once their curves are there."""
    for axes, (name, runs) in zip(panels, rows.items(), strict=True):
        axes.set_title(name, loc="left", fontsize=NORMAL)
        axes.set(ylim=(0, 100))
        dress(axes, grid="y")
        _mark_domains(axes, runs, named=axes is panels[0])
    panels[-1].set_xlabel("batch")
    legend_below(figure, *panels, columns=3)


def _measured(run: RunResult) -> tuple[NDArray[np.int64], int]:
    """Batches where the policy was computed, and how many of these are in a mean."""
    n_samples = _column(run.steps, "n_measured")
    measured = np.flatnonzero(n_samples)
    return measured, _window(len(measured), int(n_samples.sum()))


def window_of(run: RunResult) -> int:
    """Batches in a mean: more for a longer stream."""
    return _window(len(run.steps), sum(step.n for step in run.steps))


def _window(n_batches: int, n_samples: int) -> int:
    enough = ceil(_LEAST_SAMPLES * n_batches / max(1, n_samples))
    return max(_LEAST_WINDOW, n_batches // 100, enough)


def accuracy_curve(run: RunResult, window: int) -> Curve:
    """Percent right of the last batches, at each batch."""
    return _percent(_column(run.steps, "n_correct"), _column(run.steps, "n"), window)


def agreement_curves(run: RunResult, window: int) -> tuple[Curve, Curve, Curve]:
    """Percent that agree, right of those that do, right of those that do not.

    At each batch where the policy was computed, over the last `window` of these.
    """
    steps = [step for step in run.steps if step.n_measured]
    measured, agreeing, right_agreeing, right = (
        _column(steps, name)
        for name in ("n_measured", "n_agreeing", "n_agreeing_correct", "n_correct")
    )
    return (
        _percent(agreeing, measured, window),
        _percent(right_agreeing, agreeing, window),
        _percent(right - right_agreeing, measured - agreeing, window),
    )


def has_confidence(run: RunResult) -> bool:
    """Results from before it was recorded have none."""
    return all(step.confidence is not None for step in run.steps)


def confidence_curve(run: RunResult, window: int) -> Curve:
    """Mean confidence in percent of what the last batches were served, at each batch."""
    return _percent(_column(run.steps, "confidence"), _column(run.steps, "n"), window)


def policy_confidence_curve(run: RunResult, window: int) -> Curve:
    """That of the policy, at each batch where it was computed, over the last of these."""
    steps = [step for step in run.steps if step.n_measured]
    return _percent(_column(steps, "policy_confidence"), _column(steps, "n_measured"), window)


def _column(steps: Sequence[StepRecord], name: str) -> Curve:
    return np.array([getattr(step, name) for step in steps], dtype=np.float64)


def _percent(part: Curve, whole: Curve, window: int) -> Curve:
    """Of sums over a sliding window; no number where there was nothing."""
    above, below = _last(part, window), _last(whole, window)
    percent = np.divide(100 * above, below, out=np.full(len(part), np.nan), where=below > 0)
    return np.asarray(percent)


def _last(counts: Curve, window: int) -> Curve:
    """Sum of the last `window` counts at each place."""
    sums = np.concatenate([[0.0], counts.cumsum()])
    stops = np.arange(1, len(sums))
    return np.asarray(sums[stops] - sums[np.maximum(0, stops - window)])


def _mean(curves: Sequence[Curve]) -> Curve:
    """Over seeds, as far as the shortest goes."""
    length = min(len(curve) for curve in curves)
    return np.asarray(np.mean([curve[:length] for curve in curves], axis=0))


def _places(length: int) -> NDArray[np.int64]:
    """Where a line has its points: all of them, or as many as can be seen."""
    places = np.linspace(0, length - 1, min(length, _MOST_POINTS))
    return np.unique(places.round().astype(np.int64))


def _marks(length: int, number: int) -> tuple[int, int]:
    """First and step of the markers on a line; those of other lines lie between."""
    step = max(1, length // 9)
    return number * step // 8 % length, step


def _mark_domains(axes: "Axes", runs: Sequence[RunResult], *, named: bool = True) -> None:
    """Lines where a domain begins, and its name above; nothing if runs saw them differently."""
    orders = {tuple(step.domain for step in run.steps) for run in runs}
    if len(orders) > 1 or len(set(domains := orders.pop())) == 1:
        return
    changes = [place + 1 for place, (a, b) in enumerate(pairwise(domains)) if a != b]
    edges = [0, *changes, len(domains)]
    if len(edges) > _MOST_NAMES + 1:
        return
    for edge in changes:
        axes.axvline(edge + 0.5, color=RULE, linewidth=0.8, zorder=1)
    if named:
        above = axes.secondary_xaxis("top")
        names = [literal(domains[start].replace("_", " ")) for start in edges[:-1]]
        above.set_xticks([(a + b + 1) / 2 for a, b in pairwise(edges)], names)
        above.spines["top"].set_visible(False)
        tilted = {} if len(names) <= _LONG_NAMES else {"rotation": 40, "ha": "left"}
        above.tick_params(length=0, pad=1)
        for label in above.get_xticklabels():
            label.set(fontsize=SMALL, rotation_mode="anchor", color=DARK_GREY, **tilted)


def _method(name: str, result: RunResult) -> str:
    return str(result.experiment.get("method", {}).get("name", name))
