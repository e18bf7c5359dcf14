"""Run servers under load for a long time: kill them, send broken images, measure their memory.

    PYTHONPATH=tests python scripts/soak.py --out reproduction/results/serving/soak.json

`make soak` runs this script. A part whose number is 0 is skipped. The result file is written before
and after each part, so that an interruption loses at most one part. If a check fails or a part was
not run, the file says so, and the exit code is 1.
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
from soak_kills import check_kills, missing_database_reason
from soak_memory import check_memory_growth
from soak_pictures import MAX_GROWTH_MIB, check_broken_images
from sqlalchemy.exc import SQLAlchemyError

from bitta.errors import BittaError
from bitta.results import write_table
from bitta.version import __version__
from server.processes import MODEL

Part = Callable[[Callable[[str], None]], tuple[dict[str, Any], list[str]]]


def main() -> int:
    """Run the parts in turn. Return the exit code."""
    arguments = _arguments()
    parts = _parts(arguments)
    if "kills_postgresql" in parts and (why := missing_database_reason("postgresql")):
        print(f"PostgreSQL is missing, so the result will not hold: {why}", flush=True)
    names = ("kills", "pictures", "minutes")
    table: dict[str, Any] = {
        "command": f"make soak KILLS={arguments.kills} PICTURES={arguments.pictures} "
        f"MINUTES={arguments.minutes:g}",
        "settings": {name: getattr(arguments, name) for name in names},
        "environment": _environment(),
        "parts": {name: {"holds": False, "wrong": ["was not started"]} for name in parts},
        "holds": False,
    }
    try:
        for name, part in parts.items():
            table["parts"][name] = {"holds": False, "wrong": ["was not finished"]}
            write_table(arguments.out, table)
            table["parts"][name] = _run_part(name, part)
            table["holds"] = all(part["holds"] for part in table["parts"].values())
            write_table(arguments.out, table)
    except KeyboardInterrupt:
        print("stopped.")
    _print_summary(table, arguments.out)
    return 0 if table["holds"] else 1


def lines(table: dict[str, Any]) -> list[str]:
    """Return the sentences of docs/explanation/server-measurements.md."""
    parts = table["parts"]
    kill_parts = [parts["kills_sqlite"], parts["kills_postgresql"]]
    ready = [seconds for part in kill_parts for seconds in part["seconds_to_ready"]["all"]]
    too_long = sum(part["seconds_to_ready"]["too_long"] for part in kill_parts)
    watched, sent = parts["memory"], parts["pictures"]
    *_, before, after = sent["most_resident_mib"]
    least, most = watched["least_mib"], watched["most_mib"]
    return [
        f"Of {sum(part['acknowledged'] for part in kill_parts):,} answers that were acknowledged "
        f"between {sum(part['kills'] for part in kill_parts)} kills, none was lost and none was "
        "learned twice.",
        f"Of {len(ready)} restarts, {too_long or 'none'} took three seconds or more. The longest "
        f"took {max(ready):.1f} seconds ({_median_times(kill_parts)}).",
        f"{sent['pictures']:,} broken pictures were sent in {sent['times']} rounds. None caused a "
        f"status 500. In the last round the memory peak grew by {after - before:.1f} MiB (allowed: "
        f"{MAX_GROWTH_MIB:g}).",
        f"In {watched['minutes']:g} minutes of serving, asking and learning, the memory between "
        f"learning steps changed by {least['slope_per_10_minutes']:+.1f} MiB in ten minutes "
        f"(allowed: {least['allowed_per_10_minutes']:g}), from {least['each'][0]:.0f} MiB to "
        f"{least['each'][-1]:.0f}. The peak during a step changed from "
        f"{most['median_of_first_half']:.0f} to {most['median_of_last_half']:.0f} MiB.",
    ]


def _median_times(kill_parts: list[dict[str, Any]]) -> str:
    sqlite, postgresql = (part["seconds_to_ready"]["median"] for part in kill_parts)
    return f"median {sqlite:.1f} with SQLite, {postgresql:.1f} with PostgreSQL"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="kills per database")
    parser.add_argument("--pictures", type=int, default=10_000, help="broken images to send")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of load with learning")
    parser.add_argument("--out", type=Path, required=True, help="result to write, .json")
    return parser.parse_args()


def _parts(arguments: argparse.Namespace) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    if arguments.kills:
        parts["kills_sqlite"] = partial(check_kills, "sqlite", arguments.kills)
        parts["kills_postgresql"] = partial(check_kills, "postgresql", arguments.kills)
    if arguments.pictures:
        parts["pictures"] = partial(check_broken_images, arguments.pictures)
    if arguments.minutes:
        parts["memory"] = partial(check_memory_growth, arguments.minutes)
    return parts


def _run_part(name: str, part: Part) -> dict[str, Any]:
    print(f"{name} ...", flush=True)
    started = time.monotonic()
    try:
        found, problems = part(lambda line: print(f"  {line}", flush=True))
    except (AssertionError, OSError, BittaError, SQLAlchemyError) as error:
        found, problems = {}, [f"{type(error).__name__}: {error}"]
    seconds = round(time.monotonic() - started, 1)
    found = {"holds": not problems, "wrong": problems, "seconds": seconds, **found}
    for key, value in found.items():
        print(f"  {key}: {_short(value)}", flush=True)
    return found


def _print_summary(table: dict[str, Any], out: Path) -> None:
    for name, part in table["parts"].items():
        print(f"{name:<18} {'holds' if part['holds'] else '; '.join(part['wrong'])}")
    if len(table["parts"]) == 4 and table["holds"]:
        print("\n".join(lines(table)))
    print(f"{out}: {'everything holds' if table['holds'] else 'not everything holds'}")


def _short(value: Any) -> Any:
    """Return a value without its lists, for printing."""
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items() if not isinstance(item, list)}
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
