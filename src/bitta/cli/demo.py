"""bitta demo: compare four methods on a small stream, in about a minute on a CPU."""

import argparse
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from time import monotonic
from typing import Any

from bitta.bench.experiment import Experiment, read_toml
from bitta.bench.run_files import result_path
from bitta.bench.runner import RunCallbacks, RunOptions, run
from bitta.cli.progress import ProgressDisplay, show_progress
from bitta.errors import InputError
from bitta.report import summary_rows, text_table, write_accuracy_plot
from bitta.results import RunResult, StepRecord, percent_correct

_DESCRIPTIONS = {
    "digits": (
        "Coloured digits: the model learned to read the colour, and now the colour is wrong.",
        "The images alone do not show this. Only answers do.",
    ),
    "corruptions": (
        "CIFAR-10 under five corruptions at severity 5, one after another.",
        "For such a small model new BatchNorm statistics help most, so differences are small.",
    ),
}
_BASELINES = {"Source": "source", "BN-Stats": "bn_stats", "TENT": "tent"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "stream",
        nargs="?",
        choices=list(_DESCRIPTIONS),
        default="digits",
        help="stream to run on (default: digits)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    parser.add_argument(
        "--out",
        default="bitta-demo",
        metavar="DIR",
        help="folder for results and plot (default: bitta-demo)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run four methods on one stream. Print a table, save a plot and the results."""
    out = Path(arguments.out) / arguments.stream
    started = monotonic()
    for line in _DESCRIPTIONS[arguments.stream]:
        print(line)
    results: dict[str, RunResult] = {}
    experiments = _build_experiments(arguments.stream, arguments.seed)
    with show_progress() as display:
        for name, experiment in experiments.items():
            results[name] = _run(name, experiment, out, display)
    print()
    print(next(iter(results.values())).protocol)
    print("accuracy in percent, each image judged before the model learns from it; ECE in 15 bins")
    print()
    print(text_table(summary_rows(results)))
    print()
    _save_plot(
        results, out / f"accuracy-seed{arguments.seed}.png", _DESCRIPTIONS[arguments.stream][0]
    )
    for experiment in experiments.values():
        print(f"result: {result_path(experiment, out)}")
    print(f"total time: {monotonic() - started:.0f} s")
    return 0


def _build_experiments(stream: str, seed: int) -> Mapping[str, Experiment]:
    """Return the packaged experiment with BiTTA and with each baseline."""
    with as_file(files("bitta") / "assets" / f"demo-{stream}.toml") as path:
        table = read_toml(path)
    tables: dict[str, dict[str, Any]] = {
        label: {**table, "method": {"name": method}, "feedback": {"n_queries": 0}}
        for label, method in _BASELINES.items()
    }
    tables["BiTTA"] = table
    return {
        label: Experiment.from_table(
            {**changes, "seed": seed, "name": changes["method"]["name"]}, name=stream
        )
        for label, changes in tables.items()
    }


def _run(name: str, experiment: Experiment, out: Path, display: ProgressDisplay) -> RunResult:
    steps: list[StepRecord] = []

    def on_step(done: int, total: int, step: StepRecord) -> None:
        steps.append(step)
        display.update(name, done, total, f"{percent_correct(steps[-8:]):.0f} % right")

    options = RunOptions(out=out, overwrite=True)
    return run(experiment, options, RunCallbacks(on_step=on_step))


def _save_plot(results: Mapping[str, RunResult], path: Path, title: str) -> None:
    try:
        write_accuracy_plot(results, path, title=title)
    except InputError as error:
        print(f"no plot: {error}")
    else:
        print(f"plot:   {path}")
