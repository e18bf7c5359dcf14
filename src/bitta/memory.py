"""Memories of samples: FIFO, class-balanced, confident, answered, and the serving window."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitta.seeding import Key, generator
from bitta.types import Feedback, JudgedSamples, Prediction, State, move_to_device


class FifoMemory:
    """Ring buffer of the newest `capacity` samples and their labels."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.sample_ids: deque[int | None] = deque(maxlen=capacity)
        """Id of each sample, oldest first; None for a sample without a question."""
        self._ring: JudgedSamples | None = None
        self._oldest = 0

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def inputs(self) -> Tensor:
        """Inputs, oldest first, (samples, ...). Available after the first `add`."""
        assert self._ring is not None, "a memory cannot be read before its first add"
        return self._in_order(self._ring.inputs)

    @property
    def labels(self) -> Tensor:
        """Labels, oldest first, (samples,)."""
        assert self._ring is not None, "a memory cannot be read before its first add"
        return self._in_order(self._ring.labels)

    def add(self, new: JudgedSamples) -> None:
        """Append samples (possibly none) and drop the oldest beyond the capacity."""
        if self._ring is None:
            self._ring = _empty_storage(new, self.capacity)
        inputs, labels = new.inputs[-self.capacity :], new.labels[-self.capacity :]
        start = (self._oldest + len(self)) % self.capacity
        until_end = self.capacity - start
        for ring, rows in ((self._ring.inputs, inputs), (self._ring.labels, labels)):
            ring[start : start + len(rows)] = rows[:until_end].detach()
            ring[: max(0, len(rows) - until_end)] = rows[until_end:].detach()
        n_dropped = max(0, len(self) + len(labels) - self.capacity)
        self._oldest = (self._oldest + n_dropped) % self.capacity
        self.sample_ids.extend(new.sample_ids or [None] * len(new.labels))

    def remove(self, sample_ids: Iterable[int]) -> None:
        """Remove the samples with these ids. Ids that are not stored are ignored."""
        removed = set(sample_ids)
        if self._ring is None or removed.isdisjoint(self.sample_ids):
            return
        kept = [row for row, id_ in enumerate(self.sample_ids) if id_ not in removed]
        ids = [self.sample_ids[row] for row in kept]
        inputs, labels = self.inputs[kept], self.labels[kept]
        self.clear()
        self.add(JudgedSamples(inputs, labels))
        self.sample_ids = deque(ids, self.capacity)

    def clear(self) -> None:
        """Drop all samples. The sample shape stays known."""
        self._oldest = 0
        self.sample_ids.clear()

    def state_dict(self) -> State:
        """Return the samples; empty before the first `add`."""
        if self._ring is None:
            return {}
        return {
            "inputs": self.inputs,
            "labels": self.labels,
            "sample_ids": list(self.sample_ids),
        }

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Replace the samples by saved ones."""
        self._ring = None
        self.clear()
        if state:
            self.add(JudgedSamples(state["inputs"].to(device), state["labels"].to(device)))
            self.sample_ids = deque(state["sample_ids"], self.capacity)

    def _in_order(self, ring: Tensor) -> Tensor:
        end = self._oldest + len(self)
        return torch.cat([ring[self._oldest : end], ring[: max(0, end - self.capacity)]])


class BalancedMemory:
    """Memory of `capacity` samples, balanced by label.

    When it is full, a new sample replaces the oldest sample of a most frequent label.

    >>> memory = BalancedMemory(4)
    >>> inputs = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    >>> memory.add(JudgedSamples(inputs, torch.tensor([7, 7, 7, 7])))
    >>> memory.add(JudgedSamples(torch.tensor([[5.0], [6.0]]), torch.tensor([2, 7])))
    >>> memory.inputs.flatten().tolist(), memory.labels.tolist()
    ([3.0, 4.0, 5.0, 6.0], [7, 7, 2, 7])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._storage: JudgedSamples | None = None
        self._label_by_slot: dict[int, int] = {}
        """Label of each used slot, oldest sample first."""

    def __len__(self) -> int:
        return len(self._label_by_slot)

    @property
    def inputs(self) -> Tensor:
        """Inputs, oldest first, (samples, ...). Available after the first `add`."""
        storage = self._require_storage()
        return storage.inputs[self._used_slots(storage.inputs.device)]

    @property
    def labels(self) -> Tensor:
        """Labels, oldest first, (samples,)."""
        storage = self._require_storage()
        return storage.labels[self._used_slots(storage.labels.device)]

    def add(self, new: JudgedSamples) -> None:
        """Add samples (possibly none), one after another."""
        if self._storage is None:
            self._storage = _empty_storage(new, self.capacity)
        row_by_slot: dict[int, int] = {}
        for row, label in enumerate(new.labels.tolist()):
            slot = self._free_slot_for(label)
            self._label_by_slot[slot] = label
            row_by_slot[slot] = row
        pairs = torch.tensor(list(row_by_slot.items()), dtype=torch.long).reshape(-1, 2)
        slots, rows = (move_to_device(c.contiguous(), new.inputs.device) for c in pairs.T)
        self._storage.inputs[slots] = new.inputs[rows].detach()
        self._storage.labels[slots] = new.labels[rows]

    def clear(self) -> None:
        """Drop all samples. The sample shape stays known."""
        self._label_by_slot.clear()

    def state_dict(self) -> State:
        """Return the samples; empty before the first `add`."""
        return {} if self._storage is None else {"inputs": self.inputs, "labels": self.labels}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Replace the samples by saved ones."""
        self._storage = None
        self.clear()
        if state:
            self.add(JudgedSamples(state["inputs"].to(device), state["labels"].to(device)))

    def _require_storage(self) -> JudgedSamples:
        assert self._storage is not None, "a memory cannot be read before its first add"
        return self._storage

    def _used_slots(self, device: torch.device) -> Tensor:
        return move_to_device(torch.tensor(list(self._label_by_slot), dtype=torch.long), device)

    def _free_slot_for(self, label: int) -> int:
        """Return an unused slot, or free the oldest slot of a most frequent label.

        The frequencies include the new label.
        """
        if len(self._label_by_slot) < self.capacity:
            return next(slot for slot in range(self.capacity) if slot not in self._label_by_slot)
        counts = Counter(self._label_by_slot.values())
        counts[label] += 1
        highest = max(counts.values())
        slot = next(slot for slot, old in self._label_by_slot.items() if counts[old] == highest)
        del self._label_by_slot[slot]
        return slot


def _empty_storage(like: JudgedSamples, capacity: int) -> JudgedSamples:
    shape = (capacity, *like.inputs.shape[1:])
    return JudgedSamples(like.inputs.new_empty(shape), like.labels.new_empty(capacity))


class ConfidentMemory:
    """Memory of confident samples, balanced by class (HUS in SoTTA).

    When it is full, a new sample replaces a random sample of a largest class.
    """

    def __init__(self, capacity: int, *, min_confidence: float, key: Key) -> None:
        self.capacity = capacity
        self.min_confidence = min_confidence
        self.labels: list[int] = []
        """Predicted classes of the stored samples."""
        self._key = key
        self._n_accepted = 0
        self._inputs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inputs(self) -> Tensor:
        """Inputs, (samples, ...). Available after the first `offer`."""
        assert self._inputs is not None, "a memory cannot be read before its first offer"
        return self._inputs[: len(self)]

    def offer(self, inputs: Tensor, labels: Tensor, confidence: Tensor) -> None:
        """Store the samples that are confident enough, one after another."""
        if self._inputs is None:
            self._inputs = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        rows = (confidence >= self.min_confidence).nonzero().squeeze(1)
        for row, label in zip(rows.tolist(), labels[rows].tolist(), strict=True):
            slot = self._slot_for(label)
            self._inputs[slot] = inputs[row].detach()
            self.labels[slot : slot + 1] = [label]
            self._n_accepted += 1

    def clear(self) -> None:
        """Drop all samples. The sample shape stays known."""
        self.labels = []
        self._n_accepted = 0

    def state_dict(self) -> State:
        """Return the samples and the number of samples accepted so far."""
        return {
            "inputs": None if self._inputs is None else self.inputs,
            "labels": self.labels,
            "n_accepted": self._n_accepted,
        }

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Replace the samples by saved ones."""
        self.labels = list(state["labels"])
        self._n_accepted = state["n_accepted"]
        self._inputs = None
        if state["inputs"] is not None:
            saved = state["inputs"].to(device)
            self._inputs = saved.new_empty((self.capacity, *saved.shape[1:]))
            self._inputs[: len(saved)] = saved

    def _slot_for(self, label: int) -> int:
        """Return an unused slot, or that of a random sample of a largest class.

        If the new label is one of the largest classes, its own class is chosen.
        """
        if len(self) < self.capacity:
            return len(self)
        counts = {stored: self.labels.count(stored) for stored in sorted(set(self.labels))}
        largest = [stored for stored, count in counts.items() if count == max(counts.values())]
        # The generator is keyed by the count of accepted samples, so no random state is saved.
        rng = generator(*self._key, self._n_accepted)
        replaced = label if label in largest else _draw_one(largest, rng)
        return _draw_one([slot for slot, old in enumerate(self.labels) if old == replaced], rng)


