"""Time per batch as a picture: a panel per axis that was measured along, bars for the rest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bitta.metrics import SCALING_AXES, ScalingCurve, SpeedMeasurement, find_scaling_curves
from bitta.report.style import look_of, new_figure

_TITLES = {
    "batch": "images per batch",
    "memory": "capacity of each memory",
    "n_classes": "classes",
    "passes": "MC-dropout passes N",
}
_MOST_COLUMNS = 3


def plot_speed(measurements: Sequence[SpeedMeasurement], path: str | Path, *, title: str) -> None:
    """Median time per batch with its quartiles."""
    curves = find_scaling_curves(measurements)
    rest = _outside(measurements, curves)
    axes_measured = list(dict.fromkeys(curve.axis for curve in curves))
    n_panels = max(1, len(axes_measured) + bool(rest))
    n_columns = min(n_panels, _MOST_COLUMNS)
    n_rows = -(-n_panels // n_columns)
    figure = new_figure(max(6.5, 4.2 * n_columns), 3.8 * n_rows)
    for place, axis in enumerate(axes_measured):
        panel = figure.add_subplot(n_rows, n_columns, place + 1)
        _draw_curves(panel, [curve for curve in curves if curve.axis == axis])
    if rest:
        _draw_bars(figure.add_subplot(n_rows, n_columns, n_panels), rest)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _outside(
    measurements: Sequence[SpeedMeasurement], curves: Sequence[ScalingCurve]
) -> list[SpeedMeasurement]:
    """What no curve shows, and what of the curves it is to be compared with."""

    def shape(m: SpeedMeasurement) -> tuple[object, ...]:
        return tuple(getattr(m.case, name) for name in ("model", "size", *SCALING_AXES))

    drawn = [measurement for curve in curves for measurement in curve.measurements]
    shapes = {shape(m) for m in measurements if m not in drawn}
    return [m for m in measurements if not m.failure and shape(m) in shapes]


def _draw_curves(panel: Any, curves: Sequence[ScalingCurve]) -> None:
    places = sorted({place for curve in curves for place, _ in curve.points})
    for curve in curves:
        look = look_of(curve.method)
        panel.errorbar(
            [place for place, _ in curve.points],
            [ms for _, ms in curve.points],
            yerr=_spread(curve.measurements),
            label=f"{curve.method} ~ {curve.axis.removeprefix('n_')}^{curve.exponent:.2f}",
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker,
            capsize=3,
        )
    panel.set(xscale="log", yscale="log", xlabel=_TITLES[curves[0].axis], ylabel="ms per batch")
    times = [ms for curve in curves for _, ms in curve.points]
    # What hardly grows should look flat, not have its noise magnified.
    panel.set_ylim(min(times) / 2, max(times) * 2)
    panel.set_xticks(places, [str(place) for place in places], minor=False)
    panel.set_xticks([], minor=True)
    panel.grid(alpha=0.3, which="both")
    panel.legend(frameon=False)


def _draw_bars(panel: Any, measurements: Sequence[SpeedMeasurement]) -> None:
    colours = [look_of(m.case.method).colour for m in measurements]
    heights = [measurement.ms for measurement in measurements]
    places = range(len(measurements))
    panel.barh(places, heights, xerr=_spread(measurements), color=colours, capsize=3)
    for place, measurement in zip(places, measurements, strict=True):
        ms = measurement.ms
        panel.annotate(
            f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}", (max(ms, measurement.ms_p75), place),
            xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    panel.set_yticks(places, _names(measurements), fontsize=8)
    panel.invert_yaxis()
    # Logarithmic, with room for a bar to the left of the shortest and a number to the right.
    panel.set(xlabel="ms per batch", xscale="log", xlim=(min(heights) / 3, max(heights) * 3))
    panel.grid(alpha=0.3, axis="x")
    panel.set_axisbelow(True)


def _names(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """The method, and the model with its classes where there are several."""
    if len({(m.case.model, m.case.n_classes) for m in measurements}) == 1:
        return [m.case.method for m in measurements]
    return [f"{m.case.method}, {m.case.model} ({m.case.n_classes})" for m in measurements]


def _spread(measurements: Sequence[SpeedMeasurement]) -> list[list[float]]:
    """From the median down to the first quartile and up to the third."""
    return [[m.ms - m.ms_p25 for m in measurements], [m.ms_p75 - m.ms for m in measurements]]
