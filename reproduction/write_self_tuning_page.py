"""Write the tables of docs/explanation/self-tuning.md from the result files.

    python -m reproduction.write_self_tuning_page [--check]

`--check` writes nothing and fails if the page differs from the files.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from reproduction.generated_pages import write_or_check
from reproduction.paths import EXPLANATION, RESULTS

PAGE = EXPLANATION / "self-tuning.md"
MARKED = re.compile(r"(<!-- results ([a-z-]+) -->\n).*?(<!-- end results -->)", re.DOTALL)
METHODS = {"bitta": "BiTTA", "self_tuning": "self-tuning"}
HURT = -0.5
"""Difference to the source model, in points, below which a method has hurt."""

Cell = tuple[str, str]
"""Model and stream."""
Results = Mapping[Cell, Mapping[str, Mapping[int, dict[str, Any]]]]
"""Result by cell, method and seed."""


def with_tables(page: str) -> str:
    """Return the text of the page with a table between each pair of marks."""
    return MARKED.sub(lambda m: f"{m[1]}{section(read_results(RESULTS / m[2]))}\n{m[3]}", page)


def section(results: Results) -> str:
    """Return the table and a sentence about the intervals."""
    return f"{table(results)}\n\n{coverage(results)}"


def read_results(folder: Path) -> Results:
    """Read all results of a folder."""
    found: dict[Cell, dict[str, dict[int, dict[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        experiment = result["experiment"]
        stream = experiment["stream"]
        model = Path(experiment["model"]["weights"]).stem.removeprefix("embedded:")
        shift = stream["domains"] or stream["corruptions"] or stream["kind"]
        name = f"{shift}, labels in runs" if stream["labels"] == "dirichlet" else shift
        found[model, name][experiment["method"]["name"]][experiment["seed"]] = result
    return found


def accuracy(result: Mapping[str, Any]) -> float:
    """Return the accuracy in percent."""
    return float(result["summary"]["accuracy"])


def coverage(results: Results) -> str:
    """Say how often the interval of the measured benefit contains the true difference."""
    n_runs = n_contained = 0
    for by_method in results.values():
        for seed, result in by_method["self_tuning"].items():
            benefit = result["extra"]["benefit"]
            difference = (accuracy(result) - accuracy(by_method["source"][seed])) / 100
            n_runs += 1
            n_contained += benefit["low"] <= difference <= benefit["high"]
    return (
        f"The 95 % interval of `session.benefit` contains the true difference in {n_contained} of "
        f"{n_runs} runs."
    )


def table(results: Results) -> str:
    """Return a row per cell, and a summary of the differences to the source model."""
    lines = [
        f"| model | stream | source | {' | '.join(METHODS.values())} | seeds |",
        "|---" * (4 + len(METHODS)) + "|",
    ]
    differences: dict[str, list[float]] = defaultdict(list)
    for (model, stream), by_method in sorted(results.items()):
        source, cells, n_seeds = by_method["source"], [], []
        for method in METHODS:
            by_seed = by_method[method]
            difference = fmean(accuracy(by_seed[seed]) - accuracy(source[seed]) for seed in by_seed)
            differences[method].append(difference)
            cells.append(f"{difference:+.1f}")
            n_seeds.append(str(len(by_seed)))
        mean = fmean(map(accuracy, source.values()))
        lines.append(
            f"| {model} | {stream} | {mean:.1f} | {' | '.join(cells)} | {', '.join(n_seeds)} |"
        )
    for name, summarise in (("mean", fmean), ("median", median), ("lowest", min)):
        values = " | ".join(f"{summarise(differences[method]):+.1f}" for method in METHODS)
        lines.append(f"| **{name}** | | | {values} | |")
    hurt = " | ".join(str(sum(d < HURT for d in differences[method])) for method in METHODS)
    lines.append(f"| **hurt by more than .5** | {len(results)} cells | | {hurt} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(write_or_check({PAGE: with_tables(PAGE.read_text())}, __doc__))
