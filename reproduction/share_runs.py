"""Copy results to all experiments that have the same settings, and list the runs that are missing.

    python reproduction/share_runs.py reproduction/experiments results

Most ablations share one run: the method with its default settings. It is run once, for one of them.
This script writes its result into the folders of the others, under the name that it has there. All
settings must be the same, and the numerics version must be that of `--numerics-version`, by default
the current one. Data, weights, device and times stay those of the run. Folders in `UNSHARED` get no
copies. Existing results are not overwritten. The script prints the missing runs.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bitta.bench.experiment import Experiment
from bitta.bench.run_files import result_path
from bitta.bench.sweep_grid import Job, read_jobs
from bitta.results import RunResult, table_hash
from bitta.version import NUMERICS_VERSION

ORIGIN = ("stream", "source_weights")
UNSHARED = ("runtime", "confidence")
"""Runs of `runtime` had the machine to themselves. `confidence` needs values that older results
do not have."""


def main() -> int:
    """Share results, then list missing runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", type=Path, help="a folder for each table or figure")
    parser.add_argument("results", type=Path, help="folders of the same names")
    parser.add_argument(
        "--numerics-version",
        type=int,
        default=NUMERICS_VERSION,
        help="version of the results to copy (default: the current one)",
    )
    given = parser.parse_args()
    missing = list(share(given.experiments, given.results, given.numerics_version))
    for folder, job in missing:
        print(folder, job.file.stem, job.label)
    return 0


def share(
    experiments: Path, results: Path, numerics_version: int = NUMERICS_VERSION
) -> Iterator[tuple[str, Job]]:
    """Write the results that can be shared. Yield the runs that are missing, each once."""
    folders = sorted(path for path in experiments.iterdir() if path.is_dir())
    runs = {
        path: RunResult.load(path)
        for folder in folders
        for path in sorted((results / folder.name).glob("*-seed*.json"))
    }
    by_settings = {
        settings_hash(run): run
        for run in runs.values()
        if run.environment.get("numerics_version") == numerics_version
    }
    yielded = set()
    for folder in folders:
        for job in read_jobs([folder]):
            path = result_path(job.experiment, results / folder.name)
            if path in runs:
                continue
            settings = table_hash({**job.experiment.as_table(), "name": ""})
            if settings in by_settings and folder.name not in UNSHARED:
                path.parent.mkdir(parents=True, exist_ok=True)
                rename_run(by_settings[settings], job).save(path)
                print(f"{path}: as {by_settings[settings].name}", file=sys.stderr)
            elif settings not in yielded or folder.name in UNSHARED:
                yielded.add(settings)
                yield folder.name, job


def settings_hash(run: RunResult) -> str:
    """Hash all settings except the name. Settings that are missing have their default."""
    experiment = Experiment.from_table(run.experiment, name=run.name)
    return table_hash({**experiment.as_table(), "name": ""})


def rename_run(run: RunResult, job: Job) -> RunResult:
    """Return the run as the result of another experiment."""
    table = job.experiment.as_table()
    identity = {"experiment": table} | {part: run.environment[part] for part in ORIGIN}
    return replace(
        run,
        experiment=table,
        environment={**run.environment, "identity": table_hash(identity)},
    )


if __name__ == "__main__":
    sys.exit(main())
