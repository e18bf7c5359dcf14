"""Compare the results of two checkouts: both demos and a short run of every method.

    python scripts/compare_behaviour.py write --out FOLDER [--tree TREE] [--no-demos]
    python scripts/compare_behaviour.py compare FOLDER OTHER

`write` runs the package of TREE (this checkout by default) on a CPU with one thread and writes its
result files to FOLDER. `compare` prints every value that differs, except times, memory and the
version of the code, and exits with 1 if there is one.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
METHODS = (
    "source", "bn_stats", "tent", "eta", "eata", "sar", "cotta", "rotta", "sotta", "deyo", "tast",
    "owttt", "simatta", "bitta",
)  # fmt: skip
WITH_STATISTICS = ("eata", "owttt")
EXPERIMENT = """
[stream]
kind = "corruptions"
n_samples = 256

[model]
weights = "embedded:cifar10-resnet8"

[method]
name = "{method}"
{settings}
[feedback]
n_queries = {n_queries}
"""
IGNORED = {
    *("seconds", "seconds_per_batch", "peak_memory"),
    *("code", "numerics_version"),
    "identity",  # hash of the settings and of the version of the code; settings are compared
    "enhanced",  # older results hold its defaults; it is now the table before_stream
}


def main() -> int:
    """Run the chosen command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write_parser = commands.add_parser("write")
    write_parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    write_parser.add_argument(
        "--tree", type=Path, default=ROOT, help="checkout to run (default: this one)"
    )
    write_parser.add_argument("--no-demos", action="store_true", help="leave out the demos")
    compare_parser = commands.add_parser("compare")
    compare_parser.add_argument("folder", type=Path, help="folder that write has filled")
    compare_parser.add_argument("other", type=Path, help="folder to compare it with")
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare(arguments.folder, arguments.other)
    write(arguments.tree.resolve(), arguments.out.resolve(), demos=not arguments.no_demos)
    return 0


def write(tree: Path, out: Path, *, demos: bool) -> None:
    """Run everything with the package of `tree`."""
    out.mkdir(parents=True, exist_ok=True)
    statistics = out / "statistics.safetensors"
    weights = "embedded:cifar10-resnet8"
    bitta(tree, "statistics", "--weights", weights, "--set", "embedded:cifar10",
          "--out", str(statistics))  # fmt: skip
    for method in METHODS:
        needs = method in WITH_STATISTICS
        settings = f'source_statistics = "{statistics.name}"\n' if needs else ""
        n_queries = 0 if method in {"source", "bn_stats"} else 3
        experiment = out / f"{method}.toml"
        experiment.write_text(
            EXPERIMENT.format(method=method, settings=settings, n_queries=n_queries)
        )
        bitta(tree, "run", experiment.name, "--out", "runs", folder=out)
        print(method, file=sys.stderr)
    for demo in ("digits", "corruptions") if demos else ():
        bitta(tree, "demo", demo, "--out", str(out / "demo"))
        print(f"demo {demo}", file=sys.stderr)


def bitta(tree: Path, *arguments: str, folder: Path | None = None) -> None:
    """Run one command of the package of `tree`; a failure ends this script."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    code = "import sys; from bitta.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"bitta {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def compare(folder: Path, other: Path) -> int:
    """Print the differences between the result files of two folders."""
    names = [{p.relative_to(top) for p in top.rglob("*.json")} for top in (folder, other)]
    if not names[0]:
        raise SystemExit(f"{folder} has no result files; run the write command first.")
    found = [f"only in one folder: {name}" for name in sorted(names[0] ^ names[1])]
    for name in sorted(names[0] & names[1]):
        one, two = (json.loads((top / name).read_text()) for top in (folder, other))
        found += [f"{name}: {line}" for line in differences(one, two)]
    print("\n".join(found) or f"{len(names[0])} result files are equal.")
    return 1 if found else 0


def differences(one: Any, two: Any, where: str = "") -> Iterator[str]:
    """Yield a line for every value that is not equal."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted(one.keys() | two.keys()):
            if key not in IGNORED:
                yield from differences(one.get(key), two.get(key), f"{where}.{key}")
    elif one != two:
        yield f"{where}: {str(one)[:60]} and {str(two)[:60]}"


if __name__ == "__main__":
    sys.exit(main())
