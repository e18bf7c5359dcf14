"""bitta speed: measure the speed of methods on this machine, with random images."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bitta.bench.models import device_named
from bitta.bench.speed import (
    SPEED_GRIDS,
    SpeedConditions,
    SpeedResult,
    matmul_rate,
    measure_speed,
    speed_cases,
)
from bitta.cli.arguments import add_device_argument, add_precision_arguments
from bitta.cli.progress import show_progress
from bitta.config_base import require
from bitta.errors import InputError
from bitta.nn import Execution
from bitta.report import (
    failure_lines,
    growth_lines,
    heading_lines,
    machine_line,
    speed_page,
    speed_rows,
    text_table,
    write_speed_plot,
)
from bitta.results import describe_environment
from bitta.speed_records import SpeedCase, SpeedMeasurement
from bitta.statefile import check_writable, write_atomically

_CASE_OPTIONS = {
    "classes": ("n_classes", "number of classes"),
    "size": ("size", "side of the images in pixels"),
    "batch": ("batch", "images per batch"),
    "queries": ("n_queries", "questions per batch"),
    "capacity": ("memory", "capacity of each memory"),
    "passes": ("passes", "number of MC-dropout passes"),
    "epochs": ("epochs", "updates per batch"),
}
"""Options that change a field of every measured case: the field, and the help text."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "grids:\n" + "\n".join(
        f"  {name:<14} {grid.summary}" + (f": {_join(grid.values)}" if grid.values else "")
        for name, grid in SPEED_GRIDS.items()
    )
    parser.add_argument(
        "--grid",
        action="append",
        metavar="NAME",
        help="grid of cases, or all (repeatable; default: default)",
    )
    parser.add_argument(
        "--methods",
        default="",
        metavar="A,B",
        help="use these methods instead of those of the grid",
    )
    parser.add_argument("--model", help="architecture, such as resnet8")
    for option, (_, meaning) in _CASE_OPTIONS.items():
        parser.add_argument(f"--{option}", type=int, metavar="N", help=meaning)
    add_device_argument(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="number of CPU threads")
    add_precision_arguments(parser)
    parser.add_argument(
        "--memory",
        choices=("full", "low"),
        default="full",
        help="low keeps the activations of one stochastic pass at a time (default: full)",
    )
    parser.add_argument(
        "--batches", type=int, default=20, metavar="N", help="number of timed batches (default: 20)"
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        default=5,
        metavar="N",
        help="number of batches before the timing (default: 5)",
    )
    parser.add_argument(
        "--out",
        default="bitta-speed",
        metavar="DIR",
        help="folder for table, plot and result (default: bitta-speed)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measure every case. Print a table, and write it with the measurements and a plot."""
    cases, conditions = _read_cases(arguments)
    out = Path(arguments.out)
    check_writable(out)
    if arguments.threads is not None:
        require(arguments.threads >= 1, "--threads", arguments.threads, "1 or more")
        torch.set_num_threads(arguments.threads)
    progress = _SpeedProgress(conditions, out / "speed.json", _given_options(arguments))
    is_stopped = False
    try:
        _measure_cases(cases, progress)
    except KeyboardInterrupt:
        is_stopped = True
        print(f"stopped after {len(progress.measurements)} of {len(cases)} cases.", file=sys.stderr)
    if progress.measurements:
        _write_report(progress.result, out)
    return 130 if is_stopped else 0


@dataclass
class _SpeedProgress:
    """Measurements so far, and the conditions they share."""

    conditions: SpeedConditions
    path: Path
    settings: dict[str, Any]
    matmul: dict[str, float] = field(default_factory=dict)
    """Rate of matrix products by precision."""
    measurements: list[SpeedMeasurement] = field(default_factory=list)

    @property
    def result(self) -> SpeedResult:
        return SpeedResult(
            environment=describe_environment(self.conditions.device, "random"),
            settings={**self.settings, **self.conditions.as_table()},
            matmul=self.matmul,
            measurements=self.measurements,
        )

    def matmul_rate(self, execution: Execution) -> float:
        """Return the rate of matrix products of this machine, measured once per precision."""
        if execution.precision not in self.matmul:
            self.matmul[execution.precision] = matmul_rate(self.conditions.device, execution)
        return self.matmul[execution.precision]


def _read_cases(arguments: argparse.Namespace) -> tuple[list[SpeedCase], SpeedConditions]:
    changes = {name: getattr(arguments, option) for option, (name, _) in _CASE_OPTIONS.items()}
    changes["model"] = arguments.model
    cases = speed_cases(
        arguments.grid or ["default"],
        methods=[name.strip() for name in arguments.methods.split(",") if name.strip()],
        changes={name: value for name, value in changes.items() if value is not None},
    )
    conditions = SpeedConditions(
        device=device_named(arguments.device),
        eager=arguments.eager,
        precision=arguments.precision,
        memory=arguments.memory,
        batches=arguments.batches,
        warm_up=arguments.warm_up,
    )
    return cases, conditions


def _given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, for the result file."""
    names = ("grid", "methods", "model", "threads", *_CASE_OPTIONS)
    options = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in options.items() if value not in (None, "")}


def _measure_cases(cases: Sequence[SpeedCase], progress: _SpeedProgress) -> None:
    with show_progress(unit="case") as display:
        for done, case in enumerate(cases, start=1):
            measurement = measure_speed(case, progress.conditions, rate=progress.matmul_rate)
            progress.measurements.append(measurement)
            progress.result.save(progress.path)
            note = measurement.failure or f"{measurement.ms:.1f} ms per batch"
            display.update("speed", done, len(cases), f"{_case_label(case)}: {note}")


def _write_report(result: SpeedResult, out: Path) -> None:
    measurements = result.measurements
    print()
    print(machine_line(result.environment, result.matmul))
    for line in heading_lines(measurements):
        print(line)
    print()
    print(text_table(speed_rows(measurements)))
    print()
    for line in (*growth_lines(measurements), *failure_lines(measurements)):
        print(line)
    page = speed_page(measurements, environment=result.environment, matmul=result.matmul)
    write_atomically(out / "speed.md", page.encode())
    try:
        write_speed_plot(measurements, out / "speed.png", title=str(result.environment["device"]))
    except InputError as error:
        print(f"no plot: {error}")
    else:
        print(f"plot:   {out / 'speed.png'}")
    print(f"table:  {out / 'speed.md'}")
    print(f"result: {out / 'speed.json'}")


def _case_label(case: SpeedCase) -> str:
    return f"{case.method} {case.model} batch {case.batch}"


def _join(values: Sequence[int | str]) -> str:
    return ", ".join(map(str, values))
