"""Memories of samples: FIFO, class-balanced, confident, answered, and the window of recent ones."""

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from bitta.seeding import Key, generator
from bitta.types import Feedback, Judged, Prediction, State, moved


class Fifo:
    """Keep the newest `capacity` samples; nothing moves but what is new."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ring: Judged | None = None
        self._oldest = 0
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def inputs(self) -> Tensor:
        """(samples, ...), oldest first; the shape is known from the first `add` on."""
        assert self._ring is not None, "a memory is read only after its first add"
        return self._in_order(self._ring.inputs)

    @property
    def labels(self) -> Tensor:
        """(samples,), oldest first."""
        assert self._ring is not None, "a memory is read only after its first add"
        return self._in_order(self._ring.labels)

    def add(self, new: Judged) -> None:
        """Append samples (possibly none) and forget the oldest beyond the capacity."""
        if self._ring is None:
            shape = (self.capacity, *new.inputs.shape[1:])
            self._ring = Judged(new.inputs.new_empty(shape), new.labels.new_empty(self.capacity))
        inputs, labels = new.inputs[-self.capacity :], new.labels[-self.capacity :]
        start = (self._oldest + self._n) % self.capacity
        until_end = self.capacity - start
        for ring, fresh in ((self._ring.inputs, inputs), (self._ring.labels, labels)):
            ring[start : start + len(fresh)] = fresh[:until_end].detach()
            ring[: max(0, len(fresh) - until_end)] = fresh[until_end:].detach()
        forgotten = max(0, self._n + len(labels) - self.capacity)
        self._oldest = (self._oldest + forgotten) % self.capacity
        self._n += len(labels) - forgotten

    def clear(self) -> None:
        """Forget everything but the shape."""
        self._oldest = self._n = 0

    def state_dict(self) -> State:
        """The samples, if there ever were any."""
        return {} if self._ring is None else {"inputs": self.inputs, "labels": self.labels}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self._ring = None
        self.clear()
        if state:
            self.add(Judged(state["inputs"].to(device), state["labels"].to(device)))

    def _in_order(self, ring: Tensor) -> Tensor:
        wrapped = max(0, self._oldest + self._n - self.capacity)
        return torch.cat([ring[self._oldest : self._oldest + self._n], ring[:wrapped]])


class Balanced:
    """Keep `capacity` samples; a new one takes the place of the oldest of a largest label.

    >>> memory = Balanced(4)
    >>> memory.add(Judged(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([7, 7, 7, 7])))
    >>> memory.add(Judged(torch.tensor([[5.0], [6.0]]), torch.tensor([2, 7])))
    >>> memory.inputs.flatten().tolist(), memory.labels.tolist()
    ([3.0, 4.0, 5.0, 6.0], [7, 7, 2, 7])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._room: Judged | None = None
        self._kept: dict[int, int] = {}
        """Label by slot, oldest first."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def inputs(self) -> Tensor:
        """(samples, ...), oldest first; the shape is known from the first `add` on."""
        shape = self._filled()
        return shape.inputs[self._places(shape.inputs.device)]

    @property
    def labels(self) -> Tensor:
        """(samples,), oldest first."""
        shape = self._filled()
        return shape.labels[self._places(shape.labels.device)]

    def add(self, new: Judged) -> None:
        """Take samples in (possibly none), one after another."""
        if self._room is None:
            shape = (self.capacity, *new.inputs.shape[1:])
            self._room = Judged(new.inputs.new_empty(shape), new.labels.new_empty(self.capacity))
        taken: dict[int, int] = {}  # slot: row
        for row, label in enumerate(new.labels.tolist()):
            slot = self._slot_for(label)
            self._kept[slot] = label
            taken[slot] = row
        slots, rows = torch.tensor(list(taken.items()), dtype=torch.long).reshape(-1, 2).T
        slots, rows = (moved(of.contiguous(), new.inputs.device) for of in (slots, rows))
        self._room.inputs[slots] = new.inputs[rows].detach()
        self._room.labels[slots] = new.labels[rows]

    def clear(self) -> None:
        """Forget everything but the shape."""
        self._kept.clear()

    def state_dict(self) -> State:
        """The samples, if there ever were any."""
        return {} if self._room is None else {"inputs": self.inputs, "labels": self.labels}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self._room = None
        self.clear()
        if state:
            self.add(Judged(state["inputs"].to(device), state["labels"].to(device)))

    def _filled(self) -> Judged:
        assert self._room is not None, "a memory is read only after its first add"
        return self._room

    def _places(self, device: torch.device) -> Tensor:
        return moved(torch.tensor(list(self._kept), dtype=torch.long), device)

    def _slot_for(self, label: int) -> int:
        """A free one, or the oldest of the labels that are most frequent with the new one."""
        if len(self._kept) < self.capacity:
            return next(slot for slot in range(self.capacity) if slot not in self._kept)
        counts = Counter(self._kept.values())
        counts[label] += 1
        most = max(counts.values())
        slot = next(slot for slot, of in self._kept.items() if counts[of] == most)
        del self._kept[slot]
        return slot


class ConfidentMemory:
    """High-confidence uniform-class sampling: the largest class makes room."""

    def __init__(self, capacity: int, *, confident: float, key: Key) -> None:
        self.capacity = capacity
        self.confident = confident
        self.labels: list[int] = []
        """Predicted classes of the samples kept."""
        self._key = key
        self._n_accepted = 0
        self._inputs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> Tensor:
        """(samples, ...); the shape is known from the first `offer` on."""
        assert self._inputs is not None, "a memory is read only after its first offer"
        return self._inputs[: len(self)]

    def offer(self, inputs: Tensor, labels: Tensor, confidence: Tensor) -> None:
        """Keep samples that are confident enough, one after another."""
        if self._inputs is None:
            self._inputs = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        rows = (confidence >= self.confident).nonzero().squeeze(1)
        for row, label in zip(rows.tolist(), labels[rows].tolist(), strict=True):
            place = self._place_for(label)
            self._inputs[place] = inputs[row].detach()
            self.labels[place : place + 1] = [label]
            self._n_accepted += 1

    def clear(self) -> None:
        """Forget everything but the shape."""
        self.labels = []
        self._n_accepted = 0

    def state_dict(self) -> State:
        """The samples, if there ever were any, and how many have been accepted."""
        return {
            "inputs": None if self._inputs is None else self.inputs,
            "labels": self.labels,
            "n_accepted": self._n_accepted,
        }

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self.labels = list(state["labels"])
        self._n_accepted = state["n_accepted"]
        self._inputs = None
        if state["inputs"] is not None:
            kept = state["inputs"].to(device)
            self._inputs = kept.new_empty((self.capacity, *kept.shape[1:]))
            self._inputs[: len(kept)] = kept

    def _place_for(self, label: int) -> int:
        """A free place, else that of a random sample of a largest class, its own if it is one."""
        if len(self) < self.capacity:
            return len(self)
        counts = {kept: self.labels.count(kept) for kept in sorted(set(self.labels))}
        largest = [kept for kept, count in counts.items() if count == max(counts.values())]
        # Drawn by address: the number of samples accepted so far is all there is to save.
        random_key = generator(*self._key, self._n_accepted)
        crowded = label if label in largest else _one_of(largest, random_key)
        return _one_of(
            [place for place, kept in enumerate(self.labels) if kept == crowded], random_key
        )


def _one_of(values: list[int], random_key: torch.Generator) -> int:
    return values[int(torch.randint(len(values), (), generator=random_key))]


class Mixed(NamedTuple):
    """[correct; incorrect; unlabelled]: the batch that every step learns from."""

    inputs: Tensor  # (samples, ...)
    correct: Tensor  # (correct,) labels judged correct
    incorrect: Tensor  # (incorrect,) labels judged incorrect

    @property
    def n_judged(self) -> int:
        """How many rows have a label that was judged."""
        return len(self.correct) + len(self.incorrect)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of what the model gave: correct, incorrect, unlabelled."""
        correct, incorrect, rest = outputs.tensor_split((len(self.correct), self.n_judged))
        return correct, incorrect, rest


