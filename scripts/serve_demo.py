r"""Compare the accuracy of `bitta serve --demo` with answers and without.

    python scripts/serve_demo.py --out reproduction/results/serving/demo.json
    python scripts/serve_demo.py --stream corruptions \
        --out reproduction/results/serving/demo-corruptions.json

Every run is its own server process with the demo's settings and without a camera. The script sends
the camera's images over HTTP in requests of one window, and sends the next one when the server has
learned from the last. With answers, every question of that window gets a true answer. The accuracy
is that of the served labels. The exit code is 1 if the claim does not hold:

digits        with answers at least 20 points better, over the last 20 windows, for every seed
corruptions   with answers at most 1 point worse, over all windows for every seed, and in every
              condition of the camera over all seeds
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bitta.cli.serve import DEMOS
from bitta.client import Client
from bitta.client.simulated_annotator import SimulatedAnnotator
from bitta.results import write_table
from bitta.server.demo_camera import SCENES, Scene
from bitta.version import __version__

WINDOW = 64
N_QUERIES = 3
WINDOW_SECONDS = 300.0
"""Longest time for one window."""


@dataclass(frozen=True)
class Claim:
    """Claim that answers gain at least `least` points over the last `over` of `windows` windows."""

    windows: int
    over: int
    least: float
    least_per_condition: float | None = None
    """Least gain in each condition over all seeds; None for no limit."""


CLAIMS = {
    # 90 windows are 5,760 of the 6,000 digits, so none appears twice.
    "digits": Claim(windows=90, over=20, least=20.0),
    # Each of the seven conditions appears once.
    "corruptions": Claim(windows=84, over=84, least=-1.0, least_per_condition=-1.0),
}


@dataclass(frozen=True)
class Run:
    """Result of one server."""

    seed: int
    answers: int
    """Number of answers given."""
    version: str
    """Version at the end. It starts with 1 unless the server has rolled back."""
    audits: dict[str, float | None]
    """Accuracy at the end, as the server reports it."""
    suspected: int
    """Number of windows after which the guard did not report "ok"."""
    accuracy: list[float]
    """Accuracy of each window, in percent."""


def main() -> int:
    """Run all servers. Print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--stream", choices=list(CLAIMS), default="digits", help="demo to run (default: digits)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1, 2],
        help="seeds of the runs (default: 0 1 2)",
    )
    parser.add_argument("--windows", type=int, help="number of windows, for a shorter run")
    parser.add_argument(
        "--jobs", type=int, default=2, help="number of servers that run at once (default: 2)"
    )
    parser.add_argument("--out", type=Path, required=True, help="result to write, .json")
    arguments = parser.parse_args()
    stream, claim = arguments.stream, CLAIMS[arguments.stream]
    n_windows = arguments.windows or claim.windows

    def run_one(seed: int, kind: str) -> Run:
        result = run(stream, seed, n_windows, answering=kind == "with")
        print(f"seed {seed} {kind} answers: {mean(result.accuracy):.1f} %", flush=True)
        return result

    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = {
            kind: [pool.submit(run_one, seed, kind) for seed in arguments.seeds]
            for kind in ("with", "without")
        }
        runs = {kind: [future.result() for future in of_kind] for kind, of_kind in futures.items()}
    gains = [gain(*pair, claim.over) for pair in zip(runs["with"], runs["without"], strict=True)]
    table: dict[str, Any] = {
        "command": f"python scripts/serve_demo.py --stream {stream}",
        "settings": {"window": WINDOW, "seeds": arguments.seeds, "claim": asdict(claim),
                     "method": DEMOS[stream]["settings"], "n_queries": N_QUERIES, "audits": 1},
        "environment": {"bitta": __version__, "torch": torch.__version__,
                        "threads": torch.get_num_threads()},
        "gain": gains,
        "conditions": conditions(SCENES[stream](), n_windows, runs),
        "runs": {kind: [asdict(one) for one in done] for kind, done in runs.items()},
    }  # fmt: skip
    write_table(arguments.out, table)
    print("\n".join(lines(table)))
    listed = " ".join(f"{points:+.1f}" for points in gains)
    print(f"gain over the last {claim.over} windows: {listed} points; {claim.least:+g} are needed")
    return 0 if min(gains) >= claim.least and conditions_hold(table["conditions"], claim) else 1


def gain(with_: Run, without: Run, over: int) -> float:
    """Return the gain by answers in points, over the last windows."""
    return mean(with_.accuracy[-over:]) - mean(without.accuracy[-over:])


