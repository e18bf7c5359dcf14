"""Learner: the session that serves and learns, without threads and database.

The log records its calls in order. The live server and a replay of the log run the same learner.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bitta.errors import ModelError
from bitta.nn import WrappedModel, weight_hash
from bitta.seeding import derive_seed
from bitta.server.collapse_detector import weight_distance
from bitta.server.engine.interruptible_session import Interrupt, InterruptibleSession
from bitta.server.settings import ServeSettings
from bitta.statefile import load_state, save_state
from bitta.types import Answer, Losses, Prediction, Query, State


@dataclass(frozen=True, kw_only=True)
class AnsweredSample:
    """One answer with the input it is about, as a learning step uses it."""

    input: Tensor
    label: int
    """Served class, which the answer judges."""
    correct: bool
    position: int
    """Index among all samples served."""
    sample_id: int
    """Id of the sample in the memories of the method."""
    replaces_answer: bool = False
    """True if the memory may hold the annotator's opposite answer, which is then removed."""


def derive_sample_id(prediction_id: str, annotator_id: str) -> int:
    """Return the id of the sample that an answer adds to the memories.

    It is the same for all answers of one annotator about one prediction, because a later answer
    replaces the earlier one.
    """
    return derive_seed("sample", prediction_id, annotator_id)


class Learner:
    """Model that serves, chooses questions and learns."""

    def __init__(self, model: nn.Module, settings: ServeSettings) -> None:
        self.settings = settings
        self.max_distance = settings.max_distance
        """Largest distance of the weights from the source weights; 0 for no limit."""
        self.lineage = 1
        """Number of the lineage: 1 plus the number of rollbacks and unclean restarts."""
        self._model = model
        self._answers = PreparedAnswers()
        self._source_model = _try_copy(model)
        with without_compiler():
            self._session = InterruptibleSession(
                model,
                settings.method,
                preset=settings.preset,
                n_queries=settings.n_queries,
                audits=settings.audits,
                paired_audits=0,
                window=settings.window,
                observe_every_request=False,
                feedback=self._answers,
                seed=settings.seed,
                **settings.settings,
            )

    @property
    def version(self) -> str:
        """Version of the weights, such as "1.4": lineage and number of learning steps."""
        return f"{self.lineage}.{self.step}"

    @property
    def step(self) -> int:
        """Number of learning steps of the current weights."""
        return self._session.adapter.version

    @property
    def can_learn(self) -> bool:
        """True if a complete window has not been learned from yet."""
        return self._session.can_learn

    @property
    def n_windows(self) -> int:
        """Number of complete windows so far."""
        return self._session.n_steps

    @property
    def n_session_samples(self) -> int:
        """Number of served samples that the session has counted. A rollback lowers it."""
        return self._session.n_served

    @property
    def execution(self) -> str:
        """Name of the execution path, such as "cpu"."""
        return str(self._session.execution)

    @property
    def distance(self) -> float:
        """Distance of the parameters from the source weights, ‖w - w₀‖ / ‖w₀‖."""
        source = self._session.adapter.source_weights.tensors
        now = dict(self._session.model.named_parameters())
        return weight_distance((now[name].detach().cpu() for name in now), (source[n] for n in now))

    @property
    def weights_hash(self) -> str:
        """Hash of the current weights."""
        return weight_hash(self._session.model)

    @torch.no_grad()
    def source_label(self, sample: Tensor) -> int | None:
        """Return the source model's class for one sample; None if it cannot be computed."""
        if self._source_model is None:
            return None
        try:
            inputs = self._source_model.prepare_inputs(sample[None])
            return int(self._source_model(inputs, statistics="running").argmax())
        except ModelError:  # without running statistics, one sample is not enough
            return None

    def serve(
        self,
        inputs: Tensor,
        *,
        on_prediction: Callable[[Prediction], None] | None = None,
        interrupt: Interrupt | None = None,
        skip_questions: bool = False,
    ) -> Prediction:
        """Predict. If these samples complete a window, choose questions, unless `skip_questions`.

        `on_prediction` is called once, before questions are chosen. `interrupt` is called between
        layers while questions are chosen.
        """
        session, n_windows = self._session, self.n_windows
        session.on_prediction = on_prediction or _ignore
        session.skips_questions = skip_questions
        with session.interrupted_by(interrupt):
            prediction = session.predict(inputs)
        if self.n_windows == n_windows:
            session.on_prediction(prediction)
        return prediction

    def is_window_completed_by(self, n_samples: int) -> bool:
        """Return True if this number of further samples completes the window."""
        return self._session.is_window_completed_by(n_samples)

    @property
    def n_interrupt_samples(self) -> int:
        """Number of samples that can be served in an interrupt now."""
        return self._session.n_interrupt_samples

    def serve_in_interrupt(self, inputs: Tensor) -> Prediction:
        """Predict at most `n_interrupt_samples` samples in an interrupt."""
        return self._session.predict_in_interrupt(inputs)

    def learn(
        self,
        answered: Sequence[AnsweredSample],
        *,
        between_updates: Callable[[], None] | None = None,
        interrupt: Interrupt | None = None,
    ) -> Losses:
        """Run one learning step on the last complete window and on these answers.

        `between_updates` is called between two optimiser updates, `interrupt` also inside them.
        """
        self._session.adapter.forget(a.sample_id for a in answered if a.replaces_answer)
        self._answers.prepare([self._as_answer(sample) for sample in answered])
        with self._session.interrupted_by(interrupt):
            losses = self._session.learn(between_updates=between_updates)
        self._limit_distance()
        return losses

    def save(self, path: Path) -> None:
        """Save the complete state in one file."""
        with without_compiler():
            state = self._session.state_dict()
        save_state(path, {"lineage": self.lineage, "session": state})

    def load(self, path: Path) -> None:
        """Continue from a saved state and its lineage."""
        state = load_state(path)
        with without_compiler():
            self._session = InterruptibleSession.from_state(
                state["session"], self._model, feedback=self._answers
            )
        self.lineage = state["lineage"]

    def close(self) -> None:
        """Restore the given model."""
        self._session.close()

    def _as_answer(self, sample: AnsweredSample) -> Answer:
        window = self.settings.window
        query = Query(
            id=sample.sample_id,
            index=sample.position % window,
            served_label=sample.label,
            shown_label=sample.label,
            uncertainty=0.0,
            input=sample.input,
            step=sample.position // window,
            version=0,
            position=sample.position,
        )
        return Answer(query, sample.correct)

    @torch.no_grad()
    def _limit_distance(self) -> None:
        """Move weights beyond the limit towards the source weights, until they are at the limit."""
        limit = self.max_distance
        if not limit or (distance := self.distance) <= limit:
            return
        source = self._session.adapter.source_weights.tensors
        for name, parameter in self._session.model.named_parameters():
            parameter.lerp_(source[name].to(parameter), 1 - limit / distance)


