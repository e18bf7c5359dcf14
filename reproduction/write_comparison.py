"""Write docs/explanation/comparison.md and the result rows of docs/reference/methods.

    python -m reproduction.write_comparison [--check]

--check writes nothing and fails where a page does not say what the results hold.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from bitta.methods import METHODS
from bitta.report.names import TITLES
from bitta.results import RunResult
from reproduction.paths import EXPLANATION, METHOD_PAGES, RESULTS, relative

SETS = {
    "cifar10-c": "Full streams",
    "cifar10-c-resnet8": "Short streams on a CPU",
}
"""Folders under results/ and their headings; those that are not there are left out."""
MARKED = re.compile(r"(<!-- result -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = (
    "| row | accuracy | difference | ECE | Brier | questions | ms | MB |\n"
    "|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    checking = parser.parse_args().check
    stale = [path for path, text in pages().items() if path.read_text() != text]
    if not checking:
        for path, text in pages().items():
            path.write_text(text)
    for path in stale:
        print(f"{'stale' if checking else 'written'}: {relative(path)}")
    return int(checking and bool(stale))


def times_of(folder: str) -> dict[str, dict[str, float]]:
    """What `scripts/time_rows.py` measured, row by row; rows of one run share the machine."""
    path = RESULTS / f"{folder}-times.json"
    found: dict[str, dict[str, float]] = (
        json.loads(path.read_text())["rows"] if path.exists() else {}
    )
    return found


def pages() -> dict[Path, str]:
    """Every page with results in it, as it should be."""
    sets = {folder: results_in(folder) for folder in SETS if (RESULTS / folder).exists()}
    found = {EXPLANATION / "comparison.md": "\n\n".join(map(section, sets, sets.values()))}
    for method in METHODS:
        rows = [method_rows(method, folder, results) for folder, results in sets.items()]
        found[METHOD_PAGES / f"{method}.md"] = "\n\n".join(filter(None, rows))
    return {path: filled(path.read_text(), text) for path, text in found.items()}


def filled(page: str, text: str) -> str:
    """A page with the text between its marks."""
    assert MARKED.search(page), "a page has no place for results"
    return MARKED.sub(lambda match: f"{match[1]}{text}\n{match[2]}" if text else match[0], page)


def results_in(folder: str) -> dict[str, RunResult]:
    """By name of the row, in the order of the methods."""
    found = [RunResult.load(path) for path in (RESULTS / folder).glob("*-seed0.json")]
    place = {name: number for number, name in enumerate(METHODS)}
    found.sort(key=lambda result: (place[result.experiment["method"]["name"]], result.name))
    return {result.name: result for result in found}


def section(folder: str, results: Mapping[str, RunResult]) -> str:
    """The heading, what was run on what, and a row per result."""
    rows = [row(name, results, times_of(folder)) for name in results]
    return f"## {SETS[folder]}\n\n{circumstances(folder, results)}\n\n{HEADER}\n" + "\n".join(rows)


def method_rows(method: str, folder: str, results: Mapping[str, RunResult]) -> str:
    """The rows of one method."""
    own = {n: r for n, r in results.items() if r.experiment["method"]["name"] == method}
    if not own:
        return ""
    rows = "\n".join(row(name, results, times_of(folder)) for name in own)
    return f"{circumstances(folder, own)}\n\n{HEADER}\n{rows}"


def circumstances(folder: str, results: Mapping[str, RunResult]) -> str:
    """The protocol, the model and the machine: the same for all rows."""
    said = {
        f"{result.protocol}; model `{result.experiment['model']['weights']}`; "
        f"{result.environment['device']}, torch {result.environment['torch']}"
        for result in results.values()
    }
    return "; ".join(sorted(said)) + f" (`{relative(RESULTS)}/{folder}`)."


def row(
    name: str, results: Mapping[str, RunResult], times: Mapping[str, Mapping[str, float]]
) -> str:
    """One result."""
    result = results[name]
    method = result.experiment["method"]["name"]
    alone = results.get(method)
    gain = f"{result.accuracy - alone.accuracy:+.1f}" if alone and name != method else ""
    variant = name.removeprefix(method).strip("-")
    time = times.get(name)
    on_gpu = result.environment["device"] != "cpu"
    cost = f"{time['ms']:.1f}" if time else "–"
    cost += f" | {result.peak_memory / 1e6:,.0f}" if on_gpu else " | –"
    ece = "–" if result.ece is None else f"{result.ece:.1f}"
    title = TITLES[method] + (f" ({variant})" if variant else "")
    return (
        f"| {title} | {result.accuracy:.1f} | {gain} | "
        f"{ece} | {result.brier:.3f} | {result.total('n_asked')} | {cost} |"
    )


if __name__ == "__main__":
    sys.exit(main())
