"""Whole servers under load for a long time: killed, sent broken pictures, watched for growth.

    PYTHONPATH=tests python scripts/soak.py --out results/serving/soak.json

`make soak` runs it. A number of 0 leaves a part out. The file is written before and after each
part, so that whatever interrupts it, it tells what was finished. Where something is wrong, or a
part was not run, it says so there, and the exit status is 1.
"""

import argparse
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from soak_kills import kills, missing
from soak_memory import memory
from soak_pictures import MOST, pictures
from sqlalchemy.exc import SQLAlchemyError

from bitta.errors import BittaError
from bitta.results import write_table
from bitta.version import __version__
from server.processes import MODEL

Part = Callable[[Callable[[str], None]], tuple[dict[str, Any], list[str]]]


def main() -> int:
    """Run the parts in turn; the exit status."""
    arguments = _arguments()
    parts = _parts(arguments)
    if "kills_postgresql" in parts and (why := missing("postgresql")):
        print(f"there is no PostgreSQL, so this will not hold as a whole: {why}", flush=True)
    names = ("kills", "pictures", "minutes")
    table: dict[str, Any] = {
        "command": f"make soak KILLS={arguments.kills} PICTURES={arguments.pictures} "
        f"MINUTES={arguments.minutes:g}",
        "settings": {name: getattr(arguments, name) for name in names},
        "environment": _environment(),
        "parts": {name: {"holds": False, "wrong": ["was not begun"]} for name in parts},
        "holds": False,
    }
    try:
        for name, part in parts.items():
            table["parts"][name] = {"holds": False, "wrong": ["was not finished"]}
            write_table(arguments.out, table)
            table["parts"][name] = _ran(name, part)
            table["holds"] = all(one["holds"] for one in table["parts"].values())
            write_table(arguments.out, table)
    except KeyboardInterrupt:
        print("stopped.")
    _conclude(table, arguments.out)
    return 0 if table["holds"] else 1


def lines(table: dict[str, Any]) -> list[str]:
    """What docs/how-to/serve.md says of it."""
    parts = table["parts"]
    by_kill = [parts["kills_sqlite"], parts["kills_postgresql"]]
    ready = [seconds for part in by_kill for seconds in part["seconds_to_ready"]["all"]]
    too_long = sum(part["seconds_to_ready"]["too_long"] for part in by_kill)
    watched, sent = parts["memory"], parts["pictures"]
    *_, before, after = sent["most_resident_mib"]
    least, most = watched["least_mib"], watched["most_mib"]
    return [
        f"Of {sum(part['acknowledged'] for part in by_kill):,} answers that were acknowledged "
        f"between {sum(part['kills'] for part in by_kill)} kills none was lost and none learned "
        "twice.",
        f"Of {len(ready)} restarts {too_long or 'none'} took three seconds or more, the longest "
        f"{max(ready):.1f} ({_middle(by_kill)}).",
        f"{sent['pictures']:,} broken pictures, each sent {sent['times']} times: no 500, and "
        f"memory grew by {after - before:.1f} MiB the last time (allowed: {MOST:g}).",
        f"In {watched['minutes']:g} minutes of serving, asking and learning, what it keeps moved "
        f"by {least['slope_per_10_minutes']:+.1f} MiB in ten minutes (allowed: "
        f"{least['allowed_per_10_minutes']:g}), from {least['each'][0]:.0f} MiB to "
        f"{least['each'][-1]:.0f}; the most it takes, with a step under way, from "
        f"{most['median_of_first_half']:.0f} to {most['median_of_last_half']:.0f}.",
    ]


def _middle(by_kill: list[dict[str, Any]]) -> str:
    sqlite, postgresql = (part["seconds_to_ready"]["median"] for part in by_kill)
    return f"median {sqlite:.1f} with SQLite, {postgresql:.1f} with PostgreSQL"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="of a server on each database")
    parser.add_argument("--pictures", type=int, default=10_000, help="broken ones to send")
    parser.add_argument("--minutes", type=float, default=30.0, help="of load with learning on")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _parts(arguments: argparse.Namespace) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    if arguments.kills:
        parts["kills_sqlite"] = partial(kills, "sqlite", arguments.kills)
        parts["kills_postgresql"] = partial(kills, "postgresql", arguments.kills)
    if arguments.pictures:
        parts["pictures"] = partial(pictures, arguments.pictures)
    if arguments.minutes:
        parts["memory"] = partial(memory, arguments.minutes)
    return parts


def _ran(name: str, part: Part) -> dict[str, Any]:
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    try:
        found, wrong = part(lambda line: print(f"  {line}", flush=True))
    except (AssertionError, OSError, BittaError, SQLAlchemyError) as error:
        found, wrong = {}, [f"{type(error).__name__}: {error}"]
    seconds = round(time.monotonic() - began, 1)
    found = {"holds": not wrong, "wrong": wrong, "seconds": seconds, **found}
    for key, value in found.items():
        print(f"  {key}: {_short(value)}", flush=True)
    return found


def _conclude(table: dict[str, Any], out: Path) -> None:
    for name, part in table["parts"].items():
        print(f"{name:<18} {'holds' if part['holds'] else '; '.join(part['wrong'])}")
    if len(table["parts"]) == 4 and all("seconds" in part for part in table["parts"].values()):
        print("\n".join(lines(table)))
    print(f"{out}: {'all of it holds' if table['holds'] else 'it does not hold'}")


def _short(value: Any) -> Any:
    """Without the numbers that are only of use to a machine."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items() if not isinstance(each, list)}
    return round(value, 2) if isinstance(value, float) else value


def _environment() -> dict[str, Any]:
    return {
        "bitta": __version__,
        "model": MODEL,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sqlite": sqlite3.sqlite_version,
    }


if __name__ == "__main__":
    sys.exit(main())
