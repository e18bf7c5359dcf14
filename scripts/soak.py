"""Whole servers under load for a long time: killed, sent broken pictures, watched for growth.

    PYTHONPATH=tests python scripts/soak.py --out results/serving/soak.json

`make soak` runs it. A number of 0 leaves a part out. Parts that are finished are in the file even
if it is interrupted; where something is wrong, it says so there, and the exit status is 1.
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
from soak_kills import kills
from soak_memory import memory
from soak_pictures import pictures

from bitta.results import write_table
from bitta.version import __version__
from server.processes import MODEL

Part = Callable[[Callable[[str], None]], tuple[dict[str, Any], list[str]]]


def main() -> int:
    """Run the parts in turn; the exit status."""
    arguments = _arguments()
    settings = {name: getattr(arguments, name) for name in ("kills", "pictures", "minutes")}
    table: dict[str, Any] = {"settings": settings, "environment": _environment(), "parts": {}}
    done = table["parts"]
    interrupted = False
    for name, part in _parts(arguments).items():
        try:
            done[name] = _ran(name, part)
        except KeyboardInterrupt:
            done[name] = {"wrong": ["interrupted"]}
            interrupted = True
        table["passed"] = not any(one["wrong"] for one in done.values())
        write_table(arguments.out, table)
        if interrupted:
            break
    print(f"{arguments.out}: {'all is well' if table.get('passed') else 'something is wrong'}")
    return 130 if interrupted else 0 if table.get("passed") else 1


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
    except AssertionError as error:
        found, wrong = {}, [str(error)]
    found = {"wrong": wrong, "seconds": round(time.monotonic() - began, 1), **found}
    for key, value in found.items():
        print(f"  {key}: {_short(value)}", flush=True)
    return found


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
