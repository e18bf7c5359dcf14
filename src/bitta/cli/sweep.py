"""bitta sweep: run many experiments in parallel and skip those that are finished."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from bitta.bench.models import device_named
from bitta.bench.runner import RunOptions
from bitta.bench.sweep import SweepProgress, sweep
from bitta.bench.sweep_grid import read_jobs
from bitta.bench.sweep_worker import SweepOptions, execute_jobs
from bitta.cli.arguments import add_execution_arguments
from bitta.cli.progress import count_runs, format_duration, show_sweep, stop_on_signal
from bitta.config_base import require
from bitta.errors import SettingError
from bitta.malloc import keep_freed_memory
from bitta.statefile import check_writable


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "experiments",
        nargs="+",
        metavar="DIR_OR_TOML",
        help="experiment files, or folders with them; a file may hold a table [sweep]",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="number of parallel runs (default: 1)"
    )
    parser.add_argument(
        "--seeds", metavar="0,1,2", help="use these seeds instead of those of the experiments"
    )
    parser.add_argument(
        "--only",
        default="*",
        metavar="GLOB",
        help="start only the runs whose name matches, as in 'tent*'",
    )
    add_execution_arguments(
        parser, overrides_help="change a setting of every experiment (repeatable)"
    )
    outdated = parser.add_mutually_exclusive_group()
    outdated.add_argument(
        "--rerun",
        action="store_true",
        help="replace results of code that computed other numbers (another numerics version)",
    )
    outdated.add_argument(
        "--keep",
        action="store_true",
        help="keep results of code that computed other numbers (another numerics version)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the experiments that are not finished, then print a summary."""
    started = monotonic()
    require(arguments.jobs >= 1, "--jobs", arguments.jobs, "1 or more")
    device_named(arguments.device)
    jobs = read_jobs(
        arguments.experiments,
        overrides=arguments.overrides,
        seeds=_parse_seeds(arguments.seeds),
        only=arguments.only,
    )
    check_writable(arguments.out)
    options = SweepOptions(
        run=RunOptions(
            out=Path(arguments.out),
            device=arguments.device,
            eager=arguments.eager,
            precision=arguments.precision,
            checkpoint_seconds=arguments.checkpoint_seconds,
        ),
        outdated="rerun" if arguments.rerun else "keep" if arguments.keep else "refuse",
    )
    with show_sweep() as display, stop_on_signal() as should_stop:
        progress = sweep(
            jobs,
            options,
            n_workers=arguments.jobs,
            command=_worker_command,
            on_progress=display.show,
            should_stop=should_stop,
        )
    return _print_summary(progress, Path(arguments.out), monotonic() - started)


def _parse_seeds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingError(
            f"--seeds is {text!r}; allowed: whole numbers, separated by commas."
        ) from None


def _worker_command(reports: int) -> Sequence[str]:
    """Return the command of a worker: this interpreter, with the import path of this process."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from bitta.cli.sweep import run_worker; run_worker({reports}, {os.getpid()})"
    )
    return [sys.executable, "-u", "-c", code]


def run_worker(reports: int, parent: int) -> None:
    """Execute runs of a sweep. This is the main function of a worker process.

    `reports` is the file descriptor for reports, `parent` the process id of the sweep.
    """
    keep_freed_memory()
    with stop_on_signal() as should_stop:
        execute_jobs(reports, parent=parent, should_stop=should_stop)


def _print_summary(progress: SweepProgress, out: Path, seconds: float) -> int:
    n_found = progress.count("found")
    done = f"{progress.count('done', 'found')} done" + (f" ({n_found} before)" if n_found else "")
    parts = [done, f"{progress.count('failed')} failed"]
    if n_left := progress.count("waiting"):
        parts.append(f"{n_left} left")
    print(f"{count_runs(progress)}: {', '.join(parts)}; {format_duration(seconds)}; results: {out}")
    for run in progress.runs:
        if run.state == "failed":
            print(f"{run.job.label} failed: {run.error}  log: {run.log}")
    if n_left:
        print("stopped; run the same command again to continue.", file=sys.stderr)
        return 130
    return 1 if progress.count("failed") else 0
