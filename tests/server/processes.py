"""`bitta serve` in its own process, under load: for tests and for `make soak`."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import numpy as np
import torch

from bitta.client import Client, ClientError, ExpiredError
from bitta.seeding import generator
from bitta.server.store import Store
from bitta.statefile import load_state

MODEL = "embedded:cifar10-resnet8"
ROLES = ("client", "annotator", "operator")
QUICK_SETTINGS = (
    f'model = "{MODEL}"\nwindow = 16\nn_queries = 6\nduty = 1.0\nsnapshot_steps = 1\n'
    'log_level = "warning"\n[settings]\nepochs = 1\n'
)
"""Settings with which questions, learning and snapshots happen within a second."""
_RETRY_SECONDS = 0.02
"""Pause of the load after a refusal, or without a question."""
_READY_POLL_SECONDS = 0.005
_PORTS = count(os.getpid() * 101)
"""Port numbers to try, as offsets. Test processes start far from each other."""


class ServerProcess:
    """A server process that can be started, killed and started again."""

    def __init__(self, folder, *, settings=QUICK_SETTINGS, database=None, data_dir=None):
        self.database = database
        self.data_dir = Path(data_dir or folder / "data")
        self.log = folder / "server.log"
        self._config = folder / "server.toml"
        self._config.write_text(settings)
        with self.open_store() as store:
            self.keys = {role: store.keys.create(role, role).token for role in ROLES}
        self.url = ""
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        """Start the server. Return the seconds until it is ready.

        It is ready when the worker runs and the database accepts writes.
        """
        started = time.monotonic()
        self.spawn()
        self.wait_ready()
        return time.monotonic() - started

    def spawn(self):
        """Start the process without waiting."""
        command = [sys.executable, "-m", "bitta.cli.main", *self._serve_arguments()]
        # Let it write bytecode, like an installed package.
        others = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=others | {"OMP_NUM_THREADS": "1"}
            )

    def wait_ready(self, seconds=60.0):
        """Wait until the server is ready."""
        until(
            lambda: self.not_ready_reason() == "",
            seconds=seconds,
            what="the server is ready",
            poll_seconds=_READY_POLL_SECONDS,
        )

    def not_ready_reason(self):
        """Return why the server is not ready; empty if it is."""
        assert self.process.poll() is None, f"the server ended:\n{self.log_tail()}"
        try:
            urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=20).close()
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except OSError as error:
            return str(error)
        return ""

    def kill(self):
        """Kill the process with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self):
        """Stop the process with SIGTERM. Return its exit status."""
        self.process.terminate()
        return self.process.wait(60)

    def request(self, method, path, *, role="operator"):
        """Send a request that `bitta.client` has no method for. Return status and body."""
        headers = {"Authorization": f"Bearer {self.keys[role]}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def n_steps(self):
        """Return the number of learning steps."""
        return self.request("GET", "/v1/status")[1]["learning"]["steps"]

    def client(self, role, **options):
        """Return a client without retries."""
        return Client(self.url, self.keys[role], retries=0, timeout=60.0, **options)

    def open_store(self):
        """Open the store. The server must not run."""
        return Store.open(self.database, self.data_dir)

    def cpu_seconds(self):
        """Return the processor time of the process."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self):
        """Return the memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def log_tail(self, characters=3000):
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-characters:]

    def _serve_arguments(self):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["serve", "--config", str(self._config), "--data-dir", str(self.data_dir),
                     "--port", str(port)]  # fmt: skip
        return arguments if self.database is None else [*arguments, "--database", self.database]


class ForkedServer(ServerProcess):
    """Server forked from a process that has imported everything, including torch's compiler."""

    def __init__(self, forker, *arguments, busy_seconds=None, **options):
        super().__init__(*arguments, **options)
        self._forker, self._busy_seconds = forker, busy_seconds

    def spawn(self):
        """Start the process without waiting."""
        self.process = self._forker.start(
            self._serve_arguments(), self.log, busy_seconds=self._busy_seconds
        )


