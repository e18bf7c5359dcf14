"""Log of served predictions: recent inputs in memory, rows in the store, images on disk."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from math import isfinite
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.server.engine.request_queue import InferenceRequest
from bitta.server.settings import ServeSettings
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

_MINUTE = 60_000_000  # microseconds
_EXPIRY_SECONDS = 1.0
"""Interval at which questions are checked for expiry."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedPredictions:
    """Result of a request, one row per sample."""

    prediction_ids: list[str]
    class_indices: list[int]
    labels: list[str]
    confidence: list[float]
    log_probs: "np.ndarray[Any, np.dtype[np.float32]]"
    """(n, classes); the model's logits up to a constant per row."""
    model_version: str

    def rows(self, start: int, stop: int) -> "ServedPredictions":
        """Return some of the rows."""
        return ServedPredictions(
            self.prediction_ids[start:stop],
            self.class_indices[start:stop],
            self.labels[start:stop],
            self.confidence[start:stop],
            self.log_probs[start:stop],
            self.model_version,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RecentSample:
    """A served sample as the model saw it."""

    prediction_id: str
    position: int
    """Index among all samples served."""
    input: Tensor
    sha256: str


class RecentSamples:
    """Newest samples, as many as fit into `max_bytes`.

    Their inputs are stored in one block. Separate tensors would fragment the memory that learning
    allocates and frees, and the process would grow to several times its size. Only the worker adds
    and finds samples; any thread may copy an input.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._samples: dict[str, RecentSample] = {}
        self._id_by_position: dict[int, str] = {}
        self._block: Tensor | None = None
        self._ids: list[str] = []
        """Prediction id of each row of the block. It stays after the sample is dropped."""
        self._next_row = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: RecentSample) -> None:
        """Copy a sample into the block. If the block is full, overwrite the oldest one."""
        with self._lock:
            row = self._allocate_row(sample.prediction_id, sample.input)
            row.copy_(sample.input)
            self._samples[sample.prediction_id] = replace(sample, input=row)
            self._id_by_position[sample.position] = sample.prediction_id

    def find_at(self, position: int) -> RecentSample | None:
        """Find a sample by its index. Its input is valid until the block overwrites it."""
        return self._samples.get(self._id_by_position.get(position, ""))

    def copy_input(self, prediction_id: str) -> Tensor | None:
        """Return a copy of a sample's input."""
        with self._lock:
            sample = self._samples.get(prediction_id)
            return None if sample is None else sample.input.clone()

    def forget_image(self, sha256: str) -> None:
        """Erase every copy of an image."""
        with self._lock:
            for sample in [s for s in self._samples.values() if s.sha256 == sha256]:
                sample.input.zero_()
                self._drop(sample.prediction_id)

    def _allocate_row(self, prediction_id: str, like: Tensor) -> Tensor:
        if self._block is None:
            n_rows = max(1, self.max_bytes // (like.numel() * like.element_size()))
            self._block = torch.empty((n_rows, *like.shape), dtype=like.dtype)
        row = self._next_row
        self._next_row = (row + 1) % len(self._block)
        if row == len(self._ids):
            self._ids.append("")
        self._drop(self._ids[row])
        self._ids[row] = prediction_id
        return self._block[row]

    def _drop(self, prediction_id: str) -> None:
        sample = self._samples.pop(prediction_id, None)
        if sample is not None:
            self._id_by_position.pop(sample.position, None)


class ServedLog:
    """Log of served predictions: gives each an id, and writes it to the store in the background."""

    def __init__(
        self,
        store: Store,
        settings: ServeSettings,
        *,
        model_name: str,
        classes: tuple[str, ...],
        clock: Callable[[], int],
    ) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._model_name, self._classes = model_name, classes
        self.recent = RecentSamples(settings.recent_bytes)
        self.n_unwritten = 0
        """Number of predictions that clients received and the store has not written yet."""
        self._writing: deque[tuple[Future[None], int]] = deque()
        self._next_expiry = 0.0

    def add(
        self,
        requests: Sequence[InferenceRequest],
        inputs: Tensor,
        prediction: Prediction,
        *,
        first_position: int,
        version: str,
        during: tuple[int, int] | None,
        skips_questions: bool,
    ) -> ServedPredictions:
        """Add a batch. `first_position` is the index of its first sample among all served.

        `during` is the running learning step and the number of its finished updates. It is None
        between steps, and until the first update of a step is finished. `skips_questions` is True
        if the batch completes a window about which no questions are asked.
        """
        samples = self._remember(inputs, first_position)
        served = self._to_served(prediction, samples, version)
        request_ids = [request.request_id for request in requests for _ in request.inputs]
        self._write(served, samples, request_ids, during=during, skips_questions=skips_questions)
        return served

    def ask(self, queries: Sequence[Query], *, position_offset: int) -> dict[str, Query]:
        """Open questions about recent samples. Return the queries by prediction id.

        `position_offset` is added to the positions of the queries.
        """
        found = [(q, self.recent.find_at(position_offset + q.position)) for q in queries]
        # After a rollback, the restored window holds samples that had other positions when served.
        matching = [
            (q, sample) for q, sample in found if sample is not None and _has_same_input(q, sample)
        ]
        if self._settings.keep_images == "queried":
            self._keep_images([sample.input for _, sample in matching])
        expires_at = self._clock() + int(1e6 * self._settings.question_seconds)
        self._store.add_questions(
            [
                NewQuestion(
                    prediction_id=sample.prediction_id,
                    window=query.step,
                    row=query.index,
                    uncertainty=_finite_or_zero(query.uncertainty),
                    reason=query.reason,
                    expires_at=expires_at,
                    overlap=self._settings.overlap,
                )
                for query, sample in matching
            ]
        )
        return {sample.prediction_id: query for query, sample in matching}

    def has_enough_open_questions(self) -> bool:
        """Return True if there are `max_open_questions` open questions from the last minute.

        It is also True if the store cannot store questions.
        """
        if not self._settings.n_queries:
            return False
        if self._store.last_write_error is not None:
            return True
        with suppress(StoreError):
            since = self._clock() - _MINUTE
            return (
                self._store.count_open_questions(since=since) >= self._settings.max_open_questions
            )
        return True

    def expire_questions(self) -> None:
        """Close expired questions. The check runs at most once per second."""
        if monotonic() >= self._next_expiry and self._store.last_write_error is None:
            self._next_expiry = monotonic() + _EXPIRY_SECONDS
            self._store.expire_questions()

    def find_input(self, answer: LearnableAnswer) -> Tensor | None:
        """Return the input of an answered prediction, from memory or disk; None if it is gone."""
        recent = self.recent.copy_input(answer.prediction_id)
        return self._read_image(answer.input_sha256) if recent is None else recent

    def keep_answered_image(self, prediction_id: str) -> None:
        """Write the image of an answered prediction to disk. Any thread may call this."""
        if self._settings.keep_images == "queried":
            recent = self.recent.copy_input(prediction_id)
            self._keep_images([] if recent is None else [recent])

    def update_n_unwritten(self) -> None:
        """Subtract the predictions that have been stored since the last call."""
        while self._writing and self._writing[0][0].done():
            self.n_unwritten -= self._writing.popleft()[1]

    def _remember(self, inputs: Tensor, first_position: int) -> list[RecentSample]:
        samples = [
            RecentSample(new_id(self._clock()), first_position + row, sample, _sha256(sample))
            for row, sample in enumerate(inputs)
        ]
        for sample in samples:
            self.recent.add(sample)
        if self._settings.keep_images == "all":
            self._keep_images([sample.input for sample in samples])
        return samples

    def _to_served(
        self, prediction: Prediction, samples: Sequence[RecentSample], version: str
    ) -> ServedPredictions:
        tiny = torch.finfo(prediction.probs.dtype).tiny
        labels = prediction.labels.tolist()
        return ServedPredictions(
            prediction_ids=[sample.prediction_id for sample in samples],
            class_indices=labels,
            labels=[self._classes[label] for label in labels],
            confidence=prediction.confidence.tolist(),
            log_probs=prediction.probs.clamp_min(tiny).log().cpu().numpy(),
            model_version=version,
        )

    def _write(
        self,
        served: ServedPredictions,
        samples: Sequence[RecentSample],
        request_ids: Sequence[str],
        *,
        during: tuple[int, int] | None,
        skips_questions: bool,
    ) -> None:
        """Write in the background. A crash may lose predictions; it never loses answers."""
        now = self._clock()
        predictions = [
            NewPrediction(
                id=sample.prediction_id,
                position=sample.position,
                request_id=request_id,
                input_sha256=sample.sha256,
                class_index=served.class_indices[row],
                label=served.labels[row],
                confidence=_finite_or_zero(served.confidence[row]),
                served_at=now,
            )
            for row, (request_id, sample) in enumerate(zip(request_ids, samples, strict=True))
        ]
        batch = ServedBatch(
            model_name=self._model_name,
            model_version=served.model_version,
            predictions=predictions,
            during=during,
            skips_questions=skips_questions,
        )
        self._writing.append((self._store.log_served_batch(batch), len(samples)))
        self.n_unwritten += len(samples)

    def _read_image(self, digest: str) -> Tensor | None:
        record, content = self._store.find_image(digest), self._store.images.read(digest)
        if record is None or content is None:
            return None
        array = np.frombuffer(content, dtype=record.dtype).reshape(record.shape)
        return torch.from_numpy(array.copy())

    def _keep_images(self, inputs: Sequence[Tensor]) -> None:
        arrays = [sample.cpu().numpy() for sample in inputs]
        images = [NewImage(a.tobytes(), tuple(a.shape), str(a.dtype)) for a in arrays]
        # Do not wait for the write. If it fails, an answer may find no image; nothing else is lost.
        if images:
            self._store.keep_images(images)


def _has_same_input(query: Query, sample: RecentSample) -> bool:
    return torch.equal(query.input.cpu(), sample.input.to(query.input.dtype))


def _sha256(sample: Tensor) -> str:
    return sha256(sample.cpu().contiguous().numpy().data).hexdigest()


def _finite_or_zero(value: float) -> float:
    return value if isfinite(value) else 0.0
