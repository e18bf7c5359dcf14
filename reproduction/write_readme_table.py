"""Write the results table of README.md from the result files and the paper's tables.

    python -m reproduction.write_readme_table [--check]

`--check` writes nothing and fails if README.md differs from the files.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from statistics import fmean

from reproduction.generated_pages import write_or_check
from reproduction.paths import PAPER_TABLES, README, RESULTS

DATA_SETS = (
    ("CIFAR-10-C", "tinyimagenetc-cifar10-c", "main-cifar10-c"),
    ("CIFAR-100-C", "tinyimagenetc-cifar100-c", "main-cifar100-c"),
    ("PACS", "pacs_vlcs", "pacs-domains"),
)
"""Heading, table of the paper, folder of results."""
ROWS = (
    ("Source model", "source", "unadapted-source"),
    ("BN-Stats", "bn_stats", "unadapted-bn_stats"),
    ("TENT*", "tent", "baselines-tent"),
    ("SAR*", "sar", "baselines-sar"),
    ("RoTTA*", "rotta", "baselines-rotta"),
    ("**BiTTA**", "bitta", "bitta"),
)
"""Heading, method in the paper's table, name of the experiment."""
MARKED = re.compile(r"(<!-- results -->\n).*?(<!-- end results -->)", re.DOTALL)


def with_table(readme: str) -> str:
    """Return the text of README.md with the table between its marks."""
    return MARKED.sub(lambda match: f"{match[1]}{results_table()}\n{match[2]}", readme)


def results_table() -> str:
    """Return the table: a row per method, and for each data set the paper, ours and the seeds."""
    headings = [f"{data_set}, paper | ours | seeds" for data_set, _, _ in DATA_SETS]
    lines = [f"| | {' | '.join(headings)} |", "|---" * (1 + 3 * len(DATA_SETS)) + "|"]
    for heading, method, experiment in ROWS:
        cells = [cell(table, method, folder, experiment) for _, table, folder in DATA_SETS]
        lines.append(f"| {heading} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(table: str, method: str, folder: str, experiment: str) -> str:
    """Return the paper's mean over domains, ours, and the number of our seeds."""
    ours = [mean_over_domains(path) for path in (RESULTS / folder).glob(f"{experiment}-seed*.json")]
    return f"{paper_mean(table, method):.1f} | {fmean(ours):.1f} | {len(ours)}"


def paper_mean(table: str, method: str) -> float:
    """Return the paper's mean over domains, recomputed if the printed one is wrong."""
    content = tomllib.loads((PAPER_TABLES / f"{table}.toml").read_text())
    row = next(row for row in content["rows"] if row["method"] == method)
    stated = row["values"][content["columns"].index("mean")]
    return float(row.get("recomputed", stated))


def mean_over_domains(path: Path) -> float:
    """Return the accuracy of one run, averaged over its domains."""
    return fmean(json.loads(path.read_text())["summary"]["accuracy_by_domain"].values())


if __name__ == "__main__":
    sys.exit(write_or_check({README: with_table(README.read_text())}, __doc__))
