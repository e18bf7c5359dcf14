"""A session that is as it would be after hours: its memories are full."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bitta.methods.base import GradientAdapter
from bitta.metrics import SpeedCase
from bitta.models import ARCHITECTURES, build_model, initialise
from bitta.seeding import generator
from bitta.session import Session
from bitta.types import Answer, Feedback, Query, State

_PIXELS = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


class Alternating:
    """An annotator who says correct and incorrect in turn, so that both memories keep moving."""

    def __init__(self) -> None:
        self._open: list[Query] = []

    def ask(self, queries: Sequence[Query]) -> None:
        """Take questions."""
        self._open += queries

    def collect(self) -> list[Answer]:
        """Judge by the number of the question."""
        answers = [Answer(query, query.id % 2 == 0) for query in self._open]
        self._open = []
        return answers

    def state_dict(self) -> State:
        """Nothing waits between batches."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to take over."""


def filled_session(case: SpeedCase, device: torch.device, **changes: Any) -> Session:
    """A session on a model with random weights; `changes` are to what the case says."""
    sized = {"image_size": case.size} if "image_size" in ARCHITECTURES[case.model].arguments else {}
    model = build_model(case.model, n_classes=case.n_classes, **_PIXELS, **sized)
    initialise(model, seed=0)
    settings: dict[str, Any] = {"n_queries": case.n_queries, "passes": case.passes}
    if case.epochs:
        settings |= {
            "epochs": case.epochs,
            "correct_memory": case.memory,
            "incorrect_memory": case.memory,
        }
    session = Session(
        model.to(device),
        case.method,
        feedback=Alternating(),
        **{**settings, **case.settings, **changes},
    )
    if case.n_queries:
        fill_memories(session, random_batches(case, device)[0], case.n_classes)
    return session


def fill_memories(session: Session, inputs: Tensor, n_classes: int) -> None:
    """Let a method that remembers answers have as many as it can, about these inputs."""
    adapter = session.adapter
    if isinstance(adapter, GradientAdapter):
        inputs = adapter.wrapped.prepare_inputs(inputs)
        capacity = max(adapter.memory.correct.capacity, adapter.memory.incorrect.capacity)
        adapter.memory.add(
            Feedback.from_answers(_answers(inputs, capacity, n_classes), like=inputs)
        )


def random_batches(case: SpeedCase, device: torch.device) -> list[Tensor]:
    """Two, for every batch to differ from the one before."""
    shape = (case.batch, 3, case.size, case.size)
    chance = generator(0, "speed", device=device)
    return [torch.rand(shape, generator=chance, device=device) for _ in range(2)]


def _answers(inputs: Tensor, capacity: int, n_classes: int) -> list[Answer]:
    """As many as both memories hold, half of them correct."""
    questions = [
        Query(
            id=place, index=place, label=place % n_classes, uncertainty=0.0,
            input=inputs[place % len(inputs)], step=0, version=0, position=place,
        )
        for place in range(2 * capacity)
    ]  # fmt: skip
    return [Answer(question, question.id % 2 == 0) for question in questions]
