"""Seconds from the start of a killed server to its first ready answer.

    python scripts/time_restart.py --times 10 --out results/serving/restart.json

A server with the demo's model learns for a while and keeps a snapshot, is killed with SIGKILL right
after it has served, and started again, over and over. Measured is the time from the spawning of the
process until /v2/health/ready says 200, which it does once the worker that owns the model goes
round and the database takes writes; predictions are then asked for and must come. The time that a
bare `import torch` takes is measured before each start, so that a machine that is busy with
something else can be told. Ends with 1 where one restart takes 3 seconds or more.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from load_cases import MODEL, Server, load, served, wait_ready

from bitta.results import write_table
from bitta.version import __version__

STEPS = 3
ALLOWED = 3.0
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""With bytecode, as what is installed has it."""


def main() -> int:
    """Print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        restarts, imports, versions = measure(Path(folder), arguments.times)
    table = {
        "command": f"python scripts/time_restart.py --times {arguments.times}",
        "environment": {"bitta": __version__, "python": platform.python_version(),
                        "torch": torch.__version__, "cores": os.cpu_count(), "model": MODEL},
        "seconds": restarts,
        "import_torch_seconds": imports,
        "versions": versions,
        "median": median(restarts),
        "longest": max(restarts),
        "median_import_torch": median(imports),
        "allowed": ALLOWED,
        "holds": max(restarts) < ALLOWED,
    }  # fmt: skip
    write_table(arguments.out, table)
    print(line(table))
    return 0 if table["holds"] else 1


def line(table: dict[str, Any]) -> str:
    """What docs/how-to/serve.md says of it."""
    return (
        f"Killed with SIGKILL and started again, it is ready after {table['median']:.1f} seconds "
        f"(median of {len(table['seconds'])}, the longest {table['longest']:.1f}), of which "
        f"importing torch takes {table['median_import_torch']:.1f}"
    )


def measure(folder: Path, times: int) -> tuple[list[float], list[float], list[str]]:
    """Seconds of each restart and import, and the versions that were gone on from."""
    command, made = served("unanswered", folder)
    process = started(command, made["port"])[0]
    restarts, imports, versions = [], [], []
    try:
        for _ in range(times):
            server = Server(process=process, **made)
            learn(server)
            process.kill()
            process.wait()
            imports.append(import_torch())
            process, seconds = started(command, made["port"])
            restarts.append(seconds)
            server = Server(process=process, **made)
            load(server, 0.05, 1)
            versions.append(server.ask("/v1/status")["model"]["version"])
            print(f"{seconds:.2f} s to {versions[-1]}, torch {imports[-1]:.2f} s", flush=True)
    finally:
        process.kill()
        process.wait()
    return restarts, imports, versions


def learn(server: Server) -> None:
    """Serve until some steps were made, and keep a snapshot."""
    begun = server.ask("/v1/status")["learning"]["steps"]
    while server.ask("/v1/status")["learning"]["steps"] < begun + STEPS:
        load(server, 1.0, 4)
    server.ask("/v1/snapshots", method="POST")
    load(server, 0.5, 4)


def started(command: list[str], port: int) -> tuple[subprocess.Popen[bytes], float]:
    """A process, and the seconds until it was ready."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    wait_ready(process, port)
    return process, time.monotonic() - began


def import_torch() -> float:
    """Seconds of the least that any server with this model has to do."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