def copy_into_lineage(path: Path, to: Path, *, lineage: int) -> None:
    """Copy a saved learner into another lineage, as the state after a rollback."""
    save_state(to, {**load_state(path), "lineage": lineage})


def _try_copy(model: nn.Module) -> WrappedModel | None:
    """Return a copy of the model; None if it cannot be copied."""
    try:
        return WrappedModel(deepcopy(model), eager=True)
    except (RuntimeError, TypeError):
        return None


def _ignore(_: Prediction) -> None:
    """Ignore the prediction."""


class PreparedAnswers:
    """Feedback source that returns the answers prepared for the next learning step."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []

    def prepare(self, answers: list[Answer]) -> None:
        """Set the answers that the next `collect` returns."""
        self._answers = answers

    def ask(self, queries: Sequence[Query]) -> None:
        """Ignore the queries. The worker stores them as questions."""

    def collect(self) -> list[Answer]:
        """Return the prepared answers once."""
        answers, self._answers = self._answers, []
        return answers

    def state_dict(self) -> State:
        """Return an empty state. Questions and answers are in the log."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore nothing."""


_COMPILER_METHODS = ("add_param_group", "state_dict", "load_state_dict")
"""Methods of optimisers that import torch's compiler in order to disable it for themselves."""


@contextmanager
def without_compiler() -> Iterator[None]:
    """Build, save or load optimisers in this block without importing torch's compiler.

    The import takes longer than the rest of a server's start. Only the first update needs it;
    `CompilerImport` runs it in the background.
    """
    wrapped = {name: getattr(Optimizer, name) for name in _COMPILER_METHODS}
    for name, method in wrapped.items():
        # Another thread may have unwrapped it already; other torch versions may not wrap it.
        setattr(Optimizer, name, getattr(method, "__wrapped__", method))
    try:
        yield
    finally:
        for name, method in wrapped.items():
            setattr(Optimizer, name, method)


class CompilerImport(Thread):
    """Thread that imports torch's compiler while the server already serves."""

    def __init__(self) -> None:
        super().__init__(name="bitta-import", daemon=True)

    def run(self) -> None:
        """Import the compiler."""
        import_module("torch._dynamo")

    def start_and_check(self) -> bool:
        """Start the import if it has not started. Return True if it is finished."""
        if self.ident is None:
            self.start()
        return not self.is_alive()
