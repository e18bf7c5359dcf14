"""Write the result tables of docs/explanation/comparison.md and of the pages of the methods.

    python -m reproduction.write_comparison [--check]

A page has its tables between the marks `<!-- result -->` and `<!-- end -->`. `--check` writes
nothing and fails if a page differs from the results.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from bitta.methods import METHODS
from bitta.report.rows import METHOD_TITLES
from bitta.results import RunResult
from reproduction.generated_pages import write_or_check
from reproduction.paths import EXPLANATION, METHOD_PAGES, RESULTS, relative

HEADINGS = {
    "cifar10-c": "Full streams",
    "cifar10-c-resnet8": "Short streams on a CPU",
}
"""Folders of results and their headings. Folders that do not exist are left out."""
MARKED_PART = re.compile(r"(<!-- result -->\n).*?(<!-- end -->)", re.DOTALL)
TABLE_HEADER = (
    "| row | accuracy | difference | ECE | Brier | questions | ms | MB |\n"
    "|---|---|---|---|---|---|---|---|"
)

Times = Mapping[str, Mapping[str, float]]
"""Measurements by the name of the row; "ms" is the time per batch."""


def pages() -> dict[Path, str]:
    """Return the text of every page with result tables."""
    folders = {name: read_results(name) for name in HEADINGS if (RESULTS / name).exists()}
    comparison = "\n\n".join(map(folder_section, folders, folders.values()))
    texts = {EXPLANATION / "comparison.md": comparison}
    for method in METHODS:
        tables = [method_table(method, name, results) for name, results in folders.items()]
        texts[METHOD_PAGES / f"{method}.md"] = "\n\n".join(filter(None, tables))
    return {path: with_marked_part(path, text) for path, text in texts.items() if text}


def with_marked_part(path: Path, text: str) -> str:
    """Return the page with another text between the marks."""
    page = path.read_text()
    if not MARKED_PART.search(page):
        raise ValueError(
            f"{path} has no part between <!-- result --> and <!-- end -->; add both marks."
        )
    return MARKED_PART.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)


def read_results(folder: str) -> dict[str, RunResult]:
    """Read the results with seed 0 by the name of the row, in the order of the methods."""
    found = [RunResult.load(path) for path in (RESULTS / folder).glob("*-seed0.json")]
    order = list(METHODS)
    found.sort(key=lambda result: (order.index(method_of(result)), result.name))
    return {result.name: result for result in found}


def read_times(folder: str) -> dict[str, dict[str, float]]:
    """Read the measurements of `reproduction/time_rows.py`, which runs each row alone."""
    path = RESULTS / f"{folder}-times.json"
    if not path.exists():
        return {}
    times: dict[str, dict[str, float]] = json.loads(path.read_text())["rows"]
    return times


def method_of(result: RunResult) -> str:
    """Return the name of the method."""
    return str(result.experiment["method"]["name"])


def folder_section(folder: str, results: Mapping[str, RunResult]) -> str:
    """Return the section of one folder with a row per result."""
    times = read_times(folder)
    rows = [table_row(name, results, times) for name in results]
    return (
        f"## {HEADINGS[folder]}\n\n{conditions(folder, results)}\n\n{TABLE_HEADER}\n"
        + "\n".join(rows)
    )


def method_table(method: str, folder: str, results: Mapping[str, RunResult]) -> str:
    """Return the rows of one method; empty if it was not run."""
    own = {name: result for name, result in results.items() if method_of(result) == method}
    if not own:
        return ""
    times = read_times(folder)
    rows = "\n".join(table_row(name, results, times) for name in own)
    return f"{conditions(folder, own)}\n\n{TABLE_HEADER}\n{rows}"


def conditions(folder: str, results: Mapping[str, RunResult]) -> str:
    """Return the protocol, the model and the machine, which are the same for all rows."""
    found = {
        f"{result.protocol}; model `{result.experiment['model']['weights']}`; "
        f"{result.environment['device']}, torch {result.environment['torch']}"
        for result in results.values()
    }
    return "; ".join(sorted(found)) + f" (`{relative(RESULTS)}/{folder}`)."


def table_row(name: str, results: Mapping[str, RunResult], times: Times) -> str:
    """Return the row of one result. The difference is to the row named like the method."""
    result = results[name]
    method = method_of(result)
    plain = results.get(method)
    is_variant = plain is not None and name != method
    difference = f"{result.accuracy - plain.accuracy:+.1f}" if plain and is_variant else ""
    variant = name.removeprefix(method).strip("-")
    title = METHOD_TITLES[method] + (f" ({variant})" if variant else "")
    ece = "–" if result.ece is None else f"{result.ece:.1f}"
    ms = f"{times[name]['ms']:.1f}" if name in times else "–"
    is_on_gpu = result.environment["device"] != "cpu"
    megabytes = f"{result.peak_memory / 1e6:,.0f}" if is_on_gpu else "–"
    return (
        f"| {title} | {result.accuracy:.1f} | {difference} | {ece} | {result.brier:.3f} | "
        f"{result.total('n_asked')} | {ms} | {megabytes} |"
    )


if __name__ == "__main__":
    sys.exit(write_or_check(pages(), __doc__))
