"""Servers and requests of `load_server.py` and `time_restart.py`."""

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
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np

from bitta.server.store import Store
from bitta.streams import embedded_pack

MODEL = "embedded:cifar10-resnet8"
MODEL_NAME = "cifar10-resnet8"
N_IMAGES = 512
BARE_SERVER_CODE = f"""
import sys
import numpy, torch, uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from bitta.models import load_model, weights_path

with weights_path({MODEL!r}) as path:
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


@dataclass(frozen=True, kw_only=True)
class LoadedServer:
    """A running server and the requests that are sent to it."""

    process: subprocess.Popen[bytes]
    port: int
    path: str
    headers: dict[str, str]
    bodies: list[bytes]
    keys: dict[str, str]
    data_dir: Path

    def request(self, path: str, body: object = None, *, method: str | None = None) -> Any:
        """Send a request as operator. Return the JSON of the response."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.keys['operator']}",
                     "Content-Type": "application/json"},
            method=method,
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def counts(self) -> dict[str, int]:
        """Count complete windows, windows with questions, steps, and learned answers so far."""
        with Store.open(None, self.data_dir, exclusive=False) as store:
            served, after, events = store.counts().served, 0, []
            while page := store.events(after=after, kinds=("asked", "learned")):
                events += page
                after = page[-1].seq
        learned = [event.body["answers"] for event in events if event.kind == "learned"]
        return {
            "windows": served // 64,
            "asked": sum(event.kind == "asked" for event in events),
            "steps": len(learned),
            "answers_learned": sum(map(len, learned)),
        }


@dataclass(frozen=True)
class LoadRound:
    """Measurements of one server in one round."""

    per_second: float
    latencies: list[float]
    cpu_seconds: float


def run_load(server: LoadedServer, seconds: float, n_connections: int) -> LoadRound:
    """Send requests. Each connection sends the next one after the last response."""
    latencies: list[float] = []

    def send(first: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for number in count(first):
            if time.monotonic() >= end:
                break
            sent_at = time.monotonic()
            body = server.bodies[number % len(server.bodies)]
            client.request("POST", server.path, body, server.headers)
            response = client.getresponse()
            content = response.read()
            assert response.status == 200, content
            latencies.append(time.monotonic() - sent_at)
        client.close()

    started, cpu_before = time.monotonic(), cpu_seconds(server.process)
    end = started + seconds
    threads = [Thread(target=send, args=(37 * number,)) for number in range(n_connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    per_second = len(latencies) / (time.monotonic() - started)
    return LoadRound(per_second, latencies, cpu_seconds(server.process) - cpu_before)


def wait_until_idle(server: LoadedServer, seconds: float = 10.0) -> None:
    """Wait until a server is idle. A learning step may run after the last request."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cpu_before = cpu_seconds(server.process)
        time.sleep(0.3)
        if cpu_seconds(server.process) - cpu_before < 0.03:
            return


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_server(kind: str) -> Iterator[LoadedServer]:
    """Start a server of a kind in `load_server.KINDS`. Stop it at the end of the block."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        command, options = server_command(kind, Path(folder))
        process = stack.enter_context(_running(command))
        server = LoadedServer(process=process, **options)
        wait_ready(process, server.port)
        if kind == "off":
            server.request("/v1/adaptation/pause", {"reason": "load"})
        if kind == "answered":
            stack.enter_context(_running(_annotator_command(server, Path(folder))))
        yield server


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def server_command(kind: str, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the command of a server, and the arguments of its `LoadedServer`."""
    port, images = free_port(), _labelled_images()[0]
    options: dict[str, Any] = {"port": port, "data_dir": folder / "data"}
    if kind == "bare":
        options |= {"path": "/predict", "headers": {}, "keys": {}}
        return [sys.executable, "-c", BARE_SERVER_CODE, str(port)], options | {"bodies": images}
    with Store.open(None, folder / "data") as store:
        roles = ("client", "annotator", "operator")
        keys = {role: store.keys.create(role, role).token for role in roles}
    config = folder / "server.toml"
    method = "[settings]\nepochs = 1\nlr = 3e-4\ndropout = 0.1\nbn_momentum = 0.7\n"
    config.write_text(f'model = "{MODEL}"\nlog_level = "warning"\n{method}')
    command = [sys.executable, "-m", "bitta.cli.main", "serve", "--config", str(config)]
    command += ["--port", str(port), "--data-dir", str(folder / "data")]
    head = json.dumps(
        {"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32",
                     "parameters": {"binary_data_size": len(images[0])}}]}
    ).encode()  # fmt: skip
    options["headers"] = {
        "Authorization": f"Bearer {keys['client']}",
        "Inference-Header-Content-Length": str(len(head)),
    }
    options |= {"path": f"/v2/models/{MODEL_NAME}/infer", "keys": keys}
    return command, options | {"bodies": [head + image for image in images]}


def _annotator_command(server: LoadedServer, folder: Path) -> list[str]:
    """Return the command of a simulated annotator who knows the truth and answers at once."""
    truth = folder / "truth.json"
    labels = {
        sha256(image).hexdigest(): label for image, label in zip(*_labelled_images(), strict=True)
    }
    truth.write_text(json.dumps(labels))
    command = [sys.executable, "-m", "bitta.cli.main", "annotate", "--simulate", str(truth)]
    url = f"http://127.0.0.1:{server.port}"
    return [*command, "--url", url, "--key", server.keys["annotator"]]


def _labelled_images() -> tuple[list[bytes], list[int]]:
    """Return encoded model inputs and their classes."""
    pack = embedded_pack("cifar10")
    images = (pack.images[:N_IMAGES].numpy() / np.float32(255)).astype("<f4")
    return [image.tobytes() for image in images], pack.labels[:N_IMAGES].tolist()


def wait_ready(process: subprocess.Popen[bytes], port: int, seconds: float = 60.0) -> None:
    """Wait until a server is ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError, http.client.HTTPException):
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            client.request("GET", "/v2/health/ready")
            if client.getresponse().status == 200:
                return
        time.sleep(0.005)
    raise SystemExit("the server did not become ready")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
