"""Requests per second of the feedback server beside a bare endpoint around the same model.

    python scripts/load_server.py --seconds 20 --out results/serving/load.json

One image per request, from several connections at once. The bare endpoint is FastAPI and uvicorn
with the model's forward in a thread; both servers and the load share this machine, in turns.
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
from contextlib import suppress
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
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2, help="turns of each server")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"bare": [], "off": [], "on": []}
    for _ in range(arguments.rounds):
        for kind, measured in found.items():
            measured.append(measure(kind, arguments.seconds, arguments.connections))
            print(kind, measured[-1], flush=True)
    rate = {kind: mean(one["per_second"] for one in all_) for kind, all_ in found.items()}
    table = {
        "settings": {"seconds": arguments.seconds, "connections": arguments.connections},
        "environment": {"bitta": __version__, "cores": os.cpu_count(), "model": MODEL},
        "measured": found,
        "ratio_off": rate["off"] / rate["bare"],
        "ratio_on": rate["on"] / rate["bare"],
    }
    write_table(arguments.out, table)
    print(f"ratio off {table['ratio_off']:.2f}, on {table['ratio_on']:.2f}")


def measure(kind: str, seconds: float, connections: int) -> dict[str, float]:
    """Start a server, load it, stop it."""
    with TemporaryDirectory() as folder:
        port = free_port()
        command, send = served(kind, Path(folder), port)
        process = subprocess.Popen(command)
        try:
            wait_ready(port)
            load(send, port, 3.0, connections)  # warm
            return load(send, port, seconds, connections)
        finally:
            process.terminate()
            process.wait()


def served(kind: str, folder: Path, port: int):
    """The command that serves, and path, headers and body of a request."""
    image = np.random.default_rng(0).random((1, 3, 32, 32), dtype=np.float32)
    if kind == "bare":
        return [sys.executable, "-c", BARE, str(port)], ("/predict", {}, image.tobytes())
    with Store.open(None, folder / "data") as store:
        key = store.keys.create("client", "load").token
    config = folder / "server.toml"
    method = "[settings]\nepochs = 1\nlr = 3e-4\ndropout = 0.1\nbn_momentum = 0.7\n"
    if kind == "off":
        method = 'n_queries = 0\naudits = 0\nmethod = "source"\n'
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
    return command, (f"/v2/models/{NAME}/infer", headers, head + image.tobytes())


def load(send, port: int, seconds: float, connections: int) -> dict[str, float]:
    """Every connection sends the next request when it has the answer to the last."""
    path, headers, body = send
    times: list[float] = []

    def one() -> None:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while time.monotonic() < end:
            began = time.monotonic()
            client.request("POST", path, body, headers)
            answer = client.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            times.append(time.monotonic() - began)
        client.close()

    end = time.monotonic() + seconds
    threads = [Thread(target=one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cuts = quantiles(times, n=100)
    return {
        "per_second": len(times) / seconds,
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
    }


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
