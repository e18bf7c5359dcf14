"""Everything that was served: at hand, in the log, and on disk where it is to be kept."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.server.engine.config import EngineConfig
from bitta.server.engine.inbox import Request
from bitta.server.engine.recent import Recent, Sample
from bitta.server.store import (
    LearnableAnswer,
    NewImage,
    NewPrediction,
    NewQuestion,
    ServedBatch,
    Store,
    new_id,
)
from bitta.server.store.errors import StoreError
from bitta.types import Prediction, Query

_MINUTE = 60_000_000
"""Microseconds."""
_SECOND = 1.0


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

    def part(self, start: int, stop: int) -> "Served":
        """Some of the rows."""
        return Served(
            self.prediction_ids[start:stop],
            self.class_indices[start:stop],
            self.labels[start:stop],
            self.confidence[start:stop],
            self.log_probs[start:stop],
            self.model_version,
        )


class Ledger:
    """Names what is served, and writes it down behind those who wait for it."""

    def __init__(
        self,
        store: Store,
        config: EngineConfig,
        *,
        name: str,
        classes: tuple[str, ...],
        clock: Callable[[], int],
    ) -> None:
        self._store, self._config, self._clock = store, config, clock
        self._name, self._classes = name, classes
        self.recent = Recent(config.recent_bytes)
        self.unwritten = 0
        """Predictions given out that are not stored yet."""
        self._writing: deque[tuple[Future[None], int]] = deque()
        self._expire_at = 0.0

    def enter(
        self,
        requests: Sequence[Request],
        inputs: Tensor,
        prediction: Prediction,
        *,
        first: int,
        version: str,
        during: tuple[int, int] | None,
        silent: bool,
    ) -> Served:
        """Take in what was served together, from place `first` of all that was."""
        samples = self._remembered(inputs, first)
        served = self._as_served(prediction, samples, version)
        names = [request.request_id for request in requests for _ in request.inputs]
        self._record(served, samples, names, during=during, silent=silent)
        return served

    def ask(self, queries: Sequence[Query], *, offset: int) -> dict[str, Query]:
        """Open questions about samples that are at hand; positions count from `offset`.

        Tells which, by the name of the prediction.
        """
        found = [(query, self.recent.at(offset + query.position)) for query in queries]
        # A window that a rollback brought back holds samples from before, at other positions.
        known = [(query, one) for query, one in found if one is not None and _about(query, one)]
        if self._config.keep_images == "queried":
            self._keep([sample.input for _, sample in known])
        expires = self._clock() + int(1e6 * self._config.question_seconds)
        self._store.add_questions(
            [
                NewQuestion(
                    prediction_id=sample.prediction_id,
                    step=query.step,
                    row=query.index,
                    uncertainty=_finite(query.uncertainty),
                    reason="audit" if query.audit else "uncertain",
                    expires_at=expires,
                    overlap=self._config.overlap,
                )
                for query, sample in known
            ]
        )
        return {sample.prediction_id: query for query, sample in known}

    def enough_asked(self) -> bool:
        """Whether as many of the last minute's questions wait for an answer as may."""
        if not self._config.learner.n_queries:
            return False
        if self._store.last_write_error is not None:
            return True  # none could be stored
        with suppress(StoreError):
            since = self._clock() - _MINUTE
            return self._store.count_open_questions(since=since) >= self._config.max_open
        return True

    def expire(self) -> None:
        """Questions whose time is over are no longer open, seen every second."""
        if monotonic() >= self._expire_at and self._store.last_write_error is None:
            self._expire_at = monotonic() + _SECOND
            self._store.expire_questions()

    def input(self, answer: LearnableAnswer) -> Tensor | None:
        """What an answer is about, where it can still be found."""
        at_hand = self.recent.copy(answer.prediction_id)
        return self._kept(answer.input_sha256) if at_hand is None else at_hand

    def keep_answered(self, prediction_id: str) -> None:
        """Let the image of an answer that nobody asked for outlive the process; in any thread."""
        if self._config.keep_images == "queried":
            at_hand = self.recent.copy(prediction_id)
            self._keep([] if at_hand is None else [at_hand])

    def count_written(self) -> None:
        """Let go of what has been stored meanwhile."""
        while self._writing and self._writing[0][0].done():
            self.unwritten -= self._writing.popleft()[1]

    def _remembered(self, inputs: Tensor, first: int) -> list[Sample]:
        samples = [
            Sample(new_id(self._clock()), first + row, one, _digest(one))
            for row, one in enumerate(inputs)
        ]
        for sample in samples:
            self.recent.add(sample)
        if self._config.keep_images == "all":
            self._keep([sample.input for sample in samples])
        return samples

    def _as_served(self, prediction: Prediction, samples: Sequence[Sample], version: str) -> Served:
        tiny = torch.finfo(prediction.probs.dtype).tiny
        labels = prediction.labels.tolist()
        return Served(
            prediction_ids=[sample.prediction_id for sample in samples],
            class_indices=labels,
            labels=[self._classes[label] for label in labels],
            confidence=prediction.confidence.tolist(),
            log_probs=prediction.probs.clamp_min(tiny).log().cpu().numpy(),
            model_version=version,
        )

    def _record(
        self,
        served: Served,
        samples: Sequence[Sample],
        names: Sequence[str],
        *,
        during: tuple[int, int] | None,
        silent: bool,
    ) -> None:
        """Written behind: what was served is no promise, what was answered is."""
        now = self._clock()
        predictions = [
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
        ]
        batch = ServedBatch(
            model_name=self._name,
            model_version=served.model_version,
            predictions=predictions,
            during=during,
            silent=silent,
        )
        self._writing.append((self._store.log_served_batch(batch), len(samples)))
        self.unwritten += len(samples)

    def _kept(self, name: str) -> Tensor | None:
        """From the disk."""
        record, content = self._store.find_image(name), self._store.images.read(name)
        if record is None or content is None:
            return None
        array = np.frombuffer(content, dtype=record.dtype).reshape(record.shape)
        return torch.from_numpy(array.copy())

    def _keep(self, inputs: Sequence[Tensor]) -> None:
        arrays = [one.cpu().numpy() for one in inputs]
        images = [NewImage(a.tobytes(), tuple(a.shape), str(a.dtype)) for a in arrays]
        # Nobody waits: without an image an answer may come too late, no more.
        if images:
            self._store.keep_images(images)


def _about(query: Query, sample: Sample) -> bool:
    return torch.equal(query.input.cpu(), sample.input.to(query.input.dtype))


def _digest(one: Tensor) -> str:
    return sha256(one.cpu().contiguous().numpy().data).hexdigest()


def _finite(value: float) -> float:
    return value if isfinite(value) else 0.0
