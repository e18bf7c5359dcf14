"""Replay of an event log. It gives the same weights as the server that wrote it, bit for bit."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.server.engine.learner import AnsweredSample, Learner, derive_sample_id
from bitta.server.store import LogEvent, Store, StoredPrediction, parse_version


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts of a replay, and the snapshots whose weights differ."""

    n_served: int
    n_steps: int
    n_compared: int
    """Number of snapshots whose weights were compared."""
    differing: tuple[str, ...]
    """Ids of the snapshots with different weights."""
    weights_hash: str


@dataclass(slots=True)
class _Progress:
    n_served: int = 0
    n_steps: int = 0
    n_compared: int = 0
    differing: list[str] = field(default_factory=list)
    waiting: dict[int, list[tuple[Tensor, bool]]] = field(default_factory=lambda: defaultdict(list))
    """Batches that were served during the next learning step, by the number of finished updates.
    The flag is True if no questions were asked about the batch."""


class Replay:
    """Replay of a log with a learner. It writes the snapshots of the log to a folder."""

    def __init__(
        self,
        learner: Learner,
        store: Store,
        *,
        folder: Path,
        on_event: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        self._learner, self._store, self._folder = learner, store, folder
        self._on_event = on_event
        self._snapshots = {
            snapshot.id: snapshot for snapshot in store.snapshots(include_dropped=True)
        }
        self._progress = _Progress()

    def run(self) -> ReplayResult:
        """Replay all events, with as many threads as the server that wrote the log."""
        n_threads = torch.get_num_threads()
        try:
            self._replay_events()
        finally:
            torch.set_num_threads(n_threads)
        progress = self._progress
        return ReplayResult(
            progress.n_served,
            progress.n_steps,
            progress.n_compared,
            tuple(progress.differing),
            self._learner.weights_hash,
        )

    def _replay_events(self) -> None:
        last = self._store.last_seq()
        handlers = {
            "started": self._on_started,
            "served": self._on_served,
            "learned": self._on_learned,
            "snapshot": self._on_snapshot,
            "rollback": self._on_rollback,
            "recovered": self._on_recovered,
        }
        for event in self._read_events():
            handler = handlers.get(event.kind)
            if handler is not None:
                handler(event.body)
            self._on_event(event.seq, last)

    def _read_events(self) -> Iterator[LogEvent]:
        after = 0
        while events := self._store.events(after=after):
            yield from events
            after = events[-1].seq

    def _on_started(self, body: Mapping[str, Any]) -> None:
        environment = body["environment"]
        if n_threads := environment.get("threads"):
            torch.set_num_threads(n_threads)
        self._learner.max_distance = environment.get("max_distance", self._learner.max_distance)

    def _on_served(self, body: Mapping[str, Any]) -> None:
        inputs = torch.stack([self._read_input(name) for name in body["prediction_ids"]])
        skips_questions = bool(body.get("skips_questions", False))
        self._progress.n_served += len(inputs)
        if body["during"] is None:
            self._learner.serve(inputs, skip_questions=skips_questions)
        else:
            self._progress.waiting[body["during"][1]].append((inputs, skips_questions))

    def _on_learned(self, body: Mapping[str, Any]) -> None:
        waiting, n_updates = self._progress.waiting, 0

        def between_updates() -> None:
            nonlocal n_updates
            n_updates += 1
            for inputs, skips_questions in waiting.pop(n_updates, []):
                self._learner.serve(inputs, skip_questions=skips_questions)

        replacing = body.get("replacing", ())
        answered = [
            self._read_answer(feedback_id, replaces_answer=feedback_id in replacing)
            for feedback_id in body["answers"]
        ]
        self._learner.learn(answered, between_updates=between_updates)
        self._progress.n_steps += 1
        if waiting:
            raise InputError(
                f"the log is inconsistent: step {body['version']} has fewer updates than the log "
                "says; use the version of bitta that wrote it."
            )

    def _on_snapshot(self, body: Mapping[str, Any]) -> None:
        snapshot_id = body["snapshot_id"]
        if snapshot_id not in self._snapshots:
            return
        self._learner.save(self._path(snapshot_id))
        self._progress.n_compared += 1
        if self._learner.weights_hash != self._snapshots[snapshot_id].weights_hash:
            self._progress.differing.append(snapshot_id)

    def _on_rollback(self, body: Mapping[str, Any]) -> None:
        self._progress.waiting.clear()
        self._learner.load(self._path(body["snapshot_id"]))
        self._learner.lineage = parse_version(body["version"])[0]

    def _on_recovered(self, body: Mapping[str, Any]) -> None:
        """Load the snapshot of a restart. Steps after the snapshot were lost."""
        self._on_started(body)
        self._progress.waiting.clear()
        self._learner.load(self._path(body["snapshot"]))
        if "version" in body:
            self._learner.lineage = parse_version(body["version"])[0]

    def _path(self, snapshot_id: str) -> Path:
        return self._folder / f"{snapshot_id}.safetensors"

    def _read_answer(self, feedback_id: str, *, replaces_answer: bool) -> AnsweredSample:
        record = self._store.find_feedback(feedback_id)
        assert record is not None, "an answer is stored before it is learned from"
        return AnsweredSample(
            input=self._read_input(record.prediction_id),
            label=record.predicted_class,
            correct=record.verdict == "correct",
            position=self._read_prediction(record.prediction_id).position,
            sample_id=derive_sample_id(record.prediction_id, record.annotator_id),
            replaces_answer=replaces_answer,
        )

    def _read_prediction(self, prediction_id: str) -> StoredPrediction:
        found = self._store.find_prediction(prediction_id)
        assert found is not None, "a prediction is stored with the event that serves it"
        return found

    def _read_input(self, prediction_id: str) -> Tensor:
        digest = self._read_prediction(prediction_id).input_sha256
        record, content = self._store.find_image(digest), self._store.images.read(digest)
        if record is not None and record.deleted_at is not None:
            raise InputError(
                f"the image of prediction {prediction_id} was deleted; a log with deleted images "
                "cannot be replayed."
            )
        if record is None or content is None:
            raise InputError(
                f"the image of prediction {prediction_id} was not kept; only a log that was "
                "written with --keep-images all can be replayed."
            )
        array = np.frombuffer(content, dtype=record.dtype).reshape(record.shape)
        return torch.from_numpy(array.copy())