def _draw_one(values: list[int], rng: torch.Generator) -> int:
    return values[int(torch.randint(len(values), (), generator=rng))]


class MixedBatch(NamedTuple):
    """Batch for one update: rows judged correct, rows judged incorrect, unlabelled rows."""

    inputs: Tensor  # (samples, ...), in this order
    correct: Tensor  # (correct,) labels judged correct
    incorrect: Tensor  # (incorrect,) labels judged incorrect

    @property
    def n_judged(self) -> int:
        """Number of rows with a judged label."""
        return len(self.correct) + len(self.incorrect)

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the rows of a model output into correct, incorrect and unlabelled."""
        correct, incorrect, rest = outputs.tensor_split((len(self.correct), self.n_judged))
        return correct, incorrect, rest


class FeedbackMemory:
    """Memories of samples judged correct and incorrect, M_C and M_I in BiTTA's Algorithm 1."""

    def __init__(self, *, correct: int, incorrect: int) -> None:
        self.correct = FifoMemory(correct)
        self.incorrect = FifoMemory(incorrect)

    def add(self, feedback: Feedback) -> None:
        """Add each answer to the memory of its verdict."""
        self.correct.add(feedback.correct)
        self.incorrect.add(feedback.incorrect)

    def remove(self, sample_ids: Iterable[int]) -> None:
        """Remove the samples with these ids from both memories."""
        removed = set(sample_ids)
        self.correct.remove(removed)
        self.incorrect.remove(removed)

    def mix_with(self, unlabelled: Tensor) -> MixedBatch:
        """Return the batch of all remembered samples and the unlabelled ones."""
        inputs = torch.cat([self.correct.inputs, self.incorrect.inputs, unlabelled])
        return MixedBatch(inputs, self.correct.labels, self.incorrect.labels)

    def clear(self) -> None:
        """Drop all samples."""
        self.correct.clear()
        self.incorrect.clear()

    def state_dict(self) -> State:
        """Return the state of both memories."""
        return {"correct": self.correct.state_dict(), "incorrect": self.incorrect.state_dict()}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Replace both memories by saved ones."""
        self.correct.load_state_dict(state["correct"], device=device)
        self.incorrect.load_state_dict(state["incorrect"], device=device)


class CompleteWindow(NamedTuple):
    """Samples of a complete window, with the predictions that were served for them."""

    inputs: Tensor  # (samples, ...)
    prediction: Prediction


class SampleWindow:
    """Group small requests into windows of `size` samples.

    The window holds the newest samples with their predictions. It is complete once `size` samples
    have arrived since the last complete window. Complete windows do not overlap, and a request is
    never split: a window is larger than `size` if the last request exceeds it.

    With `size` 0 every request is a complete window of its own, and nothing is stored.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.n_new = 0
        """Samples added since the last complete window."""
        self._inputs: Tensor | None = None
        self._probs: Tensor | None = None

    def is_completed_by(self, n_samples: int) -> bool:
        """Return True if a request of `n_samples` completes the window."""
        return self.n_new + n_samples >= self.size

    def with_recent(self, inputs: Tensor) -> Tensor:
        """Return the content that the window would have after these inputs are added."""
        n_earlier = max(self.size, self.n_new + len(inputs)) - len(inputs)
        if self._inputs is None or not n_earlier:
            return inputs
        return torch.cat([self._inputs[-n_earlier:], inputs])

    def add(self, inputs: Tensor, served: Prediction) -> CompleteWindow | None:
        """Add a request. Return the window if this request completes it."""
        if not self.size:
            return CompleteWindow(inputs, served)
        is_complete = self.is_completed_by(len(inputs))
        self.n_new += len(inputs)
        n_stored = max(self.size, self.n_new)
        # torch.cat copies: the caller may reuse the memory of its inputs for the next request.
        all_inputs = [inputs] if self._inputs is None else [self._inputs, inputs]
        all_probs = [served.probs] if self._probs is None else [self._probs, served.probs]
        self._inputs = torch.cat(all_inputs)[-n_stored:]
        self._probs = torch.cat(all_probs)[-n_stored:]
        if not is_complete:
            return None
        self.n_new = 0
        confidence, labels = self._probs.max(-1)
        return CompleteWindow(self._inputs, Prediction(labels, self._probs, confidence))

    def clear(self) -> None:
        """Drop all samples."""
        self.n_new = 0
        self._inputs = self._probs = None

    def state_dict(self) -> State:
        """Return the samples, their probabilities and the number of new samples."""
        return {
            "size": self.size,
            "n_new": self.n_new,
            "inputs": self._inputs,
            "probs": self._probs,
        }

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Continue from a saved state of the same size."""
        self.n_new = state["n_new"]
        self._inputs = None if state["inputs"] is None else state["inputs"].to(device)
        self._probs = None if state["probs"] is None else state["probs"].to(device)
