r"""Time "bitta demo" of this checkout and of an earlier revision, alternating.

    python scripts/compare_demo.py 13d3f21 --rounds 3 \
        --out reproduction/results/speed/demo-2-cores.json

The earlier revision is checked out into a temporary folder. The times are those of the whole
command, and the ratio is that of the medians.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Time both revisions. Print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="earlier revision, as git names it")
    parser.add_argument("--demo", default="digits", help="demo to time (default: digits)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each revision (default: 3)")
    parser.add_argument("--out", type=Path, help="result to write, .json")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        earlier = Path(folder) / "earlier"
        _git("worktree", "add", "--detach", str(earlier), arguments.revision)
        try:
            trees = {"before": earlier, "after": ROOT}
            seconds = time_demos(trees, arguments.demo, arguments.rounds, Path(folder))
        finally:
            _git("worktree", "remove", "--force", str(earlier))
    table = {
        "command": f"bitta demo {arguments.demo}",
        "before": arguments.revision,
        "after": _git("rev-parse", "--short", "HEAD"),
        "cores": os.cpu_count(),
        "seconds": seconds,
        "ratio": median(seconds["before"]) / median(seconds["after"]),
    }
    print(json.dumps(table, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")


def time_demos(
    trees: dict[str, Path], demo: str, rounds: int, folder: Path
) -> dict[str, list[float]]:
    """Return the seconds of each round by the name of the tree."""
    seconds: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(rounds):
        for name, tree in trees.items():
            started = perf_counter()
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "bitta.cli.main",
                    "demo",
                    demo,
                    "--out",
                    str(folder / "out"),
                ],
                env=os.environ | {"PYTHONPATH": str(tree / "src")},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            seconds[name].append(round(perf_counter() - started, 2))
            print(f"round {number + 1}, {name}: {seconds[name][-1]} s", file=sys.stderr)
    return seconds


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
