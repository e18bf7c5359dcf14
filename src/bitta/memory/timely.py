"""A memory of the stream that is balanced over classes, fresh, and sure of itself (RoTTA, 2023)."""

from dataclasses import dataclass
from math import exp, log
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from bitta.losses import entropy
from bitta.types import State, moved

Insertion: TypeAlias = Literal["quota", "until_full"]
"""Whether a class has its share of the room from the start, or only once the memory is full."""


@dataclass(slots=True)
class _Item:
    slot: int
    label: int
    doubt: float
    """Entropy as a share of the most there can be."""
    age: int = 0
    """Samples offered since it came, itself included."""


class TimelyMemory:
    """CSTU: keep `capacity` samples, giving up the oldest and least certain of a large class.

    The worth of keeping a sample falls with λ_t / (1 + exp(-age / capacity)) + λ_u H / ln C.
    """

    def __init__(
        self,
        capacity: int,
        *,
        lambda_t: float = 1.0,
        lambda_u: float = 1.0,
        insertion: Insertion = "quota",
    ) -> None:
        self.capacity = capacity
        self.lambda_t, self.lambda_u = lambda_t, lambda_u
        self.insertion = insertion
        self._items: list[_Item] = []
        self._room: Tensor | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def inputs(self) -> Tensor:
        """(samples, ...), in the order they came; the shape is known from the first offer on."""
        assert self._room is not None, "a memory is read only after its first offer"
        return self._room[self._index([item.slot for item in self._items])]

    @property
    def labels(self) -> list[int]:
        """The class each was taken for when it came."""
        return [item.label for item in self._items]

    @property
    def ages(self) -> list[int]:
        """How many samples have been offered since each came, itself included."""
        return [item.age for item in self._items]

    def offer(self, inputs: Tensor, logits: Tensor) -> None:
        """One sample after another, each as its logits describe it; some are turned away."""
        if self._room is None:
            self._room = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        n_classes = logits.shape[1]
        # One transfer for all that the rule needs to know.
        known = torch.stack([logits.argmax(-1).double(), entropy(logits).double()]).T.tolist()
        taken: dict[int, int] = {}  # slot: row
        for row, (label, doubt) in enumerate(known):
            slot = self._slot_for(int(label), doubt / log(n_classes), n_classes)
            if slot is not None:
                taken[slot] = row
            for item in self._items:
                item.age += 1
        self._room[self._index(list(taken))] = inputs[self._index(list(taken.values()))].detach()

    def score(self, age: int, doubt: float) -> float:
        """How much there is against keeping a sample; `doubt` is its H / ln C."""
        return self.lambda_t / (1 + exp(-age / self.capacity)) + self.lambda_u * doubt

    def clear(self) -> None:
        """Forget everything but the shape."""
        self._items.clear()

    def state_dict(self) -> State:
        """The samples, if there ever were any, and what is known of them."""
        if self._room is None:
            return {}
        doubts = [item.doubt for item in self._items]
        return {"inputs": self.inputs, "labels": self.labels, "ages": self.ages, "doubts": doubts}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Take over saved samples."""
        self._room = None
        self.clear()
        if not state:
            return
        inputs = state["inputs"].to(device)
        self._room = inputs.new_empty((self.capacity, *inputs.shape[1:]))
        self._room[: len(inputs)] = inputs
        known = zip(state["labels"], state["doubts"], state["ages"], strict=True)
        self._items.extend(_Item(slot, *of_sample) for slot, of_sample in enumerate(known))

    def _index(self, places: list[int]) -> Tensor:
        assert self._room is not None
        return moved(torch.tensor(places, dtype=torch.long), self._room.device)

    def _slot_for(self, label: int, doubt: float, n_classes: int) -> int | None:
        """Where a new sample goes, if anywhere; it is remembered as being there."""
        slot = self._free_slot(label, self.score(0, doubt), n_classes)
        if slot is not None:
            self._items.append(_Item(slot, label, doubt))
        return slot

    def _free_slot(self, label: int, score: float, n_classes: int) -> int | None:
        """A free one, or that of the item with the highest score if the new one's is lower."""
        counts: dict[int, int] = dict.fromkeys([label], 0)
        for item in self._items:
            counts[item.label] = counts.get(item.label, 0) + 1
        full = len(self._items) >= self.capacity
        within = counts[label] < self.capacity / n_classes
        if not full and (within or self.insertion == "until_full"):
            used = {item.slot for item in self._items}
            return next(slot for slot in range(self.capacity) if slot not in used)
        most = max(counts.values())
        large = {name for name, n in counts.items() if n == most} if within else {label}
        rivals = [item for item in self._items if item.label in large]
        worst = max(rivals, key=lambda item: self.score(item.age, item.doubt))
        if self.score(worst.age, worst.doubt) <= score:
            return None
        self._items.remove(worst)
        return worst.slot
