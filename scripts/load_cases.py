"""The servers that `load_server.py` and `time_restart.py` start, and the requests they are sent."""

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
NAME = "cifar10-resnet8"
PICTURES = 512
BARE = f"""
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
class Server:
    """One that runs, and the requests that it is sent in turn."""

    process: subprocess.Popen[bytes]
    port: int
    path: str
    headers: dict[str, str]
    bodies: list[bytes]
    keys: dict[str, str]
    data_dir: Path

    def ask(self, path: str, given: object = None, *, method: str | None = None) -> Any:
        """The answer to an operator's request."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if given is None else json.dumps(given).encode(),
            headers={"Authorization": f"Bearer {self.keys['operator']}",
                     "Content-Type": "application/json"},
            method=method,
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def done(self) -> dict[str, int]:
        """Windows that were full and that asked, steps, and answers learned from, so far."""
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
class Turn:
    """What one server did in one turn."""

    per_second: float
    times: list[float]
    cpu: float


def load(server: Server, seconds: float, connections: int) -> Turn:
    """Every connection sends the next request when it has the answer to the last."""
    times: list[float] = []

    def one(first: int) -> None:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        for number in count(first):
            if time.monotonic() >= end:
                break
            began = time.monotonic()
            body = server.bodies[number % len(server.bodies)]
            client.request("POST", server.path, body, server.headers)
            answer = client.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            times.append(time.monotonic() - began)
        client.close()

    began, used = time.monotonic(), cpu(server.process)
    end = began + seconds
    threads = [Thread(target=one, args=(37 * place,)) for place in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Turn(len(times) / (time.monotonic() - began), times, cpu(server.process) - used)


def rest(server: Server, seconds: float = 10.0) -> None:
    """Wait until a server has come to rest: a step that was due is made behind the last request."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        used = cpu(server.process)
        time.sleep(0.3)
        if cpu(server.process) - used < 0.03:
            return


def cpu(process: subprocess.Popen[bytes]) -> float:
    """Seconds of processor time so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(kind: str) -> Iterator[Server]:
    """Start a server, and stop it afterwards."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        command, made = served(kind, Path(folder))
        process = stack.enter_context(running(command))
        server = Server(process=process, **made)
        wait_ready(process, server.port)
        if kind == "off":  # as an operator does it on the page
            server.ask("/v1/adaptation/pause", {"reason": "load"})
        if kind == "answered":
            stack.enter_context(running(annotator(server, Path(folder))))
        yield server


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process for as long as it is needed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def served(kind: str, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """The command that serves, and what a `Server` is made of."""
    port, images = free_port(), pictures()[0]
    made: dict[str, Any] = {"port": port, "data_dir": folder / "data"}
    if kind == "bare":
        made |= {"path": "/predict", "headers": {}, "keys": {}}
        return [sys.executable, "-c", BARE, str(port)], made | {"bodies": images}
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
    made["headers"] = {
        "Authorization": f"Bearer {keys['client']}",
        "Inference-Header-Content-Length": str(len(head)),
    }
    made |= {"path": f"/v2/models/{NAME}/infer", "keys": keys}
    return command, made | {"bodies": [head + image for image in images]}


def annotator(server: Server, folder: Path) -> list[str]:
    """The command of somebody who knows the truth and answers whatever is asked, at once."""
    truth = folder / "truth.json"
    named = {sha256(image).hexdigest(): label for image, label in zip(*pictures(), strict=True)}
    truth.write_text(json.dumps(named))
    command = [sys.executable, "-m", "bitta.cli.main", "annotate", "--simulate", str(truth)]
    url = f"http://127.0.0.1:{server.port}"
    return [*command, "--url", url, "--key", server.keys["annotator"]]


def pictures() -> tuple[list[bytes], list[int]]:
    """As the model reads them, with their classes."""
    pack = embedded_pack("cifar10")
    images = (pack.images[:PICTURES].numpy() / np.float32(255)).astype("<f4")
    return [image.tobytes() for image in images], [int(of) for of in pack.labels[:PICTURES]]


def wait_ready(process: subprocess.Popen[bytes], port: int, seconds: float = 60.0) -> None:
    """Until it answers that it is ready."""
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
    """One that nobody listens at."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
