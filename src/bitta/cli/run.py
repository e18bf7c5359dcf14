"""bitta run: run one experiment and write its result."""

import argparse
import sys
from collections import deque
from functools import cache, partial
from pathlib import Path

from bitta.bench.checkpoint import RunSeconds
from bitta.bench.experiment import Experiment, override, read_toml
from bitta.bench.run_files import checkpoint_path, file_lock, result_path
from bitta.bench.runner import RunCallbacks, RunOptions, RunStopped, run
from bitta.cli.arguments import add_execution_arguments
from bitta.cli.progress import show_progress, stop_on_signal
from bitta.errors import InputError
from bitta.report import summary_rows, text_table
from bitta.report.tables import agreement_line, benefit_line, collapse_line
from bitta.results import RunResult, StepRecord, percent_correct
from bitta.statefile import check_writable

_N_RECENT_SAMPLES = 64
"""Number of samples in the accuracy that is shown during a run."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("experiment", metavar="EXPERIMENT.toml", help="experiment file")
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of stream, annotator and method (default: seed of the experiment)",
    )
    add_execution_arguments(
        parser, overrides_help="change a setting, such as method.lr=1e-3 (repeatable)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoint, if there is one"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the experiment, then print a summary and the path of the result."""
    table = read_toml(arguments.experiment)
    for assignment in arguments.overrides:
        override(table, assignment)
    if arguments.seed is not None:
        table["seed"] = arguments.seed
    experiment = Experiment.from_table(table, name=Path(arguments.experiment).stem)
    out = Path(arguments.out)
    check_writable(out)
    refuse = partial(_refuse_parallel_run, experiment, out)
    with file_lock(result_path(experiment, out), on_wait=refuse):
        return _run(arguments, experiment, out)


def _refuse_parallel_run(experiment: Experiment, out: Path) -> None:
    raise InputError(
        f"another process is writing {str(result_path(experiment, out))!r}; wait for it, or give "
        "this run another name (--set name=...) or another folder (--out)."
    )


def _run(arguments: argparse.Namespace, experiment: Experiment, out: Path) -> int:
    if not arguments.resume and checkpoint_path(experiment, out).exists():
        print("starting over; use --resume to continue from the existing checkpoint.")
    recent: deque[StepRecord] = deque(
        maxlen=max(1, _N_RECENT_SAMPLES // experiment.stream.batch_size)
    )
    with show_progress() as display, stop_on_signal() as should_stop:

        def on_step(done: int, total: int, step: StepRecord) -> None:
            recent.append(step)
            note = f"{step.domain}: {percent_correct(recent):.0f} % right"
            display.update(experiment.name, done, total, note)

        def on_preparation(done: int, total: int, loss: float) -> None:
            display.update("before the stream", done, total, f"loss {loss:.2f}")

        @cache  # prints the line at the first call only
        def on_wait() -> None:
            print("waiting for another run that prepares the same model.", flush=True)

        try:
            options = RunOptions(
                out=out,
                resume=arguments.resume,
                device=arguments.device,
                checkpoint_seconds=arguments.checkpoint_seconds,
                eager=arguments.eager,
                precision=arguments.precision,
            )
            callbacks = RunCallbacks(
                on_preparation=on_preparation,
                on_wait=on_wait,
                on_start=lambda path: print(f"path: {path}", flush=True),
                on_step=on_step,
                should_stop=should_stop,
            )
            result = run(experiment, options, callbacks)
        except RunStopped as stopped:
            print(f"{stopped}; run the same command with --resume to continue.", file=sys.stderr)
            return 130
    _print_summary(experiment, result)
    print(f"result: {result_path(experiment, out)}")
    return 0


def _print_summary(experiment: Experiment, result: RunResult) -> None:
    print(result.protocol)
    print(text_table(summary_rows({experiment.method: result})))
    lines = [
        agreement_line(result),
        benefit_line(result),
        _preparation_line(result),
        _clean_accuracy_line(result),
    ]
    if "seconds" in result.extra:
        lines.append(f"seconds: {RunSeconds(**result.extra['seconds'])}")
    for line in filter(None, [*lines, collapse_line(result)]):
        print(line)


def _preparation_line(result: RunResult) -> str:
    if (values := result.extra.get("before_stream")) is None:
        return ""
    described = ", ".join(f"{name} {value}" for name, value in values.items() if name != "seconds")
    return (
        f"before the stream: {described}, in {values['seconds']:.1f} s, once for all runs in this "
        "folder"
    )


def _clean_accuracy_line(result: RunResult) -> str:
    if (clean := result.extra.get("clean")) is None:
        return ""
    return (
        f"accuracy on {clean['n_samples']} clean images: {clean['before']:.1f} % before the "
        f"stream, {clean['after']:.1f} % after it"
    )
