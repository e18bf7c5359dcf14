"""Requests per second of the feedback server beside a bare endpoint around the same model.

    python scripts/load_server.py --seconds 5 --rounds 12 --out results/serving/load.json

One image per request, from several connections at once. The bare endpoint is FastAPI and uvicorn
with the model's forward in a thread. "on" is the server as the demo sets it up, "off" the same
once an operator has paused adaptation. All run at the same time, and each is loaded in short turns
while the others wait, so that whatever else the machine does meets all of them.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np

from bitta.results import write_table
from bitta.server.store import Store
from bitta.version import __version__

MODEL = "embedded:cifar10-resnet8"
NAME = "cifar10-resnet8"
KINDS = ("bare", "off", "on")
BARE = f"""
import sys
import numpy, torch, uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from bitta.models import load_model, weights_at

with weights_at({MODEL!r}) as path:
    model, card = load_model(path)
app = FastAPI()

def label(body):
    image = torch.from_numpy(numpy.frombuffer(body, dtype="<f4").reshape(1, 3, 32, 32).copy())
    with torch.no_grad():
        probs = model(image).softmax(-1)
    confidence, index = probs.max(-1)
    return {{"label": card.classes[int(index)], "confidence": float(confidence)}}

@app.post("/predict")
async def predict(request: Request):
    return await run_in_threadpool(label, await request.body())

@app.get("/v2/health/ready")
async def ready():
    return {{}}

uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""


def main() -> None:
    """Three servers in turns; print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=12, help="turns of each server")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(serving(kind)) for kind in KINDS}
        for server in servers.values():
            load(server, 3.0, arguments.connections)  # warm
        turns: dict[str, list[Turn]] = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind, server in servers.items():
                turns[kind].append(load(server, arguments.seconds, arguments.connections))
                print(f"{kind:<5} {turns[kind][-1].per_second:.0f} a second", flush=True)
    measured = {kind: summary(all_) for kind, all_ in turns.items()}
    rate = {kind: found["per_second"] for kind, found in measured.items()}
    table = {
        "settings": {
            "seconds": arguments.seconds,
            "rounds": arguments.rounds,
            "connections": arguments.connections,
        },
        "environment": {
            "bitta": __version__,
            "cores": os.cpu_count(),
            "model": MODEL,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        },
        "measured": measured,
        "ratio_off": rate["off"] / rate["bare"],
        "ratio_on": rate["on"] / rate["bare"],
    }
    write_table(arguments.out, table)
    for kind, found in measured.items():
        print(kind, {name: round(value, 2) for name, value in found.items()})
    print(f"ratio off {table['ratio_off']:.2f}, on {table['ratio_on']:.2f}")


@dataclass(frozen=True)
class Server:
    """One that runs, and a request that it answers."""

    process: subprocess.Popen[bytes]
    port: int
    path: str
    headers: dict[str, str]
    body: bytes

    def cpu(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Turn:
    """What one server did in one turn."""

    per_second: float
    times: list[float]
    cpu: float


def summary(turns: list[Turn]) -> dict[str, float]:
    """Over all turns of a server."""
    times = [one for turn in turns for one in turn.times]
    cuts = quantiles(times, n=100)
    return {
        "per_second": mean(turn.per_second for turn in turns),
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
        "cpu_ms": 1000 * sum(turn.cpu for turn in turns) / len(times),
    }


@contextmanager
def serving(kind: str) -> Iterator[Server]:
    """Start a server, and stop it afterwards."""
    with TemporaryDirectory() as folder:
        port = free_port()
        command, (path, headers, body), operator = served(kind, Path(folder), port)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_ready(port)
            if kind == "off":
                pause(port, operator)
            yield Server(process, port, path, headers, body)
        finally:
            process.terminate()
            process.wait()


def served(kind: str, folder: Path, port: int):
    """The command that serves; path, headers and body of a request; an operator's key."""
    image = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
    if kind == "bare":
        return [sys.executable, "-c", BARE, str(port)], ("/predict", {}, image.tobytes()), ""
    with Store.open(None, folder / "data") as store:
        key = store.keys.create("client", "load").token
        operator = store.keys.create("operator", "load").token
    config = folder / "server.toml"
    method = "[settings]\nepochs = 1\nlr = 3e-4\ndropout = 0.1\nbn_momentum = 0.7\n"
    config.write_text(f'model = "{MODEL}"\nlog_level = "warning"\n{method}')
    command = [sys.executable, "-m", "bitta.cli.main", "serve", "--config", str(config)]
    command += ["--port", str(port), "--data-dir", str(folder / "data")]
    head = json.dumps(
        {"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32",
                     "parameters": {"binary_data_size": image.nbytes}}]}
    ).encode()  # fmt: skip
    headers = {
        "Authorization": f"Bearer {key}",
        "Inference-Header-Content-Length": str(len(head)),
    }
    return command, (f"/v2/models/{NAME}/infer", headers, head + image.tobytes()), operator


def pause(port: int, operator: str) -> None:
    """As an operator does it on the page."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/adaptation/pause",
        data=json.dumps({"reason": "load"}).encode(),
        headers={"Authorization": f"Bearer {operator}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()


def load(server: Server, seconds: float, connections: int) -> Turn:
    """Every connection sends the next request when it has the answer to the last."""
    times: list[float] = []

    def one() -> None:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        while time.monotonic() < end:
            began = time.monotonic()
            client.request("POST", server.path, server.body, server.headers)
            answer = client.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            times.append(time.monotonic() - began)
        client.close()

    began, used = time.monotonic(), server.cpu()
    end = began + seconds
    threads = [Thread(target=one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Turn(len(times) / (time.monotonic() - began), times, server.cpu() - used)


def wait_ready(port: int) -> None:
    """Until it answers."""
    for _ in range(600):
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2)
            return
        time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


if __name__ == "__main__":
    main()
