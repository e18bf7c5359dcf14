"""bitta speed: measure how fast methods run on this machine, on random tensors."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch

from bitta.bench.device import device_named
from bitta.bench.grids import GRIDS, cases_of
from bitta.bench.matmul import matmul_rate
from bitta.bench.speed import Conditions, measure
from bitta.bench.speed_result import SpeedResult
from bitta.cli.display import progress
from bitta.config import require
from bitta.errors import InputError
from bitta.metrics import SpeedCase, SpeedMeasurement
from bitta.nn import Execution, Precision
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
from bitta.results import environment
from bitta.statefile import check_writable, write_atomically

_CHANGES = {
    "classes": ("n_classes", "classes the model tells apart"),
    "size": ("size", "side of the images, in pixels"),
    "batch": ("batch", "images per batch"),
    "queries": ("n_queries", "questions per batch"),
    "capacity": ("memory", "capacity of each memory"),
    "passes": ("passes", "MC-dropout passes N"),
    "epochs": ("epochs", "steps E on each batch"),
}
"""Options that change a field of every case."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "grids:\n" + "\n".join(
        f"  {name:<14} {grid.summary}" + (f": {_listed(grid.values)}" if grid.values else "")
        for name, grid in GRIDS.items()
    )
    parser.add_argument(
        "--grid",
        action="append",
        metavar="NAME",
        help="what to time, or all (repeatable; default: default)",
    )
    parser.add_argument(
        "--methods", default="", metavar="A,B", help="instead of each grid's own methods"
    )
    parser.add_argument("--model", help="architecture, such as resnet8")
    for option, (_, meaning) in _CHANGES.items():
        parser.add_argument(f"--{option}", type=int, metavar="N", help=meaning)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU")
    parser.add_argument("--eager", action="store_true", help="the plain path")
    parser.add_argument(
        "--precision", choices=get_args(Precision), default="auto", help="(default: auto)"
    )
    parser.add_argument(
        "--memory",
        choices=("full", "low"),
        default="full",
        help="what training keeps for its gradient (default: full)",
    )
    parser.add_argument(
        "--batches", type=int, default=20, metavar="N", help="how many are timed (default: 20)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=5, metavar="N", help="how many go before (default: 5)"
    )
    parser.add_argument(
        "--out", default="bitta-speed", metavar="DIR", help="(default: bitta-speed)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Time every case; show a table, write it with the measurements and a plot."""
    cases, conditions = _asked(arguments)
    out = Path(arguments.out)
    check_writable(out)
    if arguments.threads is not None:
        require(arguments.threads >= 1, "threads", arguments.threads, "1 or more")
        torch.set_num_threads(arguments.threads)
    work = _Work(conditions, out / "speed.json", _given(arguments))
    stopped = False
    try:
        _time(cases, work)
    except KeyboardInterrupt:
        stopped = True
        print(f"stopped after {len(work.measured)} of {len(cases)} cases.", file=sys.stderr)
    if work.measured:
        _show(work.result, out)
    return 130 if stopped else 0


@dataclass
class _Work:
    """What has been measured so far."""

    conditions: Conditions
    path: Path
    settings: dict[str, Any]
    matmul: dict[str, float] = field(default_factory=dict)
    measured: list[SpeedMeasurement] = field(default_factory=list)

    @property
    def result(self) -> SpeedResult:
        return SpeedResult(
            environment=environment(self.conditions.device, "random"),
            settings={**self.settings, **self.conditions.as_table()},
            matmul=self.matmul,
            measurements=self.measured,
        )

    def rate(self, execution: Execution) -> float:
        """Of the machine's own product, measured once per precision."""
        if execution.precision not in self.matmul:
            self.matmul[execution.precision] = matmul_rate(self.conditions.device, execution)
        return self.matmul[execution.precision]


def _asked(arguments: argparse.Namespace) -> tuple[list[SpeedCase], Conditions]:
    changes = {name: getattr(arguments, option) for option, (name, _) in _CHANGES.items()}
    changes["model"] = arguments.model
    cases = cases_of(
        arguments.grid or ["default"],
        methods=[name.strip() for name in arguments.methods.split(",") if name.strip()],
        changes={name: value for name, value in changes.items() if value is not None},
    )
    conditions = Conditions(
        device=device_named(arguments.device),
        eager=arguments.eager,
        precision=arguments.precision,
        memory=arguments.memory,
        batches=arguments.batches,
        warm_up=arguments.warm_up,
    )
    return cases, conditions


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("grid", "methods", "model", "threads", *_CHANGES)
    given = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in given.items() if value not in (None, "")}


def _time(cases: Sequence[SpeedCase], work: _Work) -> None:
    with progress(unit="case") as shown:
        for done, case in enumerate(cases, start=1):
            measurement = measure(case, work.conditions, rate=work.rate)
            work.measured.append(measurement)
            work.result.save(work.path)
            note = measurement.failure or f"{measurement.ms:.1f} ms per batch"
            shown.update("speed", done, len(cases), f"{_name(case)}: {note}")


def _show(result: SpeedResult, out: Path) -> None:
    measured = result.measurements
    print()
    print(machine_line(result.environment, result.matmul))
    for line in heading_lines(measured):
        print(line)
    print()
    print(text_table(speed_rows(measured)))
    print()
    for line in (*growth_lines(measured), *failure_lines(measured)):
        print(line)
    page = speed_page(measured, environment=result.environment, matmul=result.matmul)
    write_atomically(out / "speed.md", page.encode())
    try:
        write_speed_plot(measured, out / "speed.png", title=str(result.environment["device"]))
    except InputError as error:
        print(f"no plot: {error}")
    else:
        print(f"plot:   {out / 'speed.png'}")
    print(f"table:  {out / 'speed.md'}")
    print(f"result: {out / 'speed.json'}")


def _name(case: SpeedCase) -> str:
    return f"{case.method} {case.model} batch {case.batch}"


def _listed(values: Sequence[int | str]) -> str:
    return ", ".join(map(str, values))
