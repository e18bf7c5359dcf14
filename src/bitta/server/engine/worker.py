"""The one thread that owns the model: it serves, asks, and learns between batches."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.errors import BittaError
from bitta.server.engine.config import EngineConfig
from bitta.server.engine.inbox import Inbox, Request
from bitta.server.engine.keeper import Keeper
from bitta.server.engine.learner import Learner, Lesson
from bitta.server.engine.recent import Recent, Sample
from bitta.server.engine.watch import Watch
from bitta.server.guard import Audited, DutyCycle
from bitta.server.store import (
    LearnedStep,
    NewImage,
    NewPrediction,
    NewQuestion,
    PendingAnswer,
    ServedBatch,
    Store,
    new_id,
)
from bitta.server.store.errors import StoreError
from bitta.types import Prediction, Query

_IDLE = 0.05  # seconds between two looks at the clock
_LAST_WRITE = 10.0  # seconds that a full or locked database is waited for at the end


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What a request gets back, a row per sample."""

    prediction_ids: list[str]
    class_indices: list[int]
    labels: list[str]
    confidence: list[float]
    log_probs: "np.ndarray[Any, np.dtype[np.float32]]"
    """(n, classes); the model's logits up to a constant of each row."""
    model_version: str


class Worker(Thread):
    """Runs until it is told to stop; everything about the model happens in here."""

    def __init__(
        self,
        learner: Learner,
        store: Store,
        config: EngineConfig,
        *,
        name: str,
        classes: Sequence[str],
        data_dir: Path,
        clock: Callable[[], int],
    ) -> None:
        super().__init__(name="bitta-worker", daemon=True)
        self.learner, self.store, self.config = learner, store, config
        self.model_name, self.classes, self._clock = name, tuple(classes), clock
        self.inbox = Inbox(
            max_batch=config.max_batch, max_wait=config.max_wait, capacity=config.max_waiting
        )
        self.recent = Recent(config.recent_bytes)
        self.keeper = Keeper(learner, store, config, data_dir=data_dir, clock=clock)
        self.watch = Watch(config.guard, n_classes=len(self.classes), clock=lambda: clock() / 1e6)
        self.duty = DutyCycle(config.duty)
        self.paused = ""
        """Why it does not learn; empty while it does."""
        self.beat = monotonic()
        """When it last went round."""
        self.n_served = 0
        self.distance = 0.0
        """From the source weights, at the last window."""
        self.last_losses: dict[str, float | None] = {}
        self.last_step_at: int | None = None
        self.begun_from = ""
        self._offset = 0
        """Samples served before the session's own count began."""
        self._lineage_began = 0
        """Where in the log."""
        self._during: tuple[int, int] | None = None
        self._owed: Future[None] | None = None
        """The last step, on its way to the disk."""
        self._stopping = Event()

    def begin(self) -> None:
        """Recover, then run; raises where there is nothing to go on from."""
        self.begun_from = self.keeper.begin()
        self._offset = self.store.counts().served - self.learner.n_seen
        lineages = [one for one in self.store.snapshots() if one.lineage == self.learner.lineage]
        self._lineage_began = min(one.seq for one in lineages)
        self.start()

    def run(self) -> None:
        """Orders, requests, learning, snapshots: round and round."""
        while not self._stopping.is_set():
            self.beat = monotonic()
            for order in self.inbox.orders():
                _done(order.done, order.work)
            requests = self.inbox.batch(patience=_IDLE)
            if requests:
                self._serve(requests)
            if self._may_learn():
                self._learn()
            if self.keeper.due and self._settled:
                with suppress(StoreError, OSError):  # tried again at the next round
                    self.keeper.take("interval")

    def stop(self) -> None:
        """Finish what is under way, keep the state, refuse what still waits."""
        self._stopping.set()
        self.join()
        for left in self.inbox.empty():
            left.done.set_exception(BittaError("the server is shutting down; try again soon."))
        if self._owed is not None:
            wait([self._owed], timeout=_LAST_WRITE)
        if self._settled:
            self.keeper.take("interval")
        self.learner.close()

    def _serve(self, requests: Sequence[Request]) -> None:
        inputs = torch.cat([request.inputs for request in requests])
        version, windows, first = self.learner.version, self.learner.n_windows, self._position
        try:
            prediction = self.learner.serve(inputs)
        except BittaError as error:
            for request in requests:
                request.done.set_exception(error)
            return
        samples = self._remembered(inputs, first)
        served = self._as_served(prediction, samples, version)
        self._record(requests, served, samples, version)
        start = 0
        for request in requests:
            stop = start + len(request.inputs)
            request.done.set_result(_part(served, start, stop))
            self.watch.latencies.add(monotonic() - request.came_at)
            start = stop
        self.n_served += len(inputs)
        self.watch.served(inputs, prediction)
        if self.learner.n_windows > windows:
            self._ask(prediction.queries)
            self._judge()

    @property
    def _position(self) -> int:
        return self._offset + self.learner.n_seen

    def _remembered(self, inputs: Tensor, first: int) -> list[Sample]:
        samples = [
            Sample(new_id(self._clock()), first + row, one.clone(), _digest(one))
            for row, one in enumerate(inputs)
        ]
        for sample in samples:
            self.recent.add(sample)
        if self.config.keep_images == "all":
            self._keep(samples)
        return samples

    def _as_served(self, prediction: Prediction, samples: Sequence[Sample], version: str) -> Served:
        tiny = torch.finfo(prediction.probs.dtype).tiny
        return Served(
            prediction_ids=[sample.prediction_id for sample in samples],
            class_indices=prediction.labels.tolist(),
            labels=[self.classes[label] for label in prediction.labels.tolist()],
            confidence=prediction.confidence.tolist(),
            log_probs=prediction.probs.clamp_min(tiny).log().cpu().numpy(),
            model_version=version,
        )

    def _record(
        self, requests: Sequence[Request], served: Served, samples: Sequence[Sample], version: str
    ) -> None:
        """Written behind: what was served is no promise, what was answered is."""
        names = [request.request_id for request in requests for _ in request.inputs]
        now = self._clock()
        self.store.served(
            ServedBatch(
                model_name=self.model_name,
                model_version=version,
                predictions=[
                    NewPrediction(
                        id=sample.prediction_id,
                        position=sample.position,
                        request_id=name,
                        input_sha256=sample.sha256,
                        class_index=served.class_indices[row],
                        label=served.labels[row],
                        confidence=_finite(served.confidence[row]),
                        served_at=now,
                    )
                    for row, (name, sample) in enumerate(zip(names, samples, strict=True))
                ],
                during=self._during,
            )
        )

    def _ask(self, queries: Sequence[Query]) -> None:
        found = [(query, self.recent.at(self._offset + query.position)) for query in queries]
        known = [(query, sample) for query, sample in found if sample is not None]
        if self.config.keep_images == "queried":
            self._keep([sample for _, sample in known])
        expires = self._clock() + int(1e6 * self.config.question_seconds)
        self.store.asked(
            [
                NewQuestion(
                    prediction_id=sample.prediction_id,
                    step=query.step,
                    row=query.index,
                    uncertainty=_finite(query.uncertainty),
                    reason="audit" if query.audit else "uncertain",
                    expires_at=expires,
                    overlap=self.config.overlap,
                )
                for query, sample in known
            ]
        )

    def _keep(self, samples: Sequence[Sample]) -> None:
        arrays = [sample.input.cpu().numpy() for sample in samples]
        images = [NewImage(a.tobytes(), tuple(a.shape), str(a.dtype)) for a in arrays]
        with suppress(OSError, StoreError):  # without it an answer may come too late, no more
            self.store.keep_images(images)

    def _judge(self) -> None:
        """A window is full: has the model collapsed?"""
        self.distance = self.learner.distance
        verdict = self.watch.window(self.distance, self.audited())
        if verdict.state != "collapsed" or self._during is not None or not self.config.rollback:
            return
        target = self.keeper.older_than(verdict.windows)
        self.roll_back(target, by="guard", reason="; ".join(verdict.reasons))

    def audited(self) -> Audited:
        """What the newest answers to audits of this lineage say."""
        guard = self.config.guard
        oldest = self._clock() - int(1e6 * guard.audit_seconds)
        audits = [
            one for one in self.store.audits(since=self._lineage_began) if one.received_at > oldest
        ]
        audits = audits[-guard.audit_window :]
        return Audited(len(audits), sum(one.correct for one in audits))

    def roll_back(self, snapshot_id: str, *, by: str, reason: str) -> str:
        """To be called in this thread."""
        position = self._position
        snapshot = self.keeper.roll_back(snapshot_id, by=by, reason=reason)
        self._offset = position - self.learner.n_seen
        self._lineage_began = snapshot.seq
        self.watch.rolled_back(to_source=snapshot.step == 0)
        return snapshot.model_version

    def _may_learn(self) -> bool:
        return self._settled and not self.paused and self.learner.due and self.duty.wait() <= 0

    @property
    def _settled(self) -> bool:
        """Whether the last step is on disk; nothing more is learned or kept before."""
        return self._owed is None or self._owed.done()

    def _learn(self) -> None:
        """The answers enter the memory with the step that is committed with them."""
        try:
            taken = self.store.take().result()
        except StoreError:
            return  # the next round tries again
        known = [(answer, self._input(answer)) for answer in taken]
        lost = [answer.feedback_id for answer, given in known if given is None]
        if lost:
            self.store.unusable(lost, "its image is not at hand any more")
        lessons = [
            Lesson(
                input=given,
                label=answer.class_index,
                correct=answer.verdict == "correct",
                position=answer.position,
            )
            for answer, given in known
            if given is not None
        ]
        breaks = _Breaks(self._between)
        losses = self.learner.learn(lessons, between=breaks).mean()
        self._during = None
        seconds = breaks.worked
        self.duty.spent(seconds)
        self.last_losses = {n: v if isfinite(v) else None for n, v in losses.items()}
        self.last_step_at = self._clock()
        self.watch.n_answers += len(lessons)
        self._owed = self.store.learned(
            LearnedStep(
                version=self.learner.version,
                answers=[answer.feedback_id for answer, given in known if given is not None],
                losses=self.last_losses,
                seconds=seconds,
            )
        )
        self.keeper.learned()

    def _between(self, epoch: int) -> None:
        """Serve who waits, between two steps of the optimiser."""
        self._during = (self.learner.step, epoch)
        waiting = self.inbox.depth
        while waiting > 0 and (requests := self.inbox.batch(patience=0)):
            self._serve(requests)
            waiting -= sum(len(request.inputs) for request in requests)

    def _input(self, answer: PendingAnswer) -> Tensor | None:
        sample = self.recent.find(answer.prediction_id)
        if sample is not None:
            return sample.input
        record = self.store.image(answer.input_sha256)
        content = self.store.images.read(answer.input_sha256)
        if record is None or content is None:
            return None
        array = np.frombuffer(content, dtype=record.dtype).reshape(record.shape)
        return torch.from_numpy(array.copy())


class _Breaks:
    """What `learn` calls between two steps; it keeps the time that learning itself took."""

    def __init__(self, pause: Callable[[int], None]) -> None:
        self._pause = pause
        self._began, self._rested, self._n = monotonic(), 0.0, 0

    def __call__(self) -> None:
        self._n += 1
        left = monotonic()
        self._pause(self._n)
        self._rested += monotonic() - left

    @property
    def worked(self) -> float:
        """Seconds so far, without the breaks."""
        return monotonic() - self._began - self._rested


def _part(served: Served, start: int, stop: int) -> Served:
    return Served(
        served.prediction_ids[start:stop],
        served.class_indices[start:stop],
        served.labels[start:stop],
        served.confidence[start:stop],
        served.log_probs[start:stop],
        served.model_version,
    )


def _done(future: "Future[Any]", work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except (BittaError, OSError) as error:
        future.set_exception(error)


def _digest(one: Tensor) -> str:
    return sha256(one.cpu().contiguous().numpy().tobytes()).hexdigest()


def _finite(value: float) -> float:
    return value if isfinite(value) else 0.0
