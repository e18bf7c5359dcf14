"""Requests per second of the feedback server beside a bare endpoint around the same model.

    python scripts/load_server.py --seconds 5 --rounds 12 --out results/serving/load.json

One image per request, from several connections at once. The bare endpoint is FastAPI and uvicorn
with the model's forward in a thread. Beside it, the server with BiTTA's one step per window and
memories of 64 + 64:

off          once an operator has paused adaptation
unanswered   asking and learning, but nobody answers, so that most windows soon ask nothing
answered     asking and learning, and `bitta annotate --simulate`, a process of its own on the
             same cores, answers everything at once: a window asks for each step, and the memories
             are full

All run at the same time, and each is loaded in short turns while the others rest, so that whatever
else the machine does meets all of them. Ends with 1 where less than .7 (off) or .4 (the others) of
the bare endpoint's requests per second are left.
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
from load_cases import MODEL, Server, Turn, load, rest, serving

from bitta.results import write_table
from bitta.version import __version__

LEAST = {"off": 0.7, "unanswered": 0.4, "answered": 0.4}
KINDS = ("bare", *LEAST)
NAMES = {
    "bare": "bare endpoint",
    "off": "learning paused",
    "unanswered": "learning, nobody answers",
    "answered": "learning, everything is answered",
}
MEMORIES = 160
"""Answers after which both memories, of 64 each, are taken to be full."""


def main() -> int:
    """Four servers in turns; print and write."""
    arguments = _arguments()
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(serving(kind)) for kind in KINDS}
        for kind, server in servers.items():
            _warm(kind, server, arguments.warm)
        before = {kind: servers[kind].done() for kind in LEAST}
        turns = _turns(servers, arguments)
        after = {kind: servers[kind].done() for kind in LEAST}
    measured = {kind: _summary(all_) for kind, all_ in turns.items()}
    for kind in LEAST:
        measured[kind] |= {name: n - before[kind][name] for name, n in after[kind].items()}
    bare = measured["bare"]["per_second"]
    ratio = {kind: measured[kind]["per_second"] / bare for kind in LEAST}
    table = {
        "command": f"python scripts/load_server.py --seconds {arguments.seconds:g} "
                   f"--rounds {arguments.rounds}",
        "settings": {name: getattr(arguments, name)
                     for name in ("seconds", "rounds", "connections", "warm")},
        "environment": _environment(),
        "measured": measured,
        "ratio": ratio,
        "least": LEAST,
        "holds": all(ratio[kind] >= least for kind, least in LEAST.items()),
    }  # fmt: skip
    write_table(arguments.out, table)
    print("\n".join(lines(table)))
    return 0 if table["holds"] else 1


def lines(table: dict[str, Any]) -> list[str]:
    """As docs/how-to/serve.md shows it."""
    made = [
        "|  | requests a second | of the bare endpoint's | p50 | p99 | windows that asked |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        found, ratio = table["measured"][kind], table["ratio"].get(kind)
        cells = [NAMES[kind], f"{found['per_second']:.0f}"]
        cells.append("" if ratio is None else f"{ratio:.2f}".removeprefix("0"))
        cells += [f"{found['p50_ms']:.0f} ms", f"{found['p99_ms']:.0f} ms"]
        learns = kind in ("unanswered", "answered")
        cells.append(f"{found['asked']} of {found['windows']}" if learns else "")
        made.append(f"| {' | '.join(cells)} |")
    return made


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12, help="turns of each server")
    parser.add_argument("--warm", type=float, default=600.0,
                        help="most seconds for the memories to fill")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _warm(kind: str, server: Server, seconds: float) -> None:
    """Let lazy things happen; where answers come, let them fill the memories."""
    load(server, 3.0, 4)
    end = time.monotonic() + seconds
    while kind == "answered" and (learned := server.done()["answers_learned"]) < MEMORIES:
        print(f"learned from {learned} of {MEMORIES} answers before it is measured", flush=True)
        if time.monotonic() > end:
            raise SystemExit(f"the memories were not full after {seconds:g} seconds")
        load(server, 5.0, 4)
    rest(server)


def _turns(servers: dict[str, Server], arguments: argparse.Namespace) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {kind: [] for kind in servers}
    for number in range(arguments.rounds):
        kinds = [*servers][number % len(servers) :] + [*servers][: number % len(servers)]
        for kind in kinds:
            turns[kind].append(load(servers[kind], arguments.seconds, arguments.connections))
            rest(servers[kind])
        rates = "  ".join(f"{kind} {turns[kind][-1].per_second:.0f}" for kind in servers)
        print(f"{number + 1} of {arguments.rounds}: {rates} a second", flush=True)
    return turns


def _summary(turns: list[Turn]) -> dict[str, Any]:
    """Over all turns of a server."""
    times = [one for turn in turns for one in turn.times]
    cuts = quantiles(times, n=100)
    return {
        "per_second": mean(turn.per_second for turn in turns),
        "each_turn": [round(turn.per_second, 1) for turn in turns],
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
        "cpu_ms": 1000 * sum(turn.cpu for turn in turns) / len(times),
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
