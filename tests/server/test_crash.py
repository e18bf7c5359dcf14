"""kill -9 under load: no answer that was acknowledged is lost, none is in the memory twice."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

import numpy as np
import torch

from bitta.client import Client, ClientError
from bitta.seeding import generator
from bitta.server.store import Store

KILLS = int(os.environ.get("BITTA_SOAK_KILLS", "10"))
SERVER = """
import sys
import torch
from bitta.cli.main import main
torch.set_num_threads(1)
sys.exit(main(sys.argv[1:]))
"""


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def started(folder, port, config):
    command = [sys.executable, "-c", SERVER, "serve", "--config", str(config),
               "--data-dir", str(folder), "--port", str(port)]  # fmt: skip
    log = open(folder.parent / "server.log", "ab")  # noqa: SIM115 (the process has it)
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def ready(port, process, seconds=60.0):
    """How long it took."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        assert process.poll() is None, "the server ended"
        with suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2)
            return time.monotonic() - began
        time.sleep(0.05)
    raise AssertionError("the server did not become ready")


class Load:
    """Predictions, and answers to what is asked, until the server goes away."""

    def __init__(self, port, keys):
        url = f"http://127.0.0.1:{port}"
        self.acknowledged = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._predict, args=(url, keys["client"])),
            threading.Thread(target=self._answer, args=(url, keys["annotator"])),
        ]
        for thread in self._threads:
            thread.start()

    def end(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _predict(self, url, key):
        with suppress(ClientError), Client(url, key, retries=0) as client:
            number = random.randrange(10**6)
            while not self._stop.is_set():
                images = torch.rand(4, 3, 32, 32, generator=generator(1, number))
                client.predict(list(images.numpy().astype(np.float32)))
                number += 1

    def _answer(self, url, key):
        with suppress(ClientError), Client(url, key, retries=0) as client:
            while not self._stop.is_set():
                question = client.next_question(wait=0)
                if question is None:
                    time.sleep(0.01)
                    continue
                record = client.answer(question, correct=random.random() < 0.5)
                self.acknowledged.append(record.id)


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


def test_no_acknowledged_answer_is_lost_and_none_is_learned_from_twice(tmp_path):
    folder = tmp_path / "data"
    config = tmp_path / "server.toml"
    config.write_text(
        'model = "embedded:cifar10-resnet8"\nwindow = 16\nn_queries = 6\nduty = 1.0\n'
        'snapshot_steps = 3\nlog_level = "warning"\n[settings]\nepochs = 1\n'
    )
    with Store.open(None, folder) as store:
        keys = {role: store.keys.create(role, role).token for role in ("client", "annotator")}
    acknowledged = []
    for _ in range(KILLS):
        port = free_port()
        process = started(folder, port, config)
        try:
            ready(port, process)
            load = Load(port, keys)
            time.sleep(random.uniform(0.3, 1.5))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        load.end()
        acknowledged += load.acknowledged
    with Store.open(None, folder) as store:
        stored = [record.id for record in store.all_feedback()]
        events, after = [], 0
        while more := store.events(after=after):
            events += more
            after = more[-1].seq
    assert len(acknowledged) >= KILLS, "hardly anything was answered"
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)
    held = in_memory_once(events)
    assert held <= set(stored)
    assert any(event.kind == "recovered" for event in events)
    assert any(event.body["answers"] for event in events if event.kind == "learned")
