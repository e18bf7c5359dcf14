"""How fast methods ran: a table, and how time grows."""

from collections.abc import Mapping, Sequence
from typing import Any

from bitta.metrics import DOES_NOT_FIT, SpeedCase, SpeedMeasurement, find_scaling_curves

_COLUMNS = {
    "method": "method", "model": "model", "n_classes": "classes", "size": "px", "batch": "batch",
    "n_queries": "asked", "memory": "memory", "passes": "N", "epochs": "E",
}  # fmt: skip
"""Fields of a case and what they are called in a table."""
_MEASURED = (
    "ms", "p25-p75", "images/s", "serve ms", "peak MB", "forwards", "backwards", "GFLOP",
    "of matmul",
)  # fmt: skip


def speed_rows(measurements: Sequence[SpeedMeasurement]) -> list[list[str]]:
    """A header and a row per case; what all cases share is left to `heading_lines`."""
    varying = _varying(measurements)
    header = [*(_COLUMNS[name] for name in varying), *_MEASURED]
    return [header, *([*_case_cells(m.case, varying), *_cells(m)] for m in measurements)]


def heading_lines(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """The path that ran, and what all cases have in common."""
    paths = dict.fromkeys(m.execution for m in measurements if m.execution)
    varying = _varying(measurements)
    case = measurements[0].case
    common = [f"{_COLUMNS[n]} {getattr(case, n)}" for n in _COLUMNS if n not in varying]
    return [line for line in ("; ".join(paths), ", ".join(common)) if line]


def growth_lines(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """How time grows along each axis that was measured at three places or more."""
    lines = []
    for curve in find_scaling_curves(measurements):
        title, points = _COLUMNS[curve.axis], curve.points
        lines.append(
            f"{curve.method} grows like {title}^{curve.exponent:.2f} from {points[0][0]} to "
            f"{points[-1][0]}, like {title}^{curve.last_exponent:.2f} from {points[-2][0]} on"
        )
    return lines


def failure_lines(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """Why a case was not measured, where it takes more words than a table has room for."""
    failed = [m for m in measurements if m.failure not in ("", DOES_NOT_FIT)]
    return [f"{m.case.method} on {m.case.model}: {m.failure}" for m in failed]


def speed_page(
    measurements: Sequence[SpeedMeasurement],
    *,
    environment: Mapping[str, Any],
    matmul: Mapping[str, float],
) -> str:
    """The same in Markdown, with the machine it was measured on."""
    rows = speed_rows(measurements)
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    table = ["| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]]]
    notes = [f"* {line}" for line in (*growth_lines(measurements), *failure_lines(measurements))]
    heading = [machine_line(environment, matmul), *heading_lines(measurements)]
    return "\n".join(["  \n".join(heading), "", *table, *([""] if notes else []), *notes]) + "\n"


def machine_line(environment: Mapping[str, Any], matmul: Mapping[str, float]) -> str:
    """Device, versions and the device's own rate."""
    where = f"{environment['device']}, CPU threads {environment['threads']}"
    rates = [
        f", {rate / 1e12:.3g} TFLOP/s {precision} matmul" for precision, rate in matmul.items()
    ]
    return f"{where}, torch {environment['torch']}, bitta {environment['bitta']}{''.join(rates)}"


def _varying(measurements: Sequence[SpeedMeasurement]) -> list[str]:
    """The fields to show: the method, and whatever is not the same in all cases."""
    cases = [measurement.case for measurement in measurements]
    first = cases[0]
    return [
        name
        for name in _COLUMNS
        if name == "method" or any(getattr(case, name) != getattr(first, name) for case in cases)
    ]


def _case_cells(case: SpeedCase, names: Sequence[str]) -> list[str]:
    return [str(getattr(case, name)) for name in names]


def _cells(m: SpeedMeasurement) -> list[str]:
    if m.failure:
        said = DOES_NOT_FIT if m.failure == DOES_NOT_FIT else "not measured"
        return [said, *["-"] * (len(_MEASURED) - 1)]
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
