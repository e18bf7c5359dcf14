r"""Compare requests per second of the feedback server and of a bare endpoint with the same model.

    python scripts/load_server.py --seconds 5 --rounds 12 \
        --out reproduction/results/serving/load.json

Each request holds one image, and several connections send at once. The bare endpoint is FastAPI and
uvicorn with the model's forward pass in a thread. The server runs BiTTA with one update per
window and memories of 64 + 64, in three cases:

off          an operator has paused adaptation
unanswered   it asks and learns, but nobody answers: soon the maximum number of questions is open,
             and most windows ask nothing
answered     it asks and learns, and `bitta annotate --simulate` answers at once, as another process
             on the same cores: every learning step has questions, and the memories are full

All servers run at the same time. Each is loaded in short rounds while the others are idle, so that
other work on the machine affects all of them. The exit code is 1 if a server reaches less than .7
(off) or .4 (the others) of the bare endpoint's requests per second.
"""

import argparse
import os
import platform
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import torch
from load_cases import MODEL, LoadedServer, LoadRound, run_load, running_server, wait_until_idle

from bitta.results import write_table
from bitta.version import __version__

MIN_RATIOS = {"off": 0.7, "unanswered": 0.4, "answered": 0.4}
KINDS = ("bare", *MIN_RATIOS)
NAMES = {
    "bare": "bare endpoint",
    "off": "learning paused",
    "unanswered": "learning, nobody answers",
    "answered": "learning, everything is answered",
}
N_TO_FILL = 160
"""Number of answers after which both memories, of 64 each, count as full."""


def main() -> int:
    """Measure four servers. Print and write the results."""
    arguments = _arguments()
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(running_server(kind)) for kind in KINDS}
        for kind, server in servers.items():
            _warm_up(kind, server, arguments.warm)
        before = {kind: servers[kind].counts() for kind in MIN_RATIOS}
        rounds = _run_rounds(servers, arguments)
        after = {kind: servers[kind].counts() for kind in MIN_RATIOS}
    measured = {kind: _summary(of_kind) for kind, of_kind in rounds.items()}
    for kind in MIN_RATIOS:
        measured[kind] |= {name: n - before[kind][name] for name, n in after[kind].items()}
    bare = measured["bare"]["per_second"]
    ratio = {kind: measured[kind]["per_second"] / bare for kind in MIN_RATIOS}
    table = {
        "command": f"python scripts/load_server.py --seconds {arguments.seconds:g} "
                   f"--rounds {arguments.rounds}",
        "settings": {name: getattr(arguments, name)
                     for name in ("seconds", "rounds", "connections", "warm")},
        "environment": _environment(),
        "measured": measured,
        "ratio": ratio,
        "least": MIN_RATIOS,
        "holds": all(ratio[kind] >= least for kind, least in MIN_RATIOS.items()),
    }  # fmt: skip
    write_table(arguments.out, table)
    print("\n".join(lines(table)))
    return 0 if table["holds"] else 1


def lines(table: dict[str, Any]) -> list[str]:
    """Return the Markdown table of docs/explanation/server-measurements.md."""
    rows = [
        "|  | requests per second | share of the bare endpoint | p50 | p99 | windows that asked |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        found, ratio = table["measured"][kind], table["ratio"].get(kind)
        cells = [NAMES[kind], f"{found['per_second']:.0f}"]
        cells.append("" if ratio is None else f"{ratio:.2f}".removeprefix("0"))
        cells += [f"{found['p50_ms']:.0f} ms", f"{found['p99_ms']:.0f} ms"]
        learns = kind in ("unanswered", "answered")
        cells.append(f"{found['asked']} of {found['windows']}" if learns else "")
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per round")
    parser.add_argument("--connections", type=int, default=4, help="connections that send at once")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each server")
    parser.add_argument("--warm", type=float, default=600.0,
                        help="longest time in seconds to fill the memories")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help="result to write, .json")
    return parser.parse_args()


def _warm_up(kind: str, server: LoadedServer, seconds: float) -> None:
    """Warm up a server. With answers, fill its memories."""
    run_load(server, 3.0, 4)
    end = time.monotonic() + seconds
    while kind == "answered" and (learned := server.counts()["answers_learned"]) < N_TO_FILL:
        print(f"learned from {learned} of {N_TO_FILL} answers before the measurement", flush=True)
        if time.monotonic() > end:
            raise SystemExit(f"the memories were not full after {seconds:g} seconds")
        run_load(server, 5.0, 4)
    wait_until_idle(server)


def _run_rounds(
    servers: dict[str, LoadedServer], arguments: argparse.Namespace
) -> dict[str, list[LoadRound]]:
    rounds: dict[str, list[LoadRound]] = {kind: [] for kind in servers}
    for number in range(arguments.rounds):
        kinds = [*servers][number % len(servers) :] + [*servers][: number % len(servers)]
        for kind in kinds:
            rounds[kind].append(run_load(servers[kind], arguments.seconds, arguments.connections))
            wait_until_idle(servers[kind])
        rates = "  ".join(f"{kind} {rounds[kind][-1].per_second:.0f}" for kind in servers)
        print(f"{number + 1} of {arguments.rounds}: {rates} a second", flush=True)
    return rounds


def _summary(rounds: list[LoadRound]) -> dict[str, Any]:
    """Summarise all rounds of a server."""
    latencies = [seconds for one_round in rounds for seconds in one_round.latencies]
    cuts = quantiles(latencies, n=100)
    return {
        "per_second": mean(one_round.per_second for one_round in rounds),
        "each_turn": [round(one_round.per_second, 1) for one_round in rounds],
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
        "cpu_ms": 1000 * sum(one_round.cpu_seconds for one_round in rounds) / len(latencies),
    }


def _environment() -> dict[str, Any]:
    return {
        "bitta": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "model": MODEL,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


if __name__ == "__main__":
    sys.exit(main())
