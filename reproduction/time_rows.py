r"""Time every row of a comparison alone on the device, on the last batches of a short stream.

    python reproduction/time_rows.py reproduction/experiments/cifar10-c --device cuda \
        --out reproduction/results/cifar10-c-times.json

At the end of the first corruption the memories are full and CUDA graphs are captured. Rows that run
side by side slow one another down, so only their accuracy and their memory are used. Their times
come from this script.
"""

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bitta.bench.experiment import Experiment, override, read_toml
from bitta.bench.runner import RunOptions, run
from bitta.results import RunResult, write_table


def main() -> None:
    """Time the rows. Print each one and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of experiments")
    parser.add_argument("--out", type=Path, required=True, help="result to write, .json")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--batches", type=int, default=156, help="number of batches of a row")
    parser.add_argument(
        "--timed", type=int, default=20, help="number of last batches that are timed"
    )
    parser.add_argument("--only", default="", help="names of rows, separated by commas")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="a.b=c",
        help="change a setting of every experiment (repeatable)",
    )
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
    """Run the experiment on the first corruption only."""
    table = read_toml(path)
    for assignment in arguments.overrides:
        override(table, assignment)
    samples = table["stream"].get("batch_size", 64) * arguments.batches
    table["stream"] |= {"corruptions": "gaussian_noise", "n_samples": samples}
    with TemporaryDirectory() as folder:
        experiment = Experiment.from_table(table, name=path.stem)
        return run(experiment, RunOptions(out=Path(folder), device=arguments.device))


if __name__ == "__main__":
    main()
