"""Plots, in one colour-blind-safe style."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bitta.errors import InputError
from bitta.results import RunResult, percent_right

# Okabe & Ito, 2008; dark to light where lines must also differ in grey.
COLOURS = ("#999999", "#56B4E9", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#0072B2")
DASHES = ("dotted", "dashdot", "dashed", "solid")
_WINDOW = 8


def plot_accuracy(results: Mapping[str, RunResult], path: str | Path, *, title: str) -> None:
    """Accuracy over time, one line per method: a mean over the last eight batches."""
    figure = new_figure(8, 4.5)
    axes = figure.add_subplot()
    for place, (name, result) in enumerate(results.items()):
        axes.plot(
            range(1, len(result.steps) + 1),
            _smooth(result),
            label=f"{name} ({result.accuracy:.1f} %)",
            color=COLOURS[place % len(COLOURS)],
            linestyle=DASHES[place % len(DASHES)],
            linewidth=2.2 if name == "BiTTA" else 1.6,
        )
    _mark_domains(axes, next(iter(results.values())))
    axes.set(xlabel="batch", ylabel=f"accuracy, last {_WINDOW} batches (%)", title=title)
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=130)


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, loaded when needed)
    except ImportError:
        raise InputError(
            'plots need matplotlib; install it with pip install "bitta[report]".'
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def _smooth(result: RunResult) -> list[float]:
    steps = result.steps
    return [
        percent_right(steps[max(0, stop - _WINDOW) : stop]) for stop in range(1, len(steps) + 1)
    ]


def _mark_domains(axes: Any, result: RunResult) -> None:
    starts = [0] + [
        place + 1
        for place, (before, after) in enumerate(pairwise(result.steps))
        if before.domain != after.domain
    ]
    if len(starts) == 1:
        return
    for start in starts:
        axes.axvline(start + 0.5, color="#dddddd", zorder=0)
        axes.text(
            start + 1, 97, result.steps[start].domain.replace("_", "\n"), fontsize=8, va="top"
        )
