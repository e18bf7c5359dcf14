"""An engine without a model, and a server in a thread, for tests of the API."""

import io
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np

from bitta.errors import BittaError
from bitta.server.logs import make_logger
from bitta.server.process import bind, make_server
from bitta.server.store import (
    LearnedStep,
    NewImage,
    NewPrediction,
    NewQuestion,
    NewSnapshot,
    Rollback,
    ServedBatch,
    new_id,
    now,
)

CLASSES = ("cat", "dog", "<b>bird</b>")
SHAPE = (3, 4, 4)


class EngineOverloadedError(BittaError):
    """Raised by a fake engine whose queue is full."""


@dataclass(frozen=True)
class FakeServed:
    prediction_ids: list
    class_indices: list
    labels: list
    confidence: list
    log_probs: np.ndarray
    model_version: str


@dataclass(frozen=True)
class FakeStatus:
    model_version: str = "1.0"
    weights: str | None = None
    learning: str = "on"
    reason: str | None = None
    duty: float = 0.25
    n_learning_steps: int = 0
    last_step_at: int | None = None
    losses: dict = field(default_factory=lambda: {"correct": 0.5, "incorrect": None})
    n_served: int = 0
    per_second: float = 0.0
    latency_ms: dict = field(default_factory=lambda: {"p50": 1.5, "p99": None})
    audits: dict = field(
        default_factory=lambda: {"n": 4, "correct": 3, "accuracy": 0.75, "low": 0.3, "high": 0.95}
    )
    agreement: float | None = None
    confidence: dict = field(default_factory=lambda: {"recent": 0.9, "reference": None})
    distance: dict = field(default_factory=lambda: {"now": 0.125, "limit": 1.0})
    collapse: dict = field(default_factory=lambda: {"state": "ok", "reasons": []})
    history: dict = field(default_factory=lambda: {"at": [10.5], "accuracy": [None]})
    queue_depth: int = 0
    last_snapshot_at: int | None = None


class FakeEngine:
    """Engine that predicts class 0 if the first pixel is below 0.5, otherwise class 1."""

    model_name = "toy"
    classes = CLASSES
    input_shape = SHAPE

    def __init__(self, store):
        self.store = store
        self.is_alive = True
        self.is_stuck = False
        self.idle_seconds = 60.0
        self.error = None
        self.forgotten_hashes = []
        self.kept_answered_ids = []
        self.current_status = FakeStatus()
        self.position = 0
        self.requests = []

    @property
    def model_version(self):
        return self.current_status.model_version

    def ping(self):
        return Future() if self.is_stuck else completed(None)

    def predict(self, inputs, *, request_id):
        if self.error is not None:
            raise self.error
        if self.is_stuck:
            return Future()
        assert inputs.dtype == np.float32
        assert inputs.shape[1:] == SHAPE
        self.requests.append(request_id)
        labels = [int(image.flat[0] >= 0.5) for image in inputs]
        logits = np.full((len(inputs), 3), -3.0, np.float32)
        logits[np.arange(len(inputs)), labels] = -0.1
        served = FakeServed(
            prediction_ids=[new_id(now()) for _ in labels],
            class_indices=labels,
            labels=[CLASSES[label] for label in labels],
            confidence=[0.9] * len(labels),
            log_probs=logits,
            model_version=self.model_version,
        )
        self._store(served, inputs, request_id)
        return completed(served)

    def _store(self, served, inputs, request_id):
        self.store.log_served_batch(
            ServedBatch(
                self.model_name,
                served.model_version,
                [
                    NewPrediction(
                        id=name,
                        position=self.position + row,
                        request_id=request_id,
                        input_sha256=sha256(inputs[row].tobytes()).hexdigest(),
                        class_index=served.class_indices[row],
                        label=served.labels[row],
                        confidence=0.9,
                        served_at=now(),
                    )
                    for row, name in enumerate(served.prediction_ids)
                ],
            )
        )
        self.position += len(inputs)
        self.current_status = replace(self.current_status, n_served=self.position)

    def ask(self, n=1, *, expires_in=60.0, keep=True, reason="uncertain"):
        """Serve n samples, ask about each, and return their prediction ids."""
        inputs = np.random.default_rng(self.position).random((n, *SHAPE), np.float32)
        served = self.predict(inputs, request_id="ask").result()
        if keep:
            images = [NewImage(one.tobytes(), one.shape, "float32") for one in inputs]
            self.store.keep_images(images).result()
        self.store.add_questions(
            [
                NewQuestion(
                    prediction_id=name,
                    window=0,
                    row=row,
                    uncertainty=0.5,
                    reason=reason,
                    expires_at=now() + int(expires_in * 1e6),
                )
                for row, name in enumerate(served.prediction_ids)
            ]
        ).result()
        return served.prediction_ids

    def learn(self, *feedback_ids):
        version = f"1.{self.current_status.n_learning_steps + 1}"
        self.store.log_learned_step(LearnedStep(version, feedback_ids, {"loss": 0.5}, 0.1)).result()
        self.current_status = replace(
            self.current_status,
            n_learning_steps=self.current_status.n_learning_steps + 1,
            model_version=version,
        )

    def status(self):
        return self.current_status

    def snapshot(self, reason):
        name = new_id(now())
        return self.store.add_snapshot(
            NewSnapshot(name, self.model_version, f"snapshots/{name}", "0" * 64, "1" * 64, reason)
        )

    def rollback(self, snapshot_id, *, by, reason):
        name = new_id(now())
        new = NewSnapshot(name, "2.0", f"snapshots/{name}", "0" * 64, "1" * 64, "rollback")
        before, self.current_status = (
            self.model_version,
            replace(self.current_status, model_version="2.0", n_learning_steps=0),
        )
        self.store.log_rollback(Rollback(snapshot_id, new, before, reason, by)).result()
        return completed("2.0")

    def pause(self, by, reason):
        self.current_status = replace(self.current_status, learning="paused", reason=reason)
        self.store.log_event("paused", {"by": by, "reason": reason}).result()
        return completed(None)

    def resume(self, by):
        self.current_status = replace(self.current_status, learning="on", reason=None)
        self.store.log_event("resumed", {"by": by}).result()
        return completed(None)

    def keep_answered_image(self, prediction_id):
        self.kept_answered_ids.append(prediction_id)

    def forget_image(self, sha256):
        self.forgotten_hashes.append(sha256)


def completed(value):
    future = Future()
    future.set_result(value)
    return future


def silent_log():
    return make_logger("error", io.StringIO())


@contextmanager
def running(app, settings):
    """Run a real server in a thread, and yield its port."""
    bound = bind(settings)
    server = make_server(app, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    assert server.started
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
