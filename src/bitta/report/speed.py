"""Report of a speed measurement: table, Markdown page and plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitta.report.plot_style import method_style, new_figure
from bitta.speed_records import (
    DOES_NOT_FIT,
    SCALING_AXES,
    ScalingCurve,
    SpeedMeasurement,
    find_scaling_curves,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CASE_COLUMNS = {
    "method": "method", "model": "model", "n_classes": "classes", "size": "px", "batch": "batch",
    "n_queries": "asked", "memory": "memory", "passes": "N", "epochs": "E",
}  # fmt: skip
"""Column titles of the fields of a case."""
_MEASURED_COLUMNS = (
    "ms", "p25-p75", "images/s", "serve ms", "peak MB", "forwards", "backwards", "GFLOP",
    "of matmul",
)  # fmt: skip
_AXIS_LABELS = {
    "batch": "images per batch",
    "memory": "capacity of each memory",
    "n_classes": "classes",
    "passes": "MC-dropout passes N",
}
_MAX_PANEL_COLUMNS = 3


def speed_rows(measurements: Sequence[SpeedMeasurement]) -> list[list[str]]:
    """Return a header and a row per case, without columns that are equal in all cases."""
    fields = _table_fields(measurements)
    header = [*(_CASE_COLUMNS[name] for name in fields), *_MEASURED_COLUMNS]
    rows = [[*(str(getattr(m.case, name)) for name in fields), *_cells(m)] for m in measurements]
    return [header, *rows]


def heading_lines(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """Return the execution path, and the fields that are equal in all cases."""
    paths = dict.fromkeys(m.execution for m in measurements if m.execution)
    fields = _table_fields(measurements)
    case = measurements[0].case
    common = [f"{_CASE_COLUMNS[n]} {getattr(case, n)}" for n in _CASE_COLUMNS if n not in fields]
    return [line for line in ("; ".join(paths), ", ".join(common)) if line]


def growth_lines(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """Return a sentence on the growth of time along each axis with three or more points."""
    lines = []
    for curve in find_scaling_curves(measurements):
        title, points = _CASE_COLUMNS[curve.axis], curve.points
        lines.append(
            f"time of {curve.method} grows like {title}^{curve.exponent:.2f} from "
            f"{points[0][0]} to {points[-1][0]}, like {title}^{curve.last_exponent:.2f} from "
            f"{points[-2][0]} on"
        )
    return lines


def failure_lines(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """Return the reasons why cases failed, except for cases that do not fit into memory."""
    failed = [m for m in measurements if m.failure not in ("", DOES_NOT_FIT)]
    return [f"{m.case.method} on {m.case.model}: {m.failure}" for m in failed]


def speed_page(
    measurements: Sequence[SpeedMeasurement],
    *,
    environment: Mapping[str, Any],
    matmul: Mapping[str, float],
) -> str:
    """Return a Markdown page with machine, table, growth and failures."""
    rows = speed_rows(measurements)
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    table = ["| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]]]
    notes = [f"* {line}" for line in (*growth_lines(measurements), *failure_lines(measurements))]
    heading = [machine_line(environment, matmul), *heading_lines(measurements)]
    return "\n".join(["  \n".join(heading), "", *table, *([""] if notes else []), *notes]) + "\n"


def machine_line(environment: Mapping[str, Any], matmul: Mapping[str, float]) -> str:
    """Return device, versions and the matmul rate of the device."""
    device = f"{environment['device']}, CPU threads {environment['threads']}"
    rates = [
        f", {rate / 1e12:.3g} TFLOP/s {precision} matmul" for precision, rate in matmul.items()
    ]
    return f"{device}, torch {environment['torch']}, bitta {environment['bitta']}{''.join(rates)}"


def write_speed_plot(
    measurements: Sequence[SpeedMeasurement], path: str | Path, *, title: str
) -> None:
    """Write an image of the median time per batch with its quartiles.

    Each scaling axis has a panel of curves. The other measurements are bars.
    """
    curves = find_scaling_curves(measurements)
    others = _measurements_for_bars(measurements, curves)
    scaling_axes = list(dict.fromkeys(curve.axis for curve in curves))
    n_panels = max(1, len(scaling_axes) + bool(others))
    n_columns = min(n_panels, _MAX_PANEL_COLUMNS)
    n_rows = -(-n_panels // n_columns)
    figure = new_figure(max(6.5, 4.2 * n_columns), 3.8 * n_rows)
    for index, axis in enumerate(scaling_axes):
        panel = figure.add_subplot(n_rows, n_columns, index + 1)
        _draw_curves(panel, [curve for curve in curves if curve.axis == axis])
    if others:
        _draw_bars(figure.add_subplot(n_rows, n_columns, n_panels), others)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=130)


def _table_fields(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """Return the method and the fields that are not equal in all cases."""
    cases = [measurement.case for measurement in measurements]
    return [
        name
        for name in _CASE_COLUMNS
        if name == "method" or any(getattr(case, name) != getattr(cases[0], name) for case in cases)
    ]


def _cells(m: SpeedMeasurement) -> list[str]:
    if m.failure:
        reason = DOES_NOT_FIT if m.failure == DOES_NOT_FIT else "not measured"
        return [reason, *["-"] * (len(_MEASURED_COLUMNS) - 1)]
    return [
        f"{m.ms:.2f}",
        f"{m.ms_p25:.2f}-{m.ms_p75:.2f}",
        f"{m.images_per_second:.0f}",
        f"{m.serve_ms:.2f}",
        f"{m.peak_memory / 1e6:.0f}",
        str(m.forwards),
        str(m.backwards),
        f"{m.flops / 1e9:.1f}",
        f"{100 * m.matmul_share:.1f} %",
    ]


def _measurements_for_bars(
    measurements: Sequence[SpeedMeasurement], curves: Sequence[ScalingCurve]
) -> list[SpeedMeasurement]:
    """Return the measurements outside all curves, and those of the same shape to compare with."""

    def shape(m: SpeedMeasurement) -> tuple[object, ...]:
        return tuple(getattr(m.case, name) for name in ("model", "size", *SCALING_AXES))

    in_curves = [measurement for curve in curves for measurement in curve.measurements]
    shapes = {shape(m) for m in measurements if m not in in_curves}
    return [m for m in measurements if not m.failure and shape(m) in shapes]


def _draw_curves(panel: "Axes", curves: Sequence[ScalingCurve]) -> None:
    positions = sorted({position for curve in curves for position, _ in curve.points})
    for curve in curves:
        style = method_style(curve.method)
        panel.errorbar(
            [position for position, _ in curve.points],
            [ms for _, ms in curve.points],
            yerr=_quartile_distances(curve.measurements),
            label=f"{curve.method} ~ {curve.axis.removeprefix('n_')}^{curve.exponent:.2f}",
            color=style.colour,
            linestyle=style.dash,
            marker=style.marker,
            capsize=3,
        )
    label = _AXIS_LABELS[curves[0].axis]
    panel.set(xscale="log", yscale="log", xlabel=label, ylabel="ms per batch")
    times = [ms for curve in curves for _, ms in curve.points]
    # The margin keeps a flat curve flat. Without it, the axis would magnify noise.
    panel.set_ylim(min(times) / 2, max(times) * 2)
    panel.set_xticks(positions, [str(position) for position in positions], minor=False)
    panel.set_xticks([], minor=True)
    panel.grid(alpha=0.3, which="both")
    panel.legend(frameon=False)


def _draw_bars(panel: "Axes", measurements: Sequence[SpeedMeasurement]) -> None:
    colours = [method_style(m.case.method).colour for m in measurements]
    times = [measurement.ms for measurement in measurements]
    positions = range(len(measurements))
    errors = _quartile_distances(measurements)
    panel.barh(positions, times, xerr=errors, color=colours, capsize=3)
    for position, measurement in zip(positions, measurements, strict=True):
        ms = measurement.ms
        panel.annotate(
            f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}", (max(ms, measurement.ms_p75), position),
            xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    panel.set_yticks(positions, _bar_labels(measurements), fontsize=8)
    panel.invert_yaxis()
    # The margins leave space for the shortest bar and for the number of the longest.
    panel.set(xlabel="ms per batch", xscale="log", xlim=(min(times) / 3, max(times) * 3))
    panel.grid(alpha=0.3, axis="x")
    panel.set_axisbelow(True)


def _bar_labels(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """Return the methods, with model and number of classes if these differ."""
    if len({(m.case.model, m.case.n_classes) for m in measurements}) == 1:
        return [m.case.method for m in measurements]
    return [f"{m.case.method}, {m.case.model} ({m.case.n_classes})" for m in measurements]


def _quartile_distances(measurements: Sequence[SpeedMeasurement]) -> list[list[float]]:
    """Return the distances from the median to the first and to the third quartile."""
    return [[m.ms - m.ms_p25 for m in measurements], [m.ms_p75 - m.ms for m in measurements]]
