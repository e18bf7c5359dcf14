"""A server that serves, asks and learns for a long time: does its memory stay?"""

import time
from itertools import count
from pathlib import Path
from statistics import linear_regression, median, pstdev
from tempfile import TemporaryDirectory
from threading import Event, Thread

import numpy as np

from bitta.client import AskedQuestion, ClientError
from bitta.client.simulated import SimulatedAnnotator, SimulatedBehaviour
from bitta.streams import embedded_pack
from server.processes import MODEL, ServerProcess

SETTINGS = (
    f'model = "{MODEL}"\nlog_level = "warning"\nrecent_bytes = 16777216\nsnapshot_seconds = 10.0\n'
    "question_seconds = 120.0\n[settings]\nepochs = 1\nlr = 3e-4\ndropout = 0.1\n"
    "bn_momentum = 0.7\n"
)
"""As the demo's, with caches that are full, and snapshots that are dropped, within a minute."""
_EVERY = 0.005
"""Seconds between two looks. A server gives back what is free once a minute, and takes it again
with the next step: what it has in between is seen for a few hundredths of a second."""
_SPELL = 120.0
"""Seconds of which the least and the most count: so long that it has given back within them."""
_CONNECTIONS = 2
_MEMORIES = 200
"""Answers after which the memories, of 64 each, are taken to be full; then the time begins."""
_PATIENCE = 900
"""Seconds within which they must have come."""
ALLOWED = 4.0
"""MiB in ten minutes, by which the least of a spell may grow. At 100 requests a second that is 70
bytes of each: a server that kept one object per request, or one picture in 200, would be above."""
ALLOWED_MOST = 0.05
"""The part by which the most of a spell may be above what it was in the half before. It depends on
where blocks came to lie, and differs by some percent from one spell to the next."""


def memory(minutes, tell):
    """Load a server with full memories for so long; what was found, and what is wrong."""
    with TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder), settings=SETTINGS)
        with server:
            load = _Load(server)
            try:
                _fill(load, tell)
                spells = _watched(server, load, minutes, tell)
                status = server.request("GET", "/v1/status")[1]
            finally:
                load.end()
        traced = "raceback" in server.log.read_text(errors="replace")
    found = {
        "minutes": minutes,
        "images_served": load.n_served,
        "questions_answered": load.annotator.counts.n_answered,
        "learning_steps": status["learning"]["steps"],
        "refused": sorted({error.status for error in load.errors}),
        **summed(spells),
    }
    wrong = grown(found)
    if found["refused"]:
        wrong.append(f"requests were answered with {found['refused']}")
    if not found["questions_answered"] or not found["learning_steps"]:
        wrong.append("nothing was answered or learned")
    if traced:
        wrong.append("the log holds a traceback")
    return found, wrong


def summed(spells):
    """How the least and the most of each spell went on, once caches are full."""
    counted = spells[len(spells) // 3 :]
    slope, scatter = _trend([least for least, _ in counted])
    half = (len(counted) + 1) // 2
    return {
        "spells": len(spells),
        "counted": len(counted),
        "least_mib": {
            "each": [least for least, _ in spells],
            "slope_per_10_minutes": slope * 600 / _SPELL,
            "allowed_per_10_minutes": ALLOWED,
            "scatter": scatter,
        },
        "most_mib": {
            "each": [most for _, most in spells],
            "median_of_first_half": median(most for _, most in counted[:half]),
            "median_of_last_half": median(most for _, most in counted[-half:]),
            "allowed": ALLOWED_MOST,
        },
    }


def grown(found):
    """What is wrong with that."""
    wrong, least, most = [], found["least_mib"], found["most_mib"]
    # A line through so many is that uncertain by chance alone (two standard errors, over the whole
    # time); in half an hour that is little, in four minutes it is most of it.
    chance = 2 * least["scatter"] * (12 / found["counted"]) ** 0.5
    tens = found["counted"] * _SPELL / 600
    if least["slope_per_10_minutes"] * tens > ALLOWED * tens + chance:
        wrong.append(f"memory grows by {least['slope_per_10_minutes']:.1f} MiB in 10 minutes")
    if most["median_of_last_half"] > (1 + ALLOWED_MOST) * most["median_of_first_half"]:
        wrong.append(f"it takes {most['median_of_last_half']:.0f} MiB at most, before "
                     f"{most['median_of_first_half']:.0f}")  # fmt: skip
    return wrong


def _trend(resident):
    """Growth from one to the next by least squares, and how far they are from that line."""
    if len(resident) < 2:
        return 0.0, 0.0
    places = range(len(resident))
    slope, first = linear_regression(places, resident)
    return slope, pstdev([one - first - slope * x for x, one in zip(places, resident, strict=True)])


def _fill(load, tell):
    """Before memories are full, a server grows with each answer."""
    end = time.monotonic() + _PATIENCE
    while (answered := load.annotator.counts.n_answered) < _MEMORIES:
        assert time.monotonic() < end, f"{answered} answers in {_PATIENCE} seconds"
        tell(f"{answered} of {_MEMORIES} answers until the memories are full")
        time.sleep(10)


def _watched(server, load, minutes, tell):
    """The least and the most of each spell, in MiB."""
    began, spells = time.monotonic(), []
    for spell in range(max(1, round(60 * minutes / _SPELL))):
        end = began + min((spell + 1) * _SPELL, 60 * minutes)
        looks = [server.resident_bytes()]
        while time.monotonic() < end:
            time.sleep(_EVERY)
            looks.append(server.resident_bytes())
        spells.append([round(size / 2**20, 2) for size in (min(looks), max(looks))])
        tell(f"{(end - began) / 60:.1f} of {minutes:g} minutes, {spells[-1][0]:.1f} to "
             f"{spells[-1][1]:.1f} MiB, {load.n_served} images, "
             f"{load.annotator.counts.n_answered} answers")  # fmt: skip
    return spells


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
        behaviour = SimulatedBehaviour(flip=0.05, skip=0.05)
        self.annotator = SimulatedAnnotator(self._client, self._known, behaviour)
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

    def _known(self, question: AskedQuestion):
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
                self.annotator.run(should_stop=self._stop.is_set)
            except ClientError as error:
                self.errors.append(error)