def conditions(scene: Scene, n_windows: int, runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """Return the accuracy under each condition of the camera, one number per seed."""
    parts = groupby(range(n_windows), key=lambda window: scene.condition(WINDOW * window))
    found = []
    for name, group in parts:
        windows = list(group)
        first, last = windows[0], windows[-1] + 1
        of = {k: [mean(one.accuracy[first:last]) for one in done] for k, done in runs.items()}
        points = [
            answered - alone
            for with_, without in zip(runs["with"], runs["without"], strict=True)
            for answered, alone in zip(
                with_.accuracy[first:last], without.accuracy[first:last], strict=True
            )
        ]
        # Both servers get the same images, so each window is one measurement of the difference.
        error = stdev(points) / len(points) ** 0.5 if len(points) > 1 else None
        found.append(
            {
                "condition": name,
                "windows": [first, last],
                **of,
                "gain": mean(points),
                "error": error,
            }
        )
    return found


def conditions_hold(rows: list[dict[str, Any]], claim: Claim) -> bool:
    """Return True if answers gain as much as claimed under each condition. Print the worst one."""
    if claim.least_per_condition is None:
        return True
    worst = min(rows, key=lambda row: float(row["gain"]))
    error = "unknown" if worst["error"] is None else f"{worst['error']:.1f}"
    print(
        f"gain in {worst['condition']}, the worst condition, over all seeds: "
        f"{worst['gain']:+.1f} points (standard error {error}); "
        f"{claim.least_per_condition:+g} are needed"
    )
    return bool(worst["gain"] >= claim.least_per_condition)


def lines(table: dict[str, Any]) -> list[str]:
    """Return a table of docs/explanation/server-measurements.md: accuracy of each seed."""
    claim, n_windows = table["settings"]["claim"], table["conditions"][-1]["windows"][1]
    over = min(claim["over"], n_windows)
    last = {k: [mean(one["accuracy"][-over:]) for one in of] for k, of in table["runs"].items()}
    rows = [
        (row["condition"].replace("_", " "), row["windows"], row) for row in table["conditions"]
    ]
    name = "all" if over == n_windows else f"the last {over}"
    whole = {**last, "gain": mean(table["gain"])}
    rows.append((f"**{name} windows**", [n_windows - over, n_windows], whole))
    pooled = claim.get("least_per_condition") is not None
    table_rows = ["| pictures | windows | with answers | without |", "|---|---|---|---|"]
    table_rows = [
        line + more * pooled for line, more in zip(table_rows, (" gain |", "---|"), strict=True)
    ]
    for name, (first, stop), row in rows:
        with_, without = (", ".join(f"{a:.1f}" for a in row[kind]) for kind in ("with", "without"))
        gained = f" {row['gain']:+.1f} |" if pooled else ""
        table_rows.append(f"| {name} | {first + 1} to {stop} | {with_} | {without} |{gained}")
    return table_rows


def run(stream: str, seed: int, n_windows: int, *, answering: bool) -> Run:
    """Send all windows to one server."""
    scene = SCENES[stream](seed=seed)
    truth: dict[str, int] = {}
    accuracy, suspected = [], 0
    with demo_server(stream, seed) as (operator, annotator):
        answers = SimulatedAnnotator(annotator, lambda asked: truth[asked.prediction_id])
        for window in range(n_windows):
            images = [scene.image(WINDOW * window + row) for row in range(WINDOW)]
            labels = [label for _, label in images]
            predictions = operator.predict([image for image, _ in images])
            is_correct = [
                p.class_index == label for p, label in zip(predictions, labels, strict=True)
            ]
            accuracy.append(100 * mean(is_correct))
            truth = {p.prediction_id: label for p, label in zip(predictions, labels, strict=True)}
            n_asked = answers.counts.n_answered + N_QUERIES if answering else 0
            status = wait_until_learned(operator, window + 1, n_asked)
            suspected += status["collapse"]["state"] != "ok"
            if answering:
                answers.run(answers.counts.n_answered + N_QUERIES)
        status = operator.status()
    return Run(
        seed, answers.counts.n_answered, status["model"]["version"], status["audits"], suspected,
        accuracy,
    )  # fmt: skip


def wait_until_learned(operator: Client, n_windows: int, n_asked: int) -> dict[str, Any]:
    """Wait for a number of questions and of learned windows. Return the status."""
    end = time.monotonic() + WINDOW_SECONDS
    while time.monotonic() < end:
        status = operator.status()
        if not status["model"]["version"].startswith("1."):
            raise SystemExit(f"the server has rolled back: {status['collapse']['reasons']}")
        if status["questions"]["asked"] >= n_asked and status["learning"]["steps"] >= n_windows:
            return status
        time.sleep(0.02)
    raise SystemExit(f"window {n_windows} was not learned from within {WINDOW_SECONDS:g} seconds")


@contextmanager
def demo_server(stream: str, seed: int) -> Iterator[tuple[Client, Client]]:
    """Start a server without a camera. Yield clients of its operator and of an annotator."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bitta.cli.main", "serve", "--demo", stream]
        command += ["--rate", "0", "--port", "0", "--data-dir", folder]
        # The script waits for every window, so the worker may learn all the time.
        environment = os.environ | {"BITTA_SERVE_SEED": str(seed), "BITTA_SERVE_DUTY": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            url, keys = read_url_and_keys(process)
            with (
                Client(url, keys["operator"], timeout=60) as operator,
                Client(url, keys["annotator"], timeout=60) as annotator,
            ):
                yield operator, annotator
        finally:
            process.terminate()
            process.communicate()


def read_url_and_keys(process: "subprocess.Popen[str]") -> tuple[str, dict[str, str]]:
    """Read the address and the keys that the server prints."""
    keys: dict[str, str] = {}
    for line in process.stdout or ():
        if found := re.match(r"  (client|annotator|operator)\s+(\S+)", line):
            keys[found[1]] = found[2]
        if found := re.search(r"(http://\S+)/openapi.json", line):
            return found[1], keys
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    sys.exit(main())
