"""`bitta serve` in a process of its own, under load: for tests and for `make soak`."""

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
QUICK = (
    f'model = "{MODEL}"\nwindow = 16\nn_queries = 6\nduty = 1.0\nsnapshot_steps = 1\n'
    'log_level = "warning"\n[settings]\nepochs = 1\n'
)
"""Settings with which everything happens within a second."""
_PAUSE = 0.02
"""Seconds between two tries of a load that is refused or has nothing to do."""
_LOOK = 0.005
"""Seconds between two looks at whether a server is ready."""
_PLACES = count(os.getpid() * 101)
"""Where this process looks for its next port."""


class ServerProcess:
    """A server that can be started, killed and started again."""

    def __init__(self, folder, *, settings=QUICK, database=None, data_dir=None):
        self.database = database
        self.data_dir = Path(data_dir or folder / "data")
        self.log = folder / "server.log"
        self._config = folder / "server.toml"
        self._config.write_text(settings)
        with self.store() as store:
            self.keys = {role: store.keys.create(role, role).token for role in ROLES}
        self.url = ""
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        """Seconds from the spawning of the process until it says that it is ready.

        It says so once the worker that owns the model goes round and the database takes writes.
        """
        began = time.monotonic()
        self.begin()
        self.wait_ready()
        return time.monotonic() - began

    def begin(self):
        """Start, and do not wait."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "bitta.cli.main", "serve", "--config", str(self._config),
                   "--data-dir", str(self.data_dir), "--port", str(port)]  # fmt: skip
        if self.database is not None:
            command += ["--database", self.database]
        # With bytecode, as what is installed has it.
        others = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=others | {"OMP_NUM_THREADS": "1"}
            )

    def wait_ready(self, seconds=60.0):
        """Until requests are welcome."""
        until(lambda: self.ready() == "", seconds=seconds, what="the server is ready", look=_LOOK)

    def ready(self):
        """Empty, or why it is not."""
        assert self.process.poll() is None, f"the server ended:\n{self.tail()}"
        try:
            urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=20).close()
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        except OSError as error:
            return str(error)
        return ""

    def kill(self):
        """As the kernel would, when memory is short."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self):
        """Ask it to end; its exit status."""
        self.process.terminate()
        return self.process.wait(60)

    def call(self, method, path, *, role="operator"):
        """Status and body of a call that our own client has no name for."""
        headers = {"Authorization": f"Bearer {self.keys[role]}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def steps(self):
        """How often it has learned."""
        return self.call("GET", "/v1/status")[1]["learning"]["steps"]

    def client(self, role, **options):
        """One that does not try again by itself."""
        return Client(self.url, self.keys[role], retries=0, timeout=60.0, **options)

    def store(self):
        """What it has stored, while it does not run."""
        return Store.open(self.database, self.data_dir)

    def cpu(self):
        """Seconds of a processor's time that it has had."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        """Bytes of memory it has now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def tail(self, characters=3000):
        """The end of what it has printed."""
        return self.log.read_text(errors="replace")[-characters:]


class Load:
    """Predictions, and answers to what is asked, until it is ended or the server is gone.

    What the server refuses is kept by what was wanted, and the load goes on. An answer is given
    again with its key until it is acknowledged, those in doubt from an earlier load first.
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
        """Wait for what is under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def statuses(self):
        """Of everything that was refused."""
        return {error.status for errors in self.refused.values() for error in errors}

    def _predict(self):
        number = random.randrange(10**6)
        with self._server.client("client") as client:
            while not self._stop.is_set():
                images = torch.rand(self._images, 3, 32, 32, generator=generator(1, number))
                number += 1
                inputs = list(images.numpy().astype(np.float32))
                if self._done("predict", client.predict, inputs):
                    self.n_predicted += self._images

    def _annotate(self):
        with self._server.client("annotator") as client:
            self._answer(client)
            while not self._stop.is_set():
                question = self._done("ask", client.next_question)
                if question is None:
                    self._stop.wait(_PAUSE)
                    continue
                given = {"correct": random.random() < 0.5, "idempotency_key": uuid4().hex}
                self.in_doubt.append((question, given))
                self._answer(client)

    def _answer(self, client):
        while self.in_doubt and not self._stop.is_set():
            question, given = self.in_doubt[0]
            try:
                record = self._done("answer", client.answer, question, **given)
            except ExpiredError:
                self.in_doubt.pop(0)
                continue
            if record is not None:
                self.in_doubt.pop(0)
                self.acknowledged.append(record.id)

    def _done(self, what, call, *arguments, **named):
        """What came back; None where it was refused."""
        try:
            return call(*arguments, **named)
        except ExpiredError:
            raise
        except ClientError as error:
            if error.status == 0:  # nobody there any more
                self._stop.set()
            else:
                self.refused[what].append(error)
                self._stop.wait(_PAUSE)
            return None


def restarts(server, n):
    """Load, kill and start again so many times: seconds to ready, and what the load was told.

    Every fourth kill comes after an answer was learned from; after every tenth another one falls
    into the start. The load waits while the server is away, and goes on with what was in doubt.
    """
    in_doubt = ()
    server.start()
    for number in range(n):
        load = Load(server, in_doubt=in_doubt)
        if number % 4 == 0:
            until(lambda of=load: of.acknowledged, seconds=60, what="a question is answered")
            learned = server.steps()
            until(lambda of=learned: server.steps() > of + 1, seconds=60, what="it learns")
        time.sleep(random.uniform(0, 1.5))
        server.kill()
        load.end()
        in_doubt = load.in_doubt
        if number % 10 == 9:
            server.begin()
            time.sleep(random.uniform(0, 2))
            server.kill()
        yield server.start(), load
    server.kill()


def until(condition, *, seconds, what, look=_PAUSE):
    """Wait for something to become true; between two looks nobody is kept from working."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {what}"
        time.sleep(look)


def free_port():
    """One that nobody listens at, nor takes before the server does.

    It is below those that connections are given, and processes that test begin far from each other.
    """
    while True:
        port = 20_000 + next(_PLACES) % 12_000
        with socket.socket() as bound, suppress(OSError):
            bound.bind(("127.0.0.1", port))
            return port


def check_stored(server, acknowledged):
    """No acknowledged answer is lost, none is in the memory twice; how many there are, by kind."""
    with server.store() as store:
        records = list(store.all_feedback())
        events = [event for page in _pages(store) for event in page]
        check_memory(server.data_dir / store.newest_snapshot().path)
    stored = [record.id for record in records]
    assert len(stored) == len(set(stored))
    lost = set(acknowledged) - set(stored)
    assert not lost, f"{len(lost)} acknowledged answers are lost"
    forgone = {record.id for record in records if record.status == "expired"} & set(acknowledged)
    assert not forgone, f"{len(forgone)} acknowledged answers will never be learned from"
    held = in_memory_once(events)
    applied = {record.id for record in records if record.status == "applied"}
    assert held == applied, "the log and the answers tell different stories"
    kinds = [event.kind for event in events]
    return {
        "acknowledged": len(acknowledged),
        "stored": len(stored),
        "learned_from": sum(len(e.body["answers"]) for e in events if e.kind == "learned"),
        "in_memory": len(held),
        "reentered": sum(len(e.body["reentered"]) for e in events if e.kind == "recovered"),
        **{f"events_{kind}": kinds.count(kind) for kind in
           ("served", "asked", "answered", "learned", "snapshot", "recovered", "rollback")},
    }  # fmt: skip


def check_memory(path):
    """No picture is twice in the memory of a snapshot: all that are served differ."""
    memory = load_state(path)["session"]["adapter"]["memory"]
    held = [side["inputs"].flatten(1) for side in memory.values() if "inputs" in side]
    if held:
        assert len(torch.cat(held).unique(dim=0)) == len(torch.cat(held))


def in_memory_once(events):
    """What each step took in, less what a restart made pending again."""
    held = set()
    for event in events:
        if event.kind == "learned":
            twice = held & set(event.body["answers"])
            assert not twice, f"{twice} entered the memory twice"
            held |= set(event.body["answers"])
        elif event.kind == "recovered":
            held -= set(event.body["reentered"])
    return held


def _pages(store):
    after = 0
    while page := store.events(after=after):
        yield page
        after = page[-1].seq
