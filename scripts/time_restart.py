"""Measure the time from the start of a killed server until it is ready.

    python scripts/time_restart.py --times 10 --out reproduction/results/serving/restart.json

A server with the demo's model learns for a while, takes a snapshot, is killed with SIGKILL right
after a request, and is started again, repeatedly. The script measures the time from the start of
the process until /v2/health/ready returns 200: the worker runs, and the database accepts writes.
Then predictions must succeed. Before each start it also measures a bare `import torch`, which shows
if the machine is busy with other work. The exit code is 1 if a restart takes 3 seconds or more.
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
from load_cases import MODEL, LoadedServer, run_load, server_command, wait_ready

from bitta.results import write_table
from bitta.version import __version__

N_STEPS_BEFORE_KILL = 3
MAX_SECONDS = 3.0
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Environment of the server. It lets the server write bytecode, like an installed package."""


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10, help="number of restarts (default: 10)")
    parser.add_argument("--out", type=Path, required=True, help="result to write, .json")
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
        "allowed": MAX_SECONDS,
        "holds": max(restarts) < MAX_SECONDS,
    }  # fmt: skip
    write_table(arguments.out, table)
    print(line(table))
    return 0 if table["holds"] else 1


def line(table: dict[str, Any]) -> str:
    """Return the sentence of docs/explanation/server-measurements.md."""
    return (
        f"After SIGKILL and a new start, the server is ready in {table['median']:.1f} seconds "
        f"(median of {len(table['seconds'])}, the longest {table['longest']:.1f}). The import of "
        f"torch takes {table['median_import_torch']:.1f} seconds of this time"
    )


def measure(folder: Path, times: int) -> tuple[list[float], list[float], list[str]]:
    """Return the seconds of each restart and import, and the versions after each restart."""
    command, options = server_command("unanswered", folder)
    process = start_process(command, options["port"])[0]
    restarts, imports, versions = [], [], []
    try:
        for _ in range(times):
            server = LoadedServer(process=process, **options)
            learn_some_steps(server)
            process.kill()
            process.wait()
            imports.append(import_torch())
            process, seconds = start_process(command, options["port"])
            restarts.append(seconds)
            server = LoadedServer(process=process, **options)
            run_load(server, 0.05, 1)
            versions.append(server.request("/v1/status")["model"]["version"])
            print(f"{seconds:.2f} s to {versions[-1]}, torch {imports[-1]:.2f} s", flush=True)
    finally:
        process.kill()
        process.wait()
    return restarts, imports, versions


def learn_some_steps(server: LoadedServer) -> None:
    """Serve until some learning steps have run, and take a snapshot."""
    n_steps = server.request("/v1/status")["learning"]["steps"]
    while server.request("/v1/status")["learning"]["steps"] < n_steps + N_STEPS_BEFORE_KILL:
        run_load(server, 1.0, 4)
    server.request("/v1/snapshots", method="POST")
    run_load(server, 0.5, 4)


def start_process(command: list[str], port: int) -> tuple[subprocess.Popen[bytes], float]:
    """Start a server. Return its process and the seconds until it was ready."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    wait_ready(process, port)
    return process, time.monotonic() - started


def import_torch() -> float:
    """Return the seconds of `import torch`, which every server with this model needs."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
