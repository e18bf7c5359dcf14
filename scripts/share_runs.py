"""Give a run to every experiment that has it.

    python scripts/share_runs.py experiments results

Most ablations hold one run in common: the method as it is. It is run once, in any of them; this
writes its result into the folders of the others, under the name that it has there. All settings
must be the same, and the code that of `--code`, by default this one; data, weights, device and
times stay those of the run, which is why `runtime` shares nothing; nor does `confidence`. Results
that are there stay as they are, whatever code has written them. Prints the runs that have none.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bitta.bench.expand import Job, read_jobs
from bitta.bench.experiment import Experiment
from bitta.bench.places import result_path
from bitta.results import RunResult, code_hash, table_hash

ORIGIN = ("stream", "source_weights")
OWN = ("runtime", "confidence")
"""Folders of runs that were alone on the machine, and of what older results do not record."""


def main() -> int:
    """Share, then list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", type=Path, help="a folder for each table or figure")
    parser.add_argument("results", type=Path, help="folders of the same names")
    parser.add_argument("--code", default=code_hash(), help="as the files of the runs say it")
    given = parser.parse_args()
    left = list(share(given.experiments, given.results, given.code))
    for folder, job in left:
        print(folder, job.file.stem, job.label)
    return 0


def share(experiments: Path, results: Path, code: str) -> Iterator[tuple[str, Job]]:
    """Write what can be shared; those runs that nobody has yet, each once."""
    folders = sorted(path for path in experiments.iterdir() if path.is_dir())
    runs = {
        path: RunResult.load(path)
        for folder in folders
        for path in sorted((results / folder.name).glob("*-seed*.json"))
    }
    known = {settings(run): run for run in runs.values() if run.environment.get("code") == code}
    asked = set()
    for folder in folders:
        for job in read_jobs([folder]):
            path = result_path(job.experiment, results / folder.name)
            if path in runs:
                continue
            what = table_hash({**job.experiment.as_table(), "name": ""})
            if what in known and folder.name not in OWN:
                path.parent.mkdir(parents=True, exist_ok=True)
                renamed(known[what], job).save(path)
                print(f"{path}: as {known[what].experiment['name']}", file=sys.stderr)
            elif what not in asked or folder.name in OWN:
                asked.add(what)
                yield folder.name, job


def settings(run: RunResult) -> str:
    """A hash of all that was set, whatever it was called; what is new has its default."""
    then = Experiment.of(run.experiment, name=run.name)
    return table_hash({**then.as_table(), "name": ""})


def renamed(run: RunResult, job: Job) -> RunResult:
    """The same run, as the result of another experiment."""
    table = job.experiment.as_table()
    identity = {"experiment": table} | {part: run.environment[part] for part in ORIGIN}
    return replace(
        run,
        experiment=table,
        environment={**run.environment, "identity": table_hash(identity)},
    )


if __name__ == "__main__":
    sys.exit(main())
