"""What was served lately, by prediction: answers come late, and about any of it."""

from dataclasses import dataclass, replace
from threading import Lock

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sample as the model saw it."""

    prediction_id: str
    position: int
    input: Tensor
    sha256: str


class Recent:
    """The newest samples, as many as fit into so many bytes.

    Their inputs lie in one block. Apart, they would come to lie between what learning takes and
    frees, which then could not be used again as a whole: the process would grow to several times
    of what it needs. One thread adds and looks up; any may ask for a copy.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._samples: dict[str, Sample] = {}
        self._by_position: dict[int, str] = {}
        self._block: Tensor | None = None
        self._names: list[str] = []
        """Whose input lies, or lay, in each place of the block."""
        self._next = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Copy it to the place of the oldest."""
        with self._lock:
            place = self._place_for(sample.prediction_id, sample.input)
            place.copy_(sample.input)
            self._samples[sample.prediction_id] = replace(sample, input=place)
            self._by_position[sample.position] = sample.prediction_id

    def find(self, prediction_id: str) -> Sample | None:
        """By its prediction; its input is overwritten when it is the oldest."""
        return self._samples.get(prediction_id)

    def copy(self, prediction_id: str) -> Tensor | None:
        """Of its input."""
        with self._lock:
            sample = self._samples.get(prediction_id)
            return None if sample is None else sample.input.clone()

    def at(self, position: int) -> Sample | None:
        """By its place in the stream."""
        return self._samples.get(self._by_position.get(position, ""))

    def forget(self, sha256: str) -> None:
        """Let go of every copy of one image."""
        with self._lock:
            for sample in [s for s in self._samples.values() if s.sha256 == sha256]:
                sample.input.zero_()
                self._drop(sample.prediction_id)

    def _place_for(self, name: str, like: Tensor) -> Tensor:
        if self._block is None:
            n = max(1, self.capacity // (like.numel() * like.element_size()))
            self._block = torch.empty((n, *like.shape), dtype=like.dtype)
        place = self._next
        self._next = (place + 1) % len(self._block)
        if place == len(self._names):
            self._names.append("")
        self._drop(self._names[place])
        self._names[place] = name
        return self._block[place]

    def _drop(self, prediction_id: str) -> None:
        sample = self._samples.pop(prediction_id, None)
        if sample is not None:
            self._by_position.pop(sample.position, None)