class Load:
    """Load of predictions and answers, until it is ended or the server is gone.

    Refusals are collected by the kind of request, and the load continues. An answer is sent again
    with its idempotency key until it is acknowledged. Unacknowledged answers of an earlier load
    come first.
    """

    def __init__(self, server, *, images=4, in_doubt=()):
        self.acknowledged = []
        self.refused = {"predict": [], "ask": [], "answer": []}
        self.in_doubt = list(in_doubt)
        """Answers that were sent but not acknowledged."""
        self.n_predicted = 0
        self._server, self._images = server, images
        self._stop = Event()
        self._threads = [Thread(target=self._predict), Thread(target=self._annotate)]
        for thread in self._threads:
            thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Stop, and wait for running requests."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def statuses(self):
        """Return the HTTP statuses of all refusals."""
        return {error.status for errors in self.refused.values() for error in errors}

    def _predict(self):
        number = random.randrange(10**6)
        with self._server.client("client") as client:
            while not self._stop.is_set():
                images = torch.rand(self._images, 3, 32, 32, generator=generator(1, number))
                number += 1
                inputs = list(images.numpy().astype(np.float32))
                if self._try("predict", client.predict, inputs):
                    self.n_predicted += self._images

    def _annotate(self):
        with self._server.client("annotator") as client:
            self._send_answers(client)
            while not self._stop.is_set():
                question = self._try("ask", client.next_question)
                if question is None:
                    self._stop.wait(_RETRY_SECONDS)
                    continue
                answer = {"correct": random.random() < 0.5, "idempotency_key": uuid4().hex}
                self.in_doubt.append((question, answer))
                self._send_answers(client)

    def _send_answers(self, client):
        while self.in_doubt and not self._stop.is_set():
            question, answer = self.in_doubt[0]
            try:
                record = self._try("answer", client.answer, question, **answer)
            except ExpiredError:
                self.in_doubt.pop(0)
                continue
            if record is not None:
                self.in_doubt.pop(0)
                self.acknowledged.append(record.id)

    def _try(self, kind, function, *arguments, **options):
        """Return the result; None if the request was refused."""
        try:
            return function(*arguments, **options)
        except ExpiredError:
            raise
        except ClientError as error:
            if error.status == 0:  # the server is gone
                self._stop.set()
            else:
                self.refused[kind].append(error)
                self._stop.wait(_RETRY_SECONDS)
            return None


def kill_and_restart(server, n):
    """Put a server under load, kill it and start it again, n times.

    Yield the seconds until it was ready and the load. Every fourth kill comes after a learning step
    with an answer. After every tenth, another kill interrupts the start. The load ends with each
    kill, and the next one starts with the unacknowledged answers.
    """
    in_doubt = ()
    server.start()
    for number in range(n):
        load = Load(server, in_doubt=in_doubt)
        if number % 4 == 0:
            until(lambda of=load: of.acknowledged, seconds=180, what="a question is answered")
            n_steps = server.n_steps()
            until(lambda n=n_steps: server.n_steps() > n + 1, seconds=180, what="it learns")
        time.sleep(random.uniform(0, 1.5))
        server.kill()
        load.end()
        in_doubt = load.in_doubt
        if number % 10 == 9:
            server.spawn()
            time.sleep(random.uniform(0, 2))
            server.kill()
        yield server.start(), load
    server.kill()


def until(condition, *, seconds, what, poll_seconds=_RETRY_SECONDS):
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {what}"
        time.sleep(poll_seconds)


def free_port():
    """Return a free port below the range that the kernel gives to connections."""
    while True:
        port = 20_000 + next(_PORTS) % 12_000
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port


def check_stored(server, acknowledged):
    """Check that no acknowledged answer is lost and none is in the memory twice.

    Return counts of answers and events.
    """
    with server.open_store() as store:
        records = list(store.all_feedback())
        events = [event for page in _event_pages(store) for event in page]
        check_memory(server.data_dir / store.snapshots()[-1].path)
    stored = [record.id for record in records]
    assert len(stored) == len(set(stored))
    lost = set(acknowledged) - set(stored)
    assert not lost, f"{len(lost)} acknowledged answers are lost"
    expired = {record.id for record in records if record.status == "expired"} & set(acknowledged)
    assert not expired, f"{len(expired)} acknowledged answers will never be learned from"
    in_memory = answers_in_memory(events)
    applied = {record.id for record in records if record.status == "applied"}
    assert in_memory == applied, "the log and the answers contradict each other"
    kinds = [event.kind for event in events]
    return {
        "acknowledged": len(acknowledged),
        "stored": len(stored),
        "learned_from": sum(len(e.body["answers"]) for e in events if e.kind == "learned"),
        "in_memory": len(in_memory),
        "pending_again": sum(len(e.body["pending_again"]) for e in events if e.kind == "recovered"),
        **{f"events_{kind}": kinds.count(kind) for kind in
           ("served", "asked", "answered", "learned", "snapshot", "recovered", "rollback")},
    }  # fmt: skip


def check_memory(path):
    """Check that the memory of a snapshot holds no image twice. All served images differ."""
    memory = load_state(path)["session"]["adapter"]["memory"]
    inputs = [side["inputs"].flatten(1) for side in memory.values() if "inputs" in side]
    if inputs:
        assert len(torch.cat(inputs).unique(dim=0)) == len(torch.cat(inputs))


def answers_in_memory(events):
    """Return the answers that all steps learned, without those that a restart made pending."""
    in_memory = set()
    for event in events:
        if event.kind == "learned":
            twice = in_memory & set(event.body["answers"])
            assert not twice, f"{twice} entered the memory twice"
            in_memory |= set(event.body["answers"])
        elif event.kind == "recovered":
            in_memory -= set(event.body["pending_again"])
    return in_memory


def _event_pages(store):
    after = 0
    while page := store.events(after=after):
        yield page
        after = page[-1].seq
