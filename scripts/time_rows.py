r"""Time every row of a comparison alone on the device, by the last batches of a short stream.

    python scripts/time_rows.py reproduction/experiments/cifar10-c --device cuda \
        --out results/cifar10-c-times.json

By the end of the first corruption the memories are full and what can be captured has been. Rows
that ran side by side have their accuracy from that run and their time from here; memory of tensors
is the same either way.
"""

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bitta.bench.experiment import Experiment
from bitta.bench.runner import run
from bitta.bench.toml import override, read_toml
from bitta.results import RunResult, write_table


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of experiments")
    parser.add_argument("--out", type=Path, required=True, help="result to write, .json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, default=156)
    parser.add_argument("--timed", type=int, default=20, help="how many of the last ones count")
    parser.add_argument("--only", default="", help="names of rows, with commas between")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=c")
    arguments = parser.parse_args()
    chosen = [name for name in arguments.only.split(",") if name]
    rows, environment = {}, {}
    for path in sorted(arguments.folder.glob("*.toml")):
        if chosen and path.stem not in chosen:
            continue
        result = short_run(path, arguments)
        seconds = [step.seconds for step in result.steps[-arguments.timed :]]
        rows[path.stem] = {
            "ms": 1000 * median(seconds),
            "execution": result.extra["execution"],
        }
        environment = dict(result.environment)
        print(path.stem, rows[path.stem], flush=True)
        table = {"batches": arguments.batches, "timed": arguments.timed, "rows": rows}
        write_table(arguments.out, {"environment": environment, **table})


def short_run(path: Path, arguments: argparse.Namespace) -> RunResult:
    """The experiment on the first corruption alone."""
    table = read_toml(path)
    for assignment in arguments.overrides:
        override(table, assignment)
    samples = table["stream"].get("batch_size", 64) * arguments.batches
    table["stream"] |= {"corruptions": "gaussian_noise", "n_samples": samples}
    with TemporaryDirectory() as folder:
        experiment = Experiment.of(table, name=path.stem)
        return run(experiment, out=Path(folder), device=arguments.device)


if __name__ == "__main__":
    main()
