"""What answers are worth to the server of `bitta serve --demo`, beside the same one without them.

    python scripts/serve_demo.py --out results/serving/demo.json
    python scripts/serve_demo.py --stream corruptions --out results/serving/demo-corruptions.json

Every run is a server of its own, as a process, with the demo's settings and no camera: the pictures
of the camera come over HTTP in requests of one window, and the next is sent once the server has
learned from the last. With answers, the truth then answers every question of that window; without,
nobody does. A label counts as it was served. Ends with 1 where the claim does not hold:

digits        with answers at least 20 points above, over the last 20 windows, for every seed
corruptions   with answers at most 1 point below, over all windows for every seed, and in every
              spell of the weather over all seeds
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
from bitta.client.simulated import SimulatedAnnotator
from bitta.results import write_table
from bitta.server.camera import SCENES, Scene
from bitta.version import __version__

WINDOW = 64
N_QUERIES = 3
PATIENCE = 300.0  # seconds for one window


@dataclass(frozen=True)
class Claim:
    """Answers gain at least `least` points over the last `over` windows of `windows`."""

    windows: int
    over: int
    least: float
    in_spell: float | None = None
    """Points that they gain at least in each spell, over all seeds; None for any number."""


CLAIMS = {
    # 90 windows are 5,760 of the 6,000 digits: none is seen twice.
    "digits": Claim(windows=90, over=20, least=20.0),
    # Each of the seven spells of the weather once.
    "corruptions": Claim(windows=84, over=84, least=-1.0, in_spell=-1.0),
}


@dataclass(frozen=True)
class Run:
    """What one server did."""

    seed: int
    answers: int
    """Given."""
    version: str
    """At the end; it begins with 1 unless the server has rolled back."""
    audits: dict[str, float | None]
    """What the server itself says about its accuracy at the end."""
    suspected: int
    """Windows after which the guard was not content."""
    accuracy: list[float]
    """Of each window, in percent."""


def main() -> int:
    """Six runs; print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stream", choices=list(CLAIMS), default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--windows", type=int, help="for a shorter look")
    parser.add_argument("--jobs", type=int, default=2, help="servers at a time (default: 2)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    stream, claim = arguments.stream, CLAIMS[arguments.stream]
    n_windows = arguments.windows or claim.windows

    def one(seed: int, kind: str) -> Run:
        done = run(stream, seed, n_windows, answering=kind == "with")
        print(f"seed {seed} {kind} answers: {mean(done.accuracy):.1f} %", flush=True)
        return done

    with ThreadPoolExecutor(arguments.jobs) as pool:
        begun = {
            kind: [pool.submit(one, seed, kind) for seed in arguments.seeds]
            for kind in ("with", "without")
        }
        runs = {kind: [each.result() for each in all_] for kind, all_ in begun.items()}
    gains = [gain(*pair, claim.over) for pair in zip(runs["with"], runs["without"], strict=True)]
    table: dict[str, Any] = {
        "command": f"python scripts/serve_demo.py --stream {stream}",
        "settings": {"window": WINDOW, "seeds": arguments.seeds, "claim": asdict(claim),
                     "method": DEMOS[stream]["settings"], "n_queries": N_QUERIES, "audits": 1},
        "environment": {"bitta": __version__, "torch": torch.__version__,
                        "threads": torch.get_num_threads()},
        "gain": gains,
        "spells": spells(SCENES[stream](), n_windows, runs),
        "runs": {kind: [asdict(one) for one in done] for kind, done in runs.items()},
    }  # fmt: skip
    write_table(arguments.out, table)
    print("\n".join(lines(table)))
    said = " ".join(f"{points:+.1f}" for points in gains)
    print(f"gain over the last {claim.over} windows: {said} points; {claim.least:+g} are needed")
    return 0 if min(gains) >= claim.least and spells_hold(table["spells"], claim) else 1


def gain(with_: Run, without: Run, over: int) -> float:
    """Points, over the last windows."""
    return mean(with_.accuracy[-over:]) - mean(without.accuracy[-over:])


def spells(scene: Scene, n_windows: int, runs: dict[str, list[Run]]) -> list[dict[str, Any]]:
    """Accuracy in each stretch of like pictures, a number per seed."""
    parts = groupby(range(n_windows), key=lambda window: scene.spell(WINDOW * window))
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
        # Both servers see the same pictures, so a window is one measurement of the difference.
        error = stdev(points) / len(points) ** 0.5 if len(points) > 1 else None
        found.append(
            {"spell": name, "windows": [first, last], **of, "gain": mean(points), "error": error}
        )
    return found


def spells_hold(rows: list[dict[str, Any]], claim: Claim) -> bool:
    """Whether answers gain as much as claimed in each spell; tells which is worst."""
    if claim.in_spell is None:
        return True
    worst = min(rows, key=lambda row: float(row["gain"]))
    error = "unknown" if worst["error"] is None else f"{worst['error']:.1f}"
    print(f"gain in {worst['spell']}, the worst spell, over all seeds: {worst['gain']:+.1f} points "
          f"(standard error {error}); {claim.in_spell:+g} are needed")  # fmt: skip
    return bool(worst["gain"] >= claim.in_spell)


def lines(table: dict[str, Any]) -> list[str]:
    """Accuracy in percent, a number per seed, as docs/how-to/serve.md shows it."""
    claim, n_windows = table["settings"]["claim"], table["spells"][-1]["windows"][1]
    over = min(claim["over"], n_windows)
    last = {k: [mean(one["accuracy"][-over:]) for one in of] for k, of in table["runs"].items()}
    rows = [(row["spell"].replace("_", " "), row["windows"], row) for row in table["spells"]]
    name = "all" if over == n_windows else f"the last {over}"
    whole = {**last, "gain": mean(table["gain"])}
    rows.append((f"**{name} windows**", [n_windows - over, n_windows], whole))
    pooled = claim.get("in_spell") is not None
    made = ["| pictures | windows | with answers | without |", "|---|---|---|---|"]
    made = [line + more * pooled for line, more in zip(made, (" gain |", "---|"), strict=True)]
    for name, (first, stop), row in rows:
        with_, without = (", ".join(f"{a:.1f}" for a in row[kind]) for kind in ("with", "without"))
        gained = f" {row['gain']:+.1f} |" if pooled else ""
        made.append(f"| {name} | {first + 1} to {stop} | {with_} | {without} |{gained}")
    return made


def run(stream: str, seed: int, n_windows: int, *, answering: bool) -> Run:
    """All windows through one server."""
    scene = SCENES[stream](seed=seed)
    truth: dict[str, int] = {}
    accuracy, suspected = [], 0
    with served(stream, seed) as (operator, annotator):
        answers = SimulatedAnnotator(annotator, lambda asked: truth[asked.prediction_id])
        for window in range(n_windows):
            pictures = [scene.picture(WINDOW * window + row) for row in range(WINDOW)]
            labels = [label for _, label in pictures]
            got = operator.predict([picture for picture, _ in pictures])
            right = [one.class_index == label for one, label in zip(got, labels, strict=True)]
            accuracy.append(100 * mean(right))
            truth = {one.prediction_id: label for one, label in zip(got, labels, strict=True)}
            asked = answers.counts.n_answered + N_QUERIES if answering else 0
            status = learned(operator, window + 1, asked)
            suspected += status["collapse"]["state"] != "ok"
            if answering:
                answers.run(answers.counts.n_answered + N_QUERIES)
        status = operator.status()
    return Run(
        seed, answers.counts.n_answered, status["model"]["version"], status["audits"], suspected,
        accuracy,
    )  # fmt: skip


def learned(operator: Client, windows: int, asked: int) -> dict[str, Any]:
    """Wait until so many questions were asked and so many windows learned from."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        status = operator.status()
        if not status["model"]["version"].startswith("1."):
            raise SystemExit(f"the server has rolled back: {status['collapse']['reasons']}")
        if status["questions"]["asked"] >= asked and status["learning"]["steps"] >= windows:
            return status
        time.sleep(0.02)
    raise SystemExit(f"window {windows} was not learned from within {PATIENCE:g} seconds")


@contextmanager
def served(stream: str, seed: int) -> Iterator[tuple[Client, Client]]:
    """A server without a camera, as its operator and as an annotator."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bitta.cli.main", "serve", "--demo", stream]
        command += ["--rate", "0", "--port", "0", "--data-dir", folder]
        # Every window is waited for, so the worker may learn all the time.
        environment = os.environ | {"BITTA_SERVE_SEED": str(seed), "BITTA_SERVE_DUTY": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            url, keys = told(process)
            with (
                Client(url, keys["operator"], timeout=60) as operator,
                Client(url, keys["annotator"], timeout=60) as annotator,
            ):
                yield operator, annotator
        finally:
            process.terminate()
            process.communicate()


def told(process: "subprocess.Popen[str]") -> tuple[str, dict[str, str]]:
    """Its address and keys, as it prints them."""
    keys: dict[str, str] = {}
    for line in process.stdout or ():
        if found := re.match(r"  (client|annotator|operator)\s+(\S+)", line):
            keys[found[1]] = found[2]
        if found := re.search(r"(http://\S+)/openapi.json", line):
            return found[1], keys
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    sys.exit(main())
