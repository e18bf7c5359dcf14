"""A server that serves, asks and learns for a long time: does its memory stay?"""

import time
from itertools import count
from pathlib import Path
from statistics import linear_regression, median, pstdev
from tempfile import TemporaryDirectory
from threading import Event, Thread

import numpy as np

from bitta.client import ClientError, Question
from bitta.client.simulated import Habits, SimulatedAnnotator
from bitta.streams import embedded_pack
from server.processes import MODEL, ServerProcess

SETTINGS = (
    f'model = "{MODEL}"\nlog_level = "warning"\nrecent_bytes = 16777216\nsnapshot_seconds = 10.0\n'
    "question_seconds = 120.0\n[settings]\nepochs = 1\nlr = 3e-4\ndropout = 0.1\n"
    "bn_momentum = 0.7\n"
)
"""As the demo's, with caches that are full, and snapshots that are dropped, within a minute."""
_EVERY = 1.0
"""Seconds between two looks."""
_CONNECTIONS = 2
_MEMORIES = 200
"""Answers after which the memories, of 64 each, are taken to be full; then the time begins."""
_PATIENCE = 900
"""Seconds within which they must have come."""
ALLOWED = 4.0
"""MiB in ten minutes. At 100 requests a second that is 70 bytes of each: a server that kept one
object per request, or one picture in 200, would be above it."""


def memory(minutes, tell):
    """Load a server with full memories for so long; what was found, and what is wrong."""
    with TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder), settings=SETTINGS)
        with server:
            load = _Load(server)
            try:
                _fill(load, tell)
                resident = _watched(server, load, minutes, tell)
                status = server.call("GET", "/v1/status")[1]
            finally:
                load.end()
        traced = "raceback" in server.log.read_text(errors="replace")
    rest = resident[_warm(len(resident)) :]
    slope, scatter = trend(rest)
    found = {
        "minutes": minutes,
        "images_served": load.n_served,
        "questions_answered": load.annotator.tally.answered,
        "learning_steps": status["learning"]["steps"],
        "refused": sorted({error.status for error in load.errors}),
        "resident_mib": {
            "first": resident[0],
            "median_of_first_half": median(rest[: len(rest) // 2]),
            "median_of_last_half": median(rest[len(rest) // 2 :]),
            "max": max(resident),
            "slope_per_10_minutes": slope * 600 / _EVERY,
            "scatter": scatter,
            "each_second": [round(one, 2) for one in resident],
        },
        "allowed_per_10_minutes": ALLOWED,
    }
    return found, _wrong(found, traced, len(rest))


def trend(resident):
    """Growth from one look to the next by least squares, and how far looks are from that line."""
    if len(resident) < 2:
        return 0.0, 0.0
    places = range(len(resident))
    slope, first = linear_regression(places, resident)
    return slope, pstdev([one - first - slope * x for x, one in zip(places, resident, strict=True)])


def _warm(looks):
    """Looks before those that count: a third, or two minutes, in which memories fill."""
    return min(max(looks // 3, round(120 / _EVERY)), looks * 3 // 5)


def _fill(load, tell):
    """Before memories are full, a server grows with each answer."""
    end = time.monotonic() + _PATIENCE
    while (answered := load.annotator.tally.answered) < _MEMORIES:
        assert time.monotonic() < end, f"{answered} answers in {_PATIENCE} seconds"
        tell(f"{answered} of {_MEMORIES} answers until the memories are full")
        time.sleep(10)


def _watched(server, load, minutes, tell):
    resident = []
    began = time.monotonic()
    for look in count(1):
        resident.append(server.resident() / 2**20)
        if look % 15 == 0:
            tell(f"{look * _EVERY / 60:.1f} of {minutes:g} minutes, {resident[-1]:.1f} MiB, "
                 f"{load.n_served} images, {load.annotator.tally.answered} answers")  # fmt: skip
        if look * _EVERY >= 60 * minutes:
            return resident
        time.sleep(max(0.0, began + look * _EVERY - time.monotonic()))
    raise AssertionError


def _wrong(found, traced, looks):
    wrong, resident = [], found["resident_mib"]
    # A line through so many looks is that uncertain by chance alone (two standard errors, over
    # the whole time); in half an hour that is nothing, in two minutes it is most of it.
    chance = 2 * resident["scatter"] * (12 / max(1, looks)) ** 0.5
    grown = resident["slope_per_10_minutes"] * looks * _EVERY / 600
    if grown > ALLOWED * looks * _EVERY / 600 + chance:
        wrong.append(f"memory grows by {resident['slope_per_10_minutes']:.1f} MiB in 10 minutes")
    if found["refused"]:
        wrong.append(f"requests were answered with {found['refused']}")
    if not found["questions_answered"] or not found["learning_steps"]:
        wrong.append("nothing was answered or learned")
    if traced:
        wrong.append("the log holds a traceback")
    return wrong


class _Load:
    """Pictures from the package, one per request, and an annotator who knows them."""

    def __init__(self, server):
        pack = embedded_pack("cifar10")
        self._images = (pack.images.numpy() / np.float32(255)).astype(np.float32)
        self._labels = [int(label) for label in pack.labels]
        self._truth = {}
        self._server = server
        self.n_served = 0
        self.errors = []
        self._stop = Event()
        self._client = server.client("annotator")
        self.annotator = SimulatedAnnotator(self._client, self._known, Habits(flip=0.05, skip=0.05))
        self._threads = [
            Thread(target=self._send, args=(place,)) for place in range(_CONNECTIONS)
        ] + [Thread(target=self._answer)]
        for thread in self._threads:
            thread.start()

    def end(self):
        """Wait for what is under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        self._client.close()

    def _known(self, question: Question):
        return self._truth.pop(question.prediction_id, None)

    def _send(self, first):
        with self._server.client("client") as client:
            for number in count(first, _CONNECTIONS):
                if self._stop.is_set():
                    return
                row = number % len(self._labels)
                try:
                    [served] = client.predict(self._images[row])
                except ClientError as error:
                    self.errors.append(error)
                    continue
                self._truth[served.prediction_id] = self._labels[row]
                self.n_served += 1

    def _answer(self):
        while not self._stop.is_set():
            try:
                self.annotator.run(stop=self._stop.is_set)
            except ClientError as error:
                self.errors.append(error)
