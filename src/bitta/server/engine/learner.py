"""The session behind a server: what is served, learned, kept and gone back to, in one order.

No threads and no database here, so that a log can be replayed by the very code that wrote it.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitta.errors import ModelError, SettingError
from bitta.nn import Precision, WrappedModel, weight_hash
from bitta.server.engine.attentive import AttentiveSession, Turn
from bitta.server.engine.compiler import without_compiler
from bitta.server.engine.lesson import Lesson
from bitta.server.guard import weight_distance
from bitta.statefile import load_state, save_state
from bitta.types import Answer, Losses, Prediction, Query, State


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How the model behind a server learns."""

    method: str = "bitta"
    preset: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the method."""
    window: int = 64
    """Samples that are learned from at a time, whatever the size of requests."""
    n_queries: int = 3
    """Questions per window."""
    audits: int = 1
    """How many of them are about samples drawn at random."""
    max_distance: float = 0.0
    """How far the weights may move from the source's, relative to their length, before they are
    drawn back; 0 for any."""
    seed: int = 0
    eager: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        if self.window < 2:
            raise SettingError(f"window is {self.window}; 2 samples or more are needed.")
        if self.max_distance < 0:
            raise SettingError(f"max_distance is {self.max_distance}; allowed: 0 or more.")


class Learner:
    """A model that serves, asks and learns; every call is an event of its log."""

    def __init__(self, model: nn.Module, config: LearnerConfig) -> None:
        self.config = config
        self.lineage = 1
        """How often it has gone back, and one."""
        self._model = model
        self._desk = Desk()
        self._source = _copied(model)
        with without_compiler():
            self._session = AttentiveSession(
                model,
                config.method,
                preset=config.preset,
                n_queries=config.n_queries,
                audits=config.audits,
                window=config.window,
                observe_every_request=False,
                feedback=self._desk,
                seed=config.seed,
                eager=config.eager,
                precision=config.precision,
                **dict(config.settings),
            )

    @property
    def version(self) -> str:
        """Names the weights: lineage, and how often it has learned."""
        return f"{self.lineage}.{self.step}"

    @property
    def step(self) -> int:
        """How often it has learned in its lineage."""
        return self._session.adapter.version

    @property
    def due(self) -> bool:
        """Whether a window is full that has not been learned from."""
        return self._session.can_learn

    @property
    def n_windows(self) -> int:
        """Windows that were full so far."""
        return self._session.n_steps

    @property
    def n_seen(self) -> int:
        """Samples served, as the session counts them; it goes back with it."""
        return self._session.n_served

    @property
    def execution(self) -> str:
        """The path it runs on."""
        return str(self._session.execution)

    @property
    def distance(self) -> float:
        """How far the parameters are from the source's, relative to their length."""
        source = self._session.adapter.source_weights.tensors
        now = dict(self._session.model.named_parameters())
        return weight_distance((now[name].detach().cpu() for name in now), (source[n] for n in now))

    @property
    def weights(self) -> str:
        """A hash of the weights as they are."""
        return weight_hash(self._session.model)

    @torch.no_grad()
    def source_label(self, given: Tensor) -> int | None:
        """What the weights that it began with say of one sample; None if that cannot be known."""
        if self._source is None:
            return None
        try:
            inputs = self._source.prepare_inputs(given[None])
            return int(self._source(inputs, statistics="running").argmax())
        except ModelError:  # it normalises by the batch, and this is none
            return None

    def serve(
        self,
        inputs: Tensor,
        *,
        answered: Callable[[Prediction], None] | None = None,
        turn: Turn | None = None,
        silent: bool = False,
    ) -> Prediction:
        """Predict; a window that is full with these samples raises questions, unless `silent`.

        `answered` is called once, before the questions; `turn` while they are chosen.
        """
        session, asked = self._session, self.n_windows
        session.answered, session.silent = answered or _nobody, silent
        with session.giving(turn):
            prediction = session.predict(inputs)
        if self.n_windows == asked:
            session.answered(prediction)
        return prediction

    def fills(self, n_samples: int) -> bool:
        """Whether so many more make the window full."""
        return self._session.fills(n_samples)

    @property
    def room(self) -> int:
        """Samples that could be served now, where a turn is given."""
        return self._session.room

    def serve_within(self, inputs: Tensor) -> Prediction:
        """Predict in a turn, at most `room` samples; no window is full with them."""
        return self._session.predict_within(inputs)

    def learn(
        self,
        lessons: Sequence[Lesson],
        *,
        between: Callable[[], None] | None = None,
        turn: Turn | None = None,
    ) -> Losses:
        """One round on the last full window and on these answers.

        `between` is called between two steps of the optimiser, `turn` inside them too.
        """
        self._session.adapter.forget(one.sample_id for one in lessons if one.overrules)
        window = self.config.window
        self._desk.answers = [
            Answer(
                Query(
                    id=lesson.sample_id,
                    index=lesson.position % window,
                    label=lesson.label,
                    uncertainty=0.0,
                    input=lesson.input,
                    step=lesson.position // window,
                    version=0,
                    position=lesson.position,
                ),
                lesson.correct,
            )
            for lesson in lessons
        ]
        with self._session.giving(turn):
            losses = self._session.learn(between_updates=between)
        self._draw_back()
        return losses

    def save(self, path: Path) -> None:
        """Everything that the next event depends on, in one file."""
        with without_compiler():
            state = self._session.state_dict()
        save_state(path, {"lineage": self.lineage, "session": state})

    def load(self, path: Path) -> None:
        """Go on from a file, in its lineage."""
        state = load_state(path)
        config = self.config
        with without_compiler():
            self._session = AttentiveSession.from_state(
                state["session"],
                self._model,
                feedback=self._desk,
                eager=config.eager,
                precision=config.precision,
            )
        self.lineage = state["lineage"]

    def close(self) -> None:
        """Give the model back."""
        self._session.close()

    @torch.no_grad()
    def _draw_back(self) -> None:
        """Weights that have gone too far come back onto the sphere around the source's."""
        limit = self.config.max_distance
        if not limit or (gone := self.distance) <= limit:
            return
        source = self._session.adapter.source_weights.tensors
        for name, parameter in self._session.model.named_parameters():
            parameter.lerp_(source[name].to(parameter), 1 - limit / gone)


def copy_into_lineage(path: Path, to: Path, *, lineage: int) -> None:
    """The file of a learner that has just gone back to another's."""
    save_state(to, {**load_state(path), "lineage": lineage})


def _copied(model: nn.Module) -> WrappedModel | None:
    """The model as it is now, or None of one that cannot be copied."""
    try:
        return WrappedModel(deepcopy(model), eager=True)
    except (RuntimeError, TypeError):
        return None


def _nobody(_: Prediction) -> None:
    """Waits for the answer."""


class Desk:
    """A feedback source whose answers are laid on it before each step."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def ask(self, queries: Sequence[Query]) -> None:
        """Whoever serves hands questions on."""

    def collect(self) -> list[Answer]:
        """What lies there."""
        answers, self.answers = self.answers, []
        return answers

    def state_dict(self) -> State:
        """Nothing: answers and questions are in the log."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to go on from."""
