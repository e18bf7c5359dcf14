"""THE loop: predict, choose questions, ask, collect what has been answered, adapt."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitta.config import require, whole
from bitta.errors import FeedbackError, InputError, ModelError, SettingError
from bitta.feedback import FeedbackSource, Human
from bitta.memory import Window
from bitta.methods import METHODS, method_named
from bitta.methods.base import Adapter, nothing
from bitta.nn import Execution, LogitsOf, Precision, WrappedModel, explain_out_of_memory, give_back
from bitta.selection import Budget, Chosen, Questioner
from bitta.statefile import load_state, save_state
from bitta.types import Answer, Feedback, Losses, Prediction, Query, State, moved

_FORMAT = 4


class Session:
    """A classifier that serves a stream, asks a few questions, and learns from the answers.

    >>> import bitta, torch
    >>> from bitta.testing import toy_classifier
    >>> session = bitta.Session(toy_classifier(), "bitta", n_queries=1, seed=0)
    >>> prediction = session.predict(torch.rand(8, 3, 8, 8))
    >>> for query in prediction.queries:
    ...     session.answer(query.id, correct=True)
    >>> losses = session.learn()
    >>> session.close()

    Weights are adapted in place; `copy=True` leaves the caller's model alone. Everything else about
    the model is as it was once the session is closed, or a `with` block around it ends.

    On a GPU the fast path runs: CUDA graphs, and bfloat16 where it has it (`precision`);
    `eager=True` forces the plain one. `execution` tells which.

    With a `window`, requests may be as small as one sample: each is served at once, batch
    statistics coming from the newest `window` samples, and questions and learning are due once per
    `window` samples. With `amid=False` a method that serves by running statistics lets them move
    once per window, which spares every request the samples around it.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str | type[Adapter[Any]] = "bitta",
        *,
        preset: str | None = None,
        n_queries: int | None = None,
        every: int = 1,
        total: int | None = None,
        price: float = 1.0,
        audits: int = 0,
        window: int = 0,
        amid: bool = True,
        feedback: FeedbackSource | None = None,
        seed: int = 0,
        copy: bool = False,
        logits: LogitsOf = None,
        eager: bool = False,
        precision: Precision = "auto",
        **settings: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"model is a {type(model).__name__}; an nn.Module is needed.")
        kind = method_named(method) if isinstance(method, str) else method
        if not (isinstance(kind, type) and issubclass(kind, Adapter)):
            raise SettingError(f"method is {method!r}; a name or a subclass of Adapter is needed.")
        self.method = method if isinstance(method, str) else kind.__name__
        config = kind.configure(settings, preset, name=self.method)
        self.budget = Budget(
            n_queries=kind.n_queries if n_queries is None else n_queries,
            every=every,
            total=total,
            price=price,
            audits=audits,
        )
        self.feedback_source: FeedbackSource = (
            Human() if feedback is None else _checked_source(feedback)
        )
        self.step_number = 0
        """How many batches, or windows, have been served."""
        self.n_asked = 0
        self.n_seen = 0
        """How many samples have been served."""
        window = whole("window", window)
        require(window >= 0, "window", window, "0 or more samples")
        self._window = Window(window) if window else None
        self._amid = amid
        self._unlabelled: Tensor | None = None
        self._due = not window
        """Whether `learn` has a batch or a window to learn from."""
        self._logits = logits
        model = deepcopy(model) if copy else model
        try:
            wrapped = WrappedModel(
                model, logits=logits, sites=config.sites, eager=eager, precision=precision
            )
            self.adapter: Adapter[Any] = kind(wrapped, config, seed=whole("seed", seed))
            self._questioner = Questioner(self.adapter, self.budget)
        except BaseException:
            give_back(model)
            raise

    @property
    def model(self) -> nn.Module:
        """The model as adapted so far."""
        return self.adapter.model

    @property
    def execution(self) -> Execution:
        """The path this session runs on; a later one may go on from its state on another."""
        return self.adapter.wrapped.execution

    @torch.inference_mode(False)
    def predict(self, inputs: Tensor) -> Prediction:
        """Answer first; put the most useful predictions to the feedback source."""
        inputs = self._checked(inputs)
        window = self._window
        full = window is None or window.fills(inputs)
        alone = not (full or self._amid or self.adapter.statistics == "batch")
        around = inputs if window is None or alone else window.around(inputs)
        with explain_out_of_memory(f"serving {len(inputs)} samples", "send smaller batches."):
            if alone:
                served = self.adapter.predict(inputs)
            else:
                served = self._serve(inputs, around, full=full)
        self.n_seen += len(inputs)
        if window is None:
            return self._with_questions(served, inputs, served)
        window.add(inputs, served)
        if self._unlabelled is None:
            self._unlabelled = inputs[:0]
        return self._with_questions(served, *window.take()) if full else served

    def answer(self, query_id: int, *, correct: bool) -> None:
        """Take a person's verdict on a question: now, or after any number of later batches."""
        if not isinstance(self.feedback_source, Human):
            raise FeedbackError(
                f"this session's answers come from {type(self.feedback_source).__name__}; "
                "leave feedback out to answer by hand."
            )
        self.feedback_source.answer(query_id, correct=correct)

    @torch.inference_mode(False)
    def learn(self, *, between: Callable[[], None] | None = None) -> Losses:
        """Adapt from the last batch and from whatever answers have come in since the last call.

        With a window: once it is full; until then answers wait. `between` is called between two
        steps of the optimiser, and may predict.
        """
        self._require_open()
        self.adapter.between_steps = between or nothing
        try:
            return self._adapt(self._collect())
        finally:
            self.adapter.between_steps = nothing

    @property
    def due(self) -> bool:
        """Whether there is a batch, or a full window, to learn from."""
        return self._due and self._unlabelled is not None

    @torch.inference_mode(False)
    def step(self, inputs: Tensor) -> tuple[Prediction, list[Answer], Losses]:
        """Predict, collect and learn in one."""
        prediction = self.predict(inputs)
        answers = self._collect()
        return prediction, answers, self._adapt(answers)

    def reset(self) -> None:
        """Back to the source model, memories empty; open questions and counters stay."""
        self._require_open()
        if self._unlabelled is not None:
            self._unlabelled = self._unlabelled[:0]
        if self._window is not None:
            self._window.clear()
        self.adapter.reset()

    def close(self) -> None:
        """Give the model back, with the weights it has learned."""
        self.adapter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, path: str | Path) -> None:
        """Write everything into one safetensors file, atomically."""
        save_state(path, self.state_dict())

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        **again: Any,
    ) -> Self:
        """Go on where `save` stopped, with a model of the same shape; its weights are replaced.

        What cannot be saved is given again, as to `from_state`.
        """
        return cls.from_state(load_state(path), model, **again)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        model: nn.Module,
        *,
        method: type[Adapter[Any]] | None = None,
        feedback: FeedbackSource | None = None,
        copy: bool = False,
        logits: LogitsOf = None,
        eager: bool = False,
        precision: Precision = "auto",
    ) -> Self:
        """Go on from a state tree.

        Given again: how the hardware is used (`eager`, `precision`), a `method` that is not in the
        table, a `feedback` source other than the person behind `answer` (it holds the truth), and
        `logits` if it is a function.
        """
        if state.get("format") != _FORMAT:
            raise InputError(
                f"the state has format {state.get('format')!r}; this version reads {_FORMAT}."
            )
        if method is None and state["method"] not in METHODS:
            raise InputError(
                f"the session was saved with {state['method']!r}, which is not in the table of "
                f"methods; give method={state['method']} again."
            )
        session = cls(
            model,
            method or state["method"],
            **state["budget"],
            window=state["window"]["size"] if state["window"] else 0,
            amid=state["amid"],
            feedback=feedback,
            seed=state["seed"],
            copy=copy,
            logits=state["logits"] if logits is None else logits,
            eager=eager,
            precision=precision,
            **state["settings"],
        )
        try:
            session._load(state)
        except BaseException:
            session.close()
            raise
        return session

    def state_dict(self) -> State:
        """All that the following steps depend on, as a tree."""
        return {
            "format": _FORMAT,
            "method": self.method,
            "settings": asdict(self.adapter.config),
            "budget": asdict(self.budget),
            "window": self._window and {"size": self._window.size, **self._window.state_dict()},
            "amid": self._amid,
            "seed": self.adapter.seed,
            "logits": None if callable(self._logits) else self._logits,
            "step_number": self.step_number,
            "n_asked": self.n_asked,
            "n_seen": self.n_seen,
            "unlabelled": self._unlabelled,
            "due": self._due,
            "adapter": self.adapter.state_dict(),
            "source": {
                "kind": type(self.feedback_source).__name__,
                **self.feedback_source.state_dict(),
            },
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        source = dict(state["source"])
        kind = source.pop("kind")
        if kind != type(self.feedback_source).__name__:
            raise InputError(
                f"the session was saved with {kind} feedback, but this one has "
                f"{type(self.feedback_source).__name__}; give feedback={kind}(...) as before."
            )
        self.adapter.load_state_dict(state["adapter"])
        self.feedback_source.load_state_dict(source)
        if self._window is not None:
            self._window.load_state_dict(state["window"], device=self.adapter.wrapped.device)
        self._due = state["due"]
        self.step_number = state["step_number"]
        self.n_asked = state["n_asked"]
        self.n_seen = state["n_seen"]
        unlabelled = state["unlabelled"]
        self._unlabelled = (
            None if unlabelled is None else unlabelled.to(self.adapter.wrapped.device)
        )

    def _serve(self, inputs: Tensor, around: Tensor, *, full: bool) -> Prediction:
        """Predict amid the samples around these; statistics are taken in once per full window."""
        adapter = self.adapter
        among = around if adapter.statistics == "batch" else inputs
        if adapter.observes != "before_serving":
            return adapter.predict(among).last(len(inputs))
        with nullcontext() if full else adapter.wrapped.statistics_put_back():
            adapter.observe(around)
            return adapter.predict(among).last(len(inputs))

    def _with_questions(self, served: Prediction, recent: Tensor, around: Prediction) -> Prediction:
        """What is served, with the questions that it and what is around it raise."""
        queries, policy = self._ask(recent, around)
        if policy is None:
            return replace(served, queries=queries)
        agreeing = policy.argmax(-1) == around.labels
        return replace(
            served,
            queries=queries,
            policy=policy[-len(served.labels) :],
            agreement=agreeing.float().mean(),
        )

    def _ask(self, recent: Tensor, served: Prediction) -> Chosen:
        """Put the most useful of what was served to the feedback source."""
        adapter, judged = self.adapter, served
        if adapter.observes == "before_asking":
            adapter.observe(recent)
            judged = adapter.predict(recent)
        chosen = self._questioner.choose(
            recent, judged, step=self.step_number, asked=self.n_asked, seen=self.n_seen
        )
        if adapter.observes == "after_asking":
            adapter.observe(recent)
        self._commit(recent, chosen.queries)
        self._due = True
        return chosen

    def _collect(self) -> list[Answer]:
        return self.feedback_source.collect() if self._due else []

    def _commit(self, inputs: Tensor, queries: tuple[Query, ...]) -> None:
        """Ask; what was asked about stays out of the unlabelled samples of its batch."""
        self.feedback_source.ask(queries)
        asked = {query.index for query in queries}
        others = torch.tensor([row for row in range(len(inputs)) if row not in asked])
        self._unlabelled = inputs[moved(others.long(), inputs.device)]
        self.step_number += 1
        self.n_asked += len(queries)

    def _adapt(self, answers: list[Answer]) -> Losses:
        self._due = self._window is None
        if self._unlabelled is None or not (answers or len(self._unlabelled)):
            return Losses()
        feedback = Feedback.of(answers, like=self._unlabelled)
        unlabelled, self._unlabelled = self._unlabelled, self._unlabelled[:0]
        return self.adapter.adapt(unlabelled, feedback)

    def _checked(self, inputs: Tensor) -> Tensor:
        self._require_open()
        inputs = self.adapter.wrapped.accepted(inputs)
        if self._unlabelled is not None and inputs.shape[1:] != self._unlabelled.shape[1:]:
            raise InputError(
                f"inputs are now {tuple(inputs.shape[1:])} and were "
                f"{tuple(self._unlabelled.shape[1:])}; one session serves one shape."
            )
        return inputs

    def _require_open(self) -> None:
        if not self.adapter.wrapped.borrowed:
            raise ModelError(
                "this session is closed, or a later session has taken its model over; "
                "start a new one."
            )


def _checked_source(feedback: object) -> FeedbackSource:
    if isinstance(feedback, type) or not isinstance(feedback, FeedbackSource):
        raise SettingError(
            f"feedback is {feedback!r}; a source that answers is needed, such as "
            "bitta.Simulated(truth) or, for a function, bitta.feedback.Judge(function)."
        )
    return feedback