class FeedbackMemory:
    """M_C and M_I of the paper's Algorithm 1."""

    def __init__(self, *, correct: int, incorrect: int) -> None:
        self.correct = Fifo(correct)
        self.incorrect = Fifo(incorrect)

    def add(self, feedback: Feedback) -> None:
        """File each answer by its verdict."""
        self.correct.add(feedback.correct)
        self.incorrect.add(feedback.incorrect)

    def mixed_with(self, unlabelled: Tensor) -> Mixed:
        """What is remembered beside a batch nobody was asked about."""
        inputs = torch.cat([self.correct.inputs, self.incorrect.inputs, unlabelled])
        return Mixed(inputs, self.correct.labels, self.incorrect.labels)

    def clear(self) -> None:
        """Forget everything."""
        self.correct.clear()
        self.incorrect.clear()

    def state_dict(self) -> State:
        """Both memories."""
        return {"correct": self.correct.state_dict(), "incorrect": self.incorrect.state_dict()}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved memories."""
        self.correct.load_state_dict(state["correct"], device=device)
        self.incorrect.load_state_dict(state["incorrect"], device=device)


class Window:
    """The newest `size` samples with what was served for them; full once so many are new."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fresh = 0
        """Samples added since the window was last taken."""
        self._inputs: Tensor | None = None
        self._probs: Tensor | None = None

    def fills(self, inputs: Tensor) -> bool:
        """Whether these inputs complete the window."""
        return self.fresh + len(inputs) >= self.size

    def around(self, inputs: Tensor) -> Tensor:
        """The window as it will be with these inputs, which come last."""
        earlier = max(self.size, self.fresh + len(inputs)) - len(inputs)
        if self._inputs is None or not earlier:
            return inputs
        return torch.cat([self._inputs[-earlier:], inputs])

    def add(self, inputs: Tensor, served: Prediction) -> None:
        """Let the oldest go."""
        self.fresh += len(inputs)
        keep = max(self.size, self.fresh)
        # A copy: the caller may fill the same memory with the next request.
        pieces = [self._inputs, inputs] if self._inputs is not None else [inputs]
        shares = [self._probs, served.probs] if self._probs is not None else [served.probs]
        self._inputs = torch.cat(pieces)[-keep:]
        self._probs = torch.cat(shares)[-keep:]

    def take(self) -> tuple[Tensor, Prediction]:
        """All of it, to ask about and to learn from; from now on it is old."""
        assert self._inputs is not None
        assert self._probs is not None
        self.fresh = 0
        confidence, labels = self._probs.max(-1)
        return self._inputs, Prediction(labels, self._probs, confidence)

    def clear(self) -> None:
        """Forget everything."""
        self.fresh = 0
        self._inputs = self._probs = None

    def state_dict(self) -> State:
        """Samples, predictions, and how many of them are new."""
        return {"fresh": self.fresh, "inputs": self._inputs, "probs": self._probs}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Go on from a saved state."""
        self.fresh = state["fresh"]
        self._inputs = None if state["inputs"] is None else state["inputs"].to(device)
        self._probs = None if state["probs"] is None else state["probs"].to(device)
