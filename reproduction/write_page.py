"""Write docs/explanation/reproducing-the-paper.md from the stored results.

    python -m reproduction.write_page [--check]

The page begins with page_introduction.md. Its reasons for claims that fail come from reasons.toml.
`--check` writes nothing and fails if the page differs from the results.
"""

import sys
import tomllib

from bitta.bench.sweep_grid import read_jobs
from reproduction.claims.page import reproduction_page
from reproduction.claims.results import ResultFolders
from reproduction.generated_pages import write_or_check
from reproduction.paths import EXPERIMENTS, EXPLANATION, INTRODUCTION, REASONS, RESULTS

NOT_OF_THE_PAPER = ("self-tuning-development", "generalisation")
"""Folders of experiments on our own method; write_self_tuning_page.py shows their results."""


def page() -> str:
    """Return the text of the page."""
    reasons: dict[str, str] = tomllib.loads(REASONS.read_text())
    results = ResultFolders(RESULTS, expected_runs())
    return reproduction_page(results, reasons, INTRODUCTION.read_text())


def expected_runs() -> dict[str, list[str]]:
    """Return the names of all runs by folder of experiments."""
    every = sorted(path for path in EXPERIMENTS.iterdir() if path.is_dir())
    folders = [folder for folder in every if folder.name not in NOT_OF_THE_PAPER]
    return {folder.name: [job.label for job in read_jobs([folder])] for folder in folders}


if __name__ == "__main__":
    sys.exit(write_or_check({EXPLANATION / "reproducing-the-paper.md": page()}, __doc__))
