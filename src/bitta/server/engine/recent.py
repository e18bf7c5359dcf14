"""What was served lately, by prediction: answers come late, and about any of it."""

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sample as the model saw it."""

    prediction_id: str
    position: int
    input: Tensor
    sha256: str


class Recent:
    """The newest samples, as many as fit into so many bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._samples: OrderedDict[str, Sample] = OrderedDict()
        self._by_position: dict[int, str] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Let the oldest go."""
        self._samples[sample.prediction_id] = sample
        self._by_position[sample.position] = sample.prediction_id
        self._bytes += _size(sample)
        while self._bytes > self.capacity and len(self._samples) > 1:
            self._drop(next(iter(self._samples)))

    def find(self, prediction_id: str) -> Sample | None:
        """By its prediction."""
        return self._samples.get(prediction_id)

    def at(self, position: int) -> Sample | None:
        """By its place in the stream."""
        return self._samples.get(self._by_position.get(position, ""))

    def forget(self, sha256: str) -> None:
        """Let go of every copy of one image."""
        for name in [s.prediction_id for s in self._samples.values() if s.sha256 == sha256]:
            self._drop(name)

    def _drop(self, prediction_id: str) -> None:
        sample = self._samples.pop(prediction_id)
        self._by_position.pop(sample.position, None)
        self._bytes -= _size(sample)


def _size(sample: Sample) -> int:
    return sample.input.numel() * sample.input.element_size()
