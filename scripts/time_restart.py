"""Seconds from the start of a killed server to its first ready answer.

    python scripts/time_restart.py --times 10 --out results/serving/restart.json

A server with the demo's model learns for a while and keeps a snapshot, is killed with SIGKILL while
it serves, and started again, over and over. The time that a bare `import torch` takes is measured
before each start, so that a machine that is busy with something else can be told.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from load_server import MODEL, Server, free_port, load, served

from bitta.results import write_table
from bitta.version import __version__

STEPS = 3


def main() -> None:
    """Print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        restarts, imports, versions = measure(Path(folder), arguments.times)
    table = {
        "environment": {"bitta": __version__, "cores": os.cpu_count(), "model": MODEL},
        "seconds": restarts,
        "import_torch_seconds": imports,
        "versions": versions,
        "median": median(restarts),
        "longest": max(restarts),
        "median_import_torch": median(imports),
    }
    write_table(arguments.out, table)
    print(f"median {table['median']:.2f} s, longest {table['longest']:.2f} s")


def measure(folder: Path, times: int) -> tuple[list[float], list[float], list[str]]:
    """Seconds of each restart and import, and the versions that were gone on from."""
    port = free_port()
    command, (path, headers, body), operator = served("on", folder, port)
    process = started(command, port)[0]
    restarts, imports, versions = [], [], []
    try:
        for _ in range(times):
            server = Server(process, port, path, headers, body)
            learn(server, operator)
            process.kill()
            process.wait()
            imports.append(import_torch())
            process, seconds = started(command, port)
            restarts.append(seconds)
            versions.append(ask(port, operator, "/v1/status")["model"]["version"])
            print(f"{seconds:.2f} s to {versions[-1]}, torch {imports[-1]:.2f} s", flush=True)
    finally:
        process.kill()
        process.wait()
    return restarts, imports, versions


def learn(server: Server, operator: str) -> None:
    """Serve until some steps were made, keep a snapshot, and serve a little more."""
    begun = ask(server.port, operator, "/v1/status")["learning"]["steps"]
    while ask(server.port, operator, "/v1/status")["learning"]["steps"] < begun + STEPS:
        load(server, 1.0, 4)
    ask(server.port, operator, "/v1/snapshots", method="POST")
    load(server, 0.5, 4)


def started(command: list[str], port: int) -> tuple[subprocess.Popen[bytes], float]:
    """A process, and the seconds until it was ready."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while time.monotonic() < began + 60:
        with suppress(OSError, http.client.HTTPException):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            client.request("GET", "/v2/health/ready")
            if client.getresponse().status == 200:
                return process, time.monotonic() - began
        time.sleep(0.01)
    raise SystemExit("the server did not become ready")


def import_torch() -> float:
    """Seconds of the least that any server with this model has to do."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - began


def ask(port: int, operator: str, path: str, *, method: str = "GET"):
    """The answer to an operator's request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        headers={"Authorization": f"Bearer {operator}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
