"""bitta run: run one experiment and write its result."""

import argparse
import sys
from collections import deque
from functools import cache, partial
from pathlib import Path

from bitta.bench.experiment import Experiment
from bitta.bench.locks import alone
from bitta.bench.places import checkpoint_path, result_path
from bitta.bench.runner import Stopped, run
from bitta.bench.seconds import Seconds
from bitta.bench.toml import override, read_toml
from bitta.cli.display import progress
from bitta.cli.execution import add_execution
from bitta.cli.signals import stop_on_signal
from bitta.errors import InputError
from bitta.report import summary_rows, text_table
from bitta.report.tables import agreement_line, collapse_line
from bitta.results import RunResult, StepRecord, percent_right
from bitta.statefile import check_writable

_SHOWN_SAMPLES = 64
"""How many of the newest samples the accuracy shown is of."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("experiment", metavar="EXPERIMENT.toml", help="what to run")
    parser.add_argument("--seed", type=int, help="seed of stream, annotator and method")
    add_execution(parser, overrides="change a setting, such as method.lr=1e-3 (repeatable)")
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint, if there is one"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run, show, and say where the result is."""
    table = read_toml(arguments.experiment)
    for assignment in arguments.overrides:
        override(table, assignment)
    if arguments.seed is not None:
        table["seed"] = arguments.seed
    experiment = Experiment.of(table, name=Path(arguments.experiment).stem)
    out = Path(arguments.out)
    check_writable(out)
    with alone(result_path(experiment, out), wait=partial(_refuse_second, experiment, out)):
        return _run(arguments, experiment, out)


def _refuse_second(experiment: Experiment, out: Path) -> None:
    raise InputError(
        f"another process is at work on {str(result_path(experiment, out))!r}; wait for it, or "
        "give this run a name of its own (--set name=...) or another folder (--out)."
    )


def _run(arguments: argparse.Namespace, experiment: Experiment, out: Path) -> int:
    if not arguments.resume and checkpoint_path(experiment, out).exists():
        print("starting over; --resume would go on from the checkpoint that is there.")
    recent: deque[StepRecord] = deque(maxlen=max(1, _SHOWN_SAMPLES // experiment.stream.batch_size))
    with progress() as shown, stop_on_signal() as should_stop:

        def on_step(done: int, total: int, step: StepRecord) -> None:
            recent.append(step)
            note = f"{step.domain}: {percent_right(recent):.0f} % right"
            shown.update(experiment.name, done, total, note)

        def on_tuning(done: int, total: int, loss: float) -> None:
            shown.update("enhanced", done, total, f"loss {loss:.2f}")

        @cache
        def on_wait() -> None:
            print("waiting for a run that fine-tunes the same model.", flush=True)

        try:
            result = run(
                experiment,
                out=out,
                resume=arguments.resume,
                device=arguments.device,
                checkpoint_seconds=arguments.checkpoint_seconds,
                eager=arguments.eager,
                precision=arguments.precision,
                on_tuning=on_tuning,
                on_wait=on_wait,
                on_start=lambda path: print(f"path: {path}", flush=True),
                on_step=on_step,
                should_stop=should_stop,
            )
        except Stopped as stopped:
            print(f"{stopped}; the same command with --resume goes on.", file=sys.stderr)
            return 130
    _show(experiment, result)
    print(f"result: {result_path(experiment, out)}")
    return 0


def _show(experiment: Experiment, result: RunResult) -> None:
    print(result.protocol)
    print(text_table(summary_rows({experiment.method: result})))
    lines = [agreement_line(result), _before_line(result), _clean_line(result)]
    if "seconds" in result.extra:
        lines.append(f"seconds: {Seconds(**result.extra['seconds'])}")
    for line in filter(None, [*lines, collapse_line(result)]):
        print(line)


def _before_line(result: RunResult) -> str:
    if (tuned := result.extra.get("enhanced")) is None:
        return ""
    return (
        f"enhanced: fine-tuned on {tuned['n_answered']} samples, {tuned['n_correct']} of them with "
        f"their label known, in {tuned['seconds']:.1f} s, once for all runs in this folder"
    )


def _clean_line(result: RunResult) -> str:
    if (clean := result.extra.get("clean")) is None:
        return ""
    return (
        f"clean: {clean['before']:.1f} % right before, {clean['after']:.1f} % after, of "
        f"{clean['n_samples']} images"
    )
