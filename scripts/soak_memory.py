"""Measure the memory of a server that serves, asks and learns for a long time."""

import time
from itertools import count
from pathlib import Path
from statistics import linear_regression, median, pstdev
from tempfile import TemporaryDirectory
from threading import Event, Thread

import numpy as np

from bitta.client import AskedQuestion, ClientError
from bitta.client.simulated_annotator import SimulatedAnnotator, SimulatedBehaviour
from bitta.streams import embedded_pack
from server.processes import MODEL, ServerProcess

SETTINGS = (
    f'model = "{MODEL}"\nlog_level = "warning"\nrecent_bytes = 16777216\nsnapshot_seconds = 10.0\n'
    "question_seconds = 120.0\n[settings]\nepochs = 1\nlr = 3e-4\ndropout = 0.1\n"
    "bn_momentum = 0.7\n"
)
"""Settings of the demo, but caches fill and snapshots are dropped within a minute."""
_POLL_SECONDS = 0.005
"""Interval of measurements. A server releases freed memory once a minute and allocates it again in
the next step, so the low value is visible for a few hundredths of a second."""
_PERIOD_SECONDS = 120.0
"""Time over which minimum and maximum are taken. The server releases memory at least once in it."""
_N_CONNECTIONS = 2
_N_ANSWERS = 200
"""Number of answers after which the memories of 64 count as full. Then the measurement starts."""
_FILL_SECONDS = 900
"""Longest time for these answers."""
MAX_MIB_PER_10_MINUTES = 4.0
"""Allowed growth of the minimum, in MiB per ten minutes. At 100 requests per second this is 70
bytes per request. A server that kept an object of each request, or the image of every 200th, would
exceed it."""
_USUAL_SCATTER_MIB = 0.5
"""Standard deviation of the minima without growth, from a measurement of half an hour. A short
measurement has too few periods to estimate it."""
MAX_PEAK_GROWTH = 0.05
"""Allowed relative growth of the maximum from the first half to the second. The maximum depends on
the layout of the heap and differs by some percent between periods."""


def check_memory_growth(minutes, print_line):
    """Put a server with full memories under load. Return measurements and problems."""
    with TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder), settings=SETTINGS)
        with server:
            load = _Load(server)
            try:
                _fill_memories(load, print_line)
                periods = _measure(server, load, minutes, print_line)
                status = server.request("GET", "/v1/status")[1]
            finally:
                load.end()
        has_traceback = "raceback" in server.log.read_text(errors="replace")
    found = {
        "minutes": minutes,
        "images_served": load.n_served,
        "questions_answered": load.annotator.counts.n_answered,
        "learning_steps": status["learning"]["steps"],
        "refused": sorted({error.status for error in load.errors}),
        **summarise_periods(periods),
    }
    problems = growth_problems(found)
    if found["refused"]:
        problems.append(f"requests were answered with status {found['refused']}")
    if not found["questions_answered"] or not found["learning_steps"]:
        problems.append("nothing was answered or learned")
    if has_traceback:
        problems.append("the log contains a traceback")
    return found, problems


def summarise_periods(periods):
    """Summarise the periods. The first third, in which caches fill, does not count."""
    counted = periods[len(periods) // 3 :]
    slope, scatter = _trend([least for least, _ in counted])
    half = (len(counted) + 1) // 2
    return {
        "n_periods": len(periods),
        "counted": len(counted),
        "least_mib": {
            "each": [least for least, _ in periods],
            "slope_per_10_minutes": slope * 600 / _PERIOD_SECONDS,
            "allowed_per_10_minutes": MAX_MIB_PER_10_MINUTES,
            "scatter": scatter,
        },
        "most_mib": {
            "each": [most for _, most in periods],
            "median_of_first_half": median(most for _, most in counted[:half]),
            "median_of_last_half": median(most for _, most in counted[-half:]),
            "allowed": MAX_PEAK_GROWTH,
        },
    }


def growth_problems(found):
    """Return the problems: growth of the minimum or of the maximum."""
    problems, least, most = [], found["least_mib"], found["most_mib"]
    # Two standard errors of the growth over the whole time. In half an hour this is small, in four
    # minutes it is most of the limit.
    scatter = max(least["scatter"], _USUAL_SCATTER_MIB)
    uncertainty = 2 * scatter * (12 / found["counted"]) ** 0.5
    minutes = found["counted"] * _PERIOD_SECONDS / 60
    slope, allowed = least["slope_per_10_minutes"] / 10, MAX_MIB_PER_10_MINUTES / 10
    if slope * minutes > allowed * minutes + uncertainty:
        problems.append(f"memory grows by {least['slope_per_10_minutes']:.1f} MiB in 10 minutes")
    if most["median_of_last_half"] > (1 + MAX_PEAK_GROWTH) * most["median_of_first_half"]:
        problems.append(
            f"the peak of the memory rises from {most['median_of_first_half']:.0f} to "
            f"{most['median_of_last_half']:.0f} MiB"
        )
    return problems


def _trend(resident):
    """Return the slope per period by least squares, and the standard deviation of the residuals."""
    if len(resident) < 2:
        return 0.0, 0.0
    indices = range(len(resident))
    slope, first = linear_regression(indices, resident)
    return slope, pstdev([y - first - slope * x for x, y in zip(indices, resident, strict=True)])


def _fill_memories(load, print_line):
    """Wait until the memories are full. Until then, the server grows with each answer."""
    end = time.monotonic() + _FILL_SECONDS
    while (answered := load.annotator.counts.n_answered) < _N_ANSWERS:
        assert time.monotonic() < end, f"{answered} answers in {_FILL_SECONDS} seconds"
        print_line(f"{answered} of {_N_ANSWERS} answers until the memories are full")
        time.sleep(10)


def _measure(server, load, minutes, print_line):
    """Return the minimum and the maximum of each period, in MiB."""
    started, periods = time.monotonic(), []
    for period in range(max(1, round(60 * minutes / _PERIOD_SECONDS))):
        end = started + min((period + 1) * _PERIOD_SECONDS, 60 * minutes)
        sizes = [server.resident_bytes()]
        while time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            sizes.append(server.resident_bytes())
        periods.append([round(size / 2**20, 2) for size in (min(sizes), max(sizes))])
        print_line(
            f"{(end - started) / 60:.1f} of {minutes:g} minutes, {periods[-1][0]:.1f} to "
            f"{periods[-1][1]:.1f} MiB, {load.n_served} images, "
            f"{load.annotator.counts.n_answered} answers"
        )
    return periods


class _Load:
    """Sends images of the package, one per request, and answers questions truthfully."""

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
        self.annotator = SimulatedAnnotator(self._client, self._true_label, behaviour)
        self._threads = [
            Thread(target=self._send, args=(first,)) for first in range(_N_CONNECTIONS)
        ] + [Thread(target=self._answer)]
        for thread in self._threads:
            thread.start()

    def end(self):
        """Stop, and wait for running requests."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        self._client.close()

    def _true_label(self, question: AskedQuestion):
        return self._truth.pop(question.prediction_id, None)

    def _send(self, first):
        with self._server.client("client") as client:
            for number in count(first, _N_CONNECTIONS):
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
