"""A log lived again: the same events in the same order give the same weights, bit for bit."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.errors import InputError
from bitta.server.engine.learner import Learner
from bitta.server.engine.lesson import Lesson, derive_sample_id
from bitta.server.store import LogEvent, Store, StoredPrediction, parse_version


@dataclass(frozen=True, slots=True)
class Replayed:
    """How it ended."""

    n_served: int
    n_steps: int
    compared: int
    """Snapshots whose weights were compared."""
    differing: tuple[str, ...]
    """Those whose weights came out otherwise."""
    weights: str


@dataclass(slots=True)
class _Course:
    n_served: int = 0
    n_steps: int = 0
    compared: int = 0
    differing: list[str] = field(default_factory=list)
    waiting: dict[int, list[tuple[Tensor, bool]]] = field(default_factory=lambda: defaultdict(list))
    """What was served between the steps of the optimiser, by how many were done, and whether it
    raised no questions."""


class Replay:
    """Lives a log again with a learner; states on the way go into a folder."""

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
        self._snapshots = {one.id: one for one in store.snapshots(dropped=True)}
        self._course = _Course()

    def run(self) -> Replayed:
        """From the first event to the last, on as many threads as the log was written with."""
        threads = torch.get_num_threads()
        try:
            self._live()
        finally:
            torch.set_num_threads(threads)
        course = self._course
        return Replayed(
            course.n_served,
            course.n_steps,
            course.compared,
            tuple(course.differing),
            self._learner.weights,
        )

    def _live(self) -> None:
        last = self._store.last_seq()
        handlers = {
            "started": self._started,
            "served": self._served,
            "learned": self._learned,
            "snapshot": self._snapshot,
            "rollback": self._rolled_back,
            "recovered": self._recovered,
        }
        for event in self._events():
            handle = handlers.get(event.kind)
            if handle is not None:
                handle(event.body)
            self._on_event(event.seq, last)

    def _events(self) -> Iterator[LogEvent]:
        after = 0
        while events := self._store.events(after=after):
            yield from events
            after = events[-1].seq

    def _started(self, body: Mapping[str, Any]) -> None:
        environment = body["environment"]
        if threads := environment.get("threads"):
            torch.set_num_threads(threads)
        limit = environment.get("max_distance", self._learner.config.max_distance)
        self._learner.config = replace(self._learner.config, max_distance=limit)

    def _served(self, body: Mapping[str, Any]) -> None:
        inputs = torch.stack([self._input(name) for name in body["prediction_ids"]])
        silent = bool(body.get("silent", False))
        self._course.n_served += len(inputs)
        if body["during"] is None:
            self._learner.serve(inputs, silent=silent)
        else:
            self._course.waiting[body["during"][1]].append((inputs, silent))

    def _learned(self, body: Mapping[str, Any]) -> None:
        waiting, done = self._course.waiting, 0

        def between() -> None:
            nonlocal done
            done += 1
            for inputs, silent in waiting.pop(done, []):
                self._learner.serve(inputs, silent=silent)

        overruling = body.get("overruling", ())
        lessons = [self._lesson(name, overrules=name in overruling) for name in body["answers"]]
        self._learner.learn(lessons, between=between)
        self._course.n_steps += 1
        if waiting:
            raise InputError(f"the log serves between steps that step {body['version']} has not.")

    def _snapshot(self, body: Mapping[str, Any]) -> None:
        name = body["snapshot_id"]
        if name not in self._snapshots:
            return
        self._learner.save(self._path(name))
        self._course.compared += 1
        if self._learner.weights != self._snapshots[name].weights_hash:
            self._course.differing.append(name)

    def _rolled_back(self, body: Mapping[str, Any]) -> None:
        self._course.waiting.clear()
        self._learner.load(self._path(body["snapshot_id"]))
        self._learner.lineage = parse_version(body["version"])[0]

    def _recovered(self, body: Mapping[str, Any]) -> None:
        """A restart lost what was served and learned after its snapshot."""
        self._started(body)
        self._course.waiting.clear()
        self._learner.load(self._path(body["snapshot"]))
        if "version" in body:
            self._learner.lineage = parse_version(body["version"])[0]

    def _path(self, snapshot_id: str) -> Path:
        return self._folder / f"{snapshot_id}.safetensors"

    def _lesson(self, feedback_id: str, *, overrules: bool) -> Lesson:
        record = self._store.find_feedback(feedback_id)
        assert record is not None, "an answer is stored before it is learned from"
        return Lesson(
            input=self._input(record.prediction_id),
            label=record.predicted_class,
            correct=record.verdict == "correct",
            position=self._prediction(record.prediction_id).position,
            sample_id=derive_sample_id(record.prediction_id, record.annotator_id),
            overrules=overrules,
        )

    def _prediction(self, prediction_id: str) -> StoredPrediction:
        found = self._store.find_prediction(prediction_id)
        assert found is not None, "a prediction is stored with the event that serves it"
        return found

    def _input(self, prediction_id: str) -> Tensor:
        name = self._prediction(prediction_id).input_sha256
        record, content = self._store.find_image(name), self._store.images.read(name)
        if record is not None and record.deleted_at is not None:
            raise InputError(
                f"the image of prediction {prediction_id} was deleted; what was learned with it "
                "cannot be lived again."
            )
        if record is None or content is None:
            raise InputError(
                f"the image of prediction {prediction_id} was not kept; only a log that was "
                "written with --keep-images all can be replayed."
            )
        array = np.frombuffer(content, dtype=record.dtype).reshape(record.shape)
        return torch.from_numpy(array.copy())
