"""Session, the loop around an adapter: predict, choose queries, ask, collect answers, adapt."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitta.benefit import Benefit, BenefitEstimator
from bitta.config_base import check_integer, require
from bitta.errors import BittaError, FeedbackError, InputError, ModelError, SettingError
from bitta.feedback import AnswerCheck, FeedbackSource, Human
from bitta.memory import CompleteWindow, SampleWindow
from bitta.methods import METHODS, get_method
from bitta.methods.base import Adapter, GradientAdapter, do_nothing
from bitta.nn import (
    FORWARD_ERRORS,
    Execution,
    LogitsPosition,
    Precision,
    WrappedModel,
    explain_forward_error,
    explain_out_of_memory,
    restore_model,
)
from bitta.selection import Budget, ChosenQueries, QuerySelector
from bitta.statefile import load_state, save_state
from bitta.types import Answer, Feedback, Losses, Prediction, Query, State, move_to_device

_FORMAT = 8


class Session:
    """A classifier that serves a stream, asks questions, and learns from the answers.

    >>> import bitta, torch
    >>> from bitta.testing import toy_classifier
    >>> session = bitta.Session(toy_classifier(), "bitta", n_queries=1, seed=0)
    >>> prediction = session.predict(torch.rand(8, 3, 8, 8))
    >>> for query in prediction.queries:
    ...     session.answer(query.id, correct=True)
    >>> losses = session.learn()
    >>> session.close()

    The session adapts the weights of the model in place. `close`, or the end of a `with` block,
    restores everything else about the model.

    Args:
        model: The classifier to adapt.
        method: Name of a method ("bitta methods" lists them), or a subclass of `Adapter`.
        preset: Name of a set of values for the method's settings.
        n_queries: Questions per batch, or per window. None means the method's default.
        every: Ask on every n-th batch only.
        total: Maximum number of questions of the session. None means no limit.
        price: Cost of one question. The budget of a batch is `n_queries`. If the price is not 1,
            budget that is not spent is carried over to later batches.
        audits: Number of the `n_queries` questions that are about samples drawn at random. They
            measure accuracy. None means the method's default.
        paired_audits: Number of the `n_queries` questions that compare the served model with the
            source model. They are about random samples on which the two differ, and show the label
            of one of them. They measure `benefit`. None means the method's default.
        window: Number of samples in a window. The session asks and learns once per window, so
            requests may be as small as one sample. Each request is served immediately. Batch
            statistics are those of the newest `window` samples. With 0 every request is a batch.
            None means the method's default.
        observe_every_request: With a window, update the running statistics with the newest samples
            before each request. If False, a method that serves with running statistics updates
            them once per window, which makes requests cheaper.
        feedback: Source of the answers. None waits for calls of `answer`.
        seed: Seed of all randomness of the session.
        copy: Adapt a copy and leave the caller's model unchanged.
        logits: Position of the logits in the model's output, or a function that extracts them.
        eager: Run without CUDA graphs and fused kernels, also on a GPU.
        precision: Precision of convolutions and matrix products. "auto" takes bfloat16 on a GPU
            that supports it, unless `eager` is set, and float32 otherwise.
        settings: Settings of the method, by keyword.
    """

    @torch.inference_mode(False)
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
        audits: int | None = None,
        paired_audits: int | None = None,
        window: int | None = None,
        observe_every_request: bool = True,
        feedback: FeedbackSource | None = None,
        seed: int = 0,
        copy: bool = False,
        logits: LogitsPosition = None,
        eager: bool = False,
        precision: Precision = "auto",
        **settings: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ModelError(f"model is a {type(model).__name__}; an nn.Module is needed.")
        if any(parameter.is_inference() for parameter in model.parameters()):
            raise ModelError(
                "the model was created inside torch.inference_mode, so its weights cannot change; "
                "create it outside."
            )
        adapter_class = _resolve_method(method)
        self.method = method if isinstance(method, str) else adapter_class.__name__
        config = adapter_class.configure(settings, preset, name=self.method)
        n_queries = adapter_class.n_queries if n_queries is None else n_queries
        if audits is None:
            audits = min(adapter_class.audits, n_queries)
        if paired_audits is None:
            paired_audits = max(0, min(adapter_class.paired_audits, n_queries - audits))
        self.budget = Budget(
            n_queries=n_queries,
            every=every,
            total=total,
            price=price,
            audits=audits,
            paired_audits=paired_audits,
        )
        self._benefit = BenefitEstimator()
        self._answer_check = AnswerCheck()
        self.feedback_source: FeedbackSource = (
            Human() if feedback is None else _check_feedback_source(feedback)
        )
        self.n_steps = 0
        """Number of batches, or complete windows, served."""
        self.n_asked = 0
        """Number of questions asked."""
        self.n_answered = 0
        """Number of answers collected."""
        self.n_served = 0
        """Number of samples served."""
        window = check_integer("window", adapter_class.window if window is None else window)
        require(window >= 0, "window", window, "0 or more samples")
        self._window = SampleWindow(window)
        self._observe_every_request = observe_every_request
        self._unlabelled: Tensor | None = None
        """Samples of the last window that no question is about; None before the first request."""
        self._window_is_complete = not window
        """True if a window was completed since the last `learn`; always true without a window."""
        self._logits = logits
        model = deepcopy(model) if copy else model
        try:
            wrapped = WrappedModel(
                model, logits=logits, sites=config.sites, eager=eager, precision=precision
            )
            self.adapter: Adapter[Any] = adapter_class(
                wrapped, config, seed=check_integer("seed", seed)
            )
            self._query_selector = QuerySelector(self.adapter, self.budget)
        except BaseException:
            restore_model(model)
            raise

    def __repr__(self) -> str:
        adapter = self.adapter
        trained = adapter.parameters if isinstance(adapter, GradientAdapter) else []
        sites = ", ".join(adapter.wrapped.sites) if adapter.config.dropout else "none"
        lines = [
            f"Session of {self.method} on {type(self.model).__name__}",
            f"  dropout sites: {sites}",
            f"  trained: {sum(p.numel() for p in trained):,} values in {len(trained)} tensors",
            f"  served: {self.n_served} samples",
            f"  questions: {self.n_asked} asked, {self.n_answered} answered",
        ]
        if (benefit := self.benefit) is not None:
            lines.append(f"  difference in accuracy to the source model: {benefit}")
        return "\n".join(lines)

    @property
    def model(self) -> nn.Module:
        """The model with the weights learned so far."""
        return self.adapter.model

    @property
    def benefit(self) -> Benefit | None:
        """Accuracy of what was served minus accuracy of the source model.

        None if the session asks no paired audits.

        `paired_audits` measure it. The estimate assumes that a missing answer does not depend on
        which label is right.
        """
        return self._benefit.estimate() if self.budget.paired_audits else None

    @property
    def execution(self) -> Execution:
        """Execution path of this session. A saved session may continue on another path."""
        return self.adapter.wrapped.execution

    @torch.inference_mode(False)
    def predict(self, inputs: Tensor) -> Prediction:
        """Serve predictions, then ask about the most uncertain ones and, if set, about random ones.

        The method decides the labels that are served: see `Adapter.predict`.
        With a window, the request that completes the window returns the questions.
        """
        with self._explained_errors(inputs):
            inputs = self._check_inputs(inputs)
        with (
            self._explained_errors(inputs),
            explain_out_of_memory(f"serving {len(inputs)} samples", "send smaller batches."),
            self._observed(inputs) as batch,
        ):
            prediction = self.adapter.predict(batch).last_rows(len(inputs))
        self.n_served += len(inputs)
        if self._unlabelled is None:
            self._unlabelled = inputs[:0]
        window = self._window.add(inputs, prediction)
        if window is None:
            return prediction
        return self._choose_and_ask(prediction, window)

    def answer(self, query_id: int, *, correct: bool) -> None:
        """Answer a question by its id, now or after later batches.

        `Human` keeps the newest 1,024 questions open; older ones have expired.
        """
        if not isinstance(self.feedback_source, Human):
            raise FeedbackError(
                f"this session's answers come from {type(self.feedback_source).__name__}; "
                "leave feedback out to answer by hand."
            )
        self.feedback_source.answer(query_id, correct=correct)

    @torch.inference_mode(False)
    def learn(self, *, between_updates: Callable[[], None] | None = None) -> Losses:
        """Adapt to the last batch and to the answers that arrived since the last call.

        With a window, nothing is learned until the window is complete; answers wait until then.
        `between_updates` is called between two updates of the optimiser. It may call `predict`.
        """
        self._require_open()
        self.adapter.between_updates = between_updates or do_nothing
        try:
            return self._adapt(self._collect())
        finally:
            self.adapter.between_updates = do_nothing

    @property
    def can_learn(self) -> bool:
        """True if a complete window has not been learned from yet.

        Without a window it is true after the first request.
        """
        return self._window_is_complete and self._unlabelled is not None

    @torch.inference_mode(False)
    def step(self, inputs: Tensor) -> tuple[Prediction, list[Answer], Losses]:
        """Predict, collect answers and learn."""
        prediction = self.predict(inputs)
        answers = self._collect()
        return prediction, answers, self._adapt(answers)

    def reset(self) -> None:
        """Restore the source model. Clear memories, the window and the measured benefit.

        Open questions and counters stay.
        """
        self._require_open()
        if self._unlabelled is not None:
            self._unlabelled = self._unlabelled[:0]
        self._window.clear()
        self._benefit = BenefitEstimator()
        self.adapter.reset()

    def close(self) -> None:
        """Restore everything about the model but its weights, which stay adapted."""
        self.adapter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(self, path: str | Path) -> None:
        """Write the session to one safetensors file, atomically."""
        save_state(path, self.state_dict())

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, **options: Any) -> Self:
        """Continue a session written by `save`, with a model of the same architecture.

        The saved weights replace those of `model`. `options` are those of `from_state`.
        """
        return cls.from_state(load_state(path), model, **options)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        model: nn.Module,
        *,
        method: type[Adapter[Any]] | None = None,
        feedback: FeedbackSource | None = None,
        copy: bool = False,
        logits: LogitsPosition = None,
        eager: bool = False,
        precision: Precision = "auto",
    ) -> Self:
        """Continue a session from the tree returned by `state_dict`.

        Some arguments are not saved. Pass them again: `eager` and `precision`, a `method` that is
        a class of your own, a `feedback` source other than `Human`, and `logits` if it is a
        function.
        """
        if state.get("format") != _FORMAT:
            raise InputError(
                f"the state has format {state.get('format')!r}; this version reads {_FORMAT}. Load "
                "it with the version of bitta that saved it."
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
            window=state["window"]["size"],
            observe_every_request=state["observe_every_request"],
            feedback=feedback,
            seed=state["seed"],
            copy=copy,
            logits=state["logits"] if logits is None else logits,
            eager=eager,
            precision=precision,
            **state["settings"],
        )
        try:
            session._load_state(state)
        except BaseException:
            session.close()
            raise
        return session

    def state_dict(self) -> State:
        """Return a tree of everything that later steps depend on."""
        return {
            "format": _FORMAT,
            "method": self.method,
            "settings": asdict(self.adapter.config),
            "budget": asdict(self.budget),
            "window": self._window.state_dict(),
            "observe_every_request": self._observe_every_request,
            "seed": self.adapter.seed,
            "logits": None if callable(self._logits) else self._logits,
            "n_steps": self.n_steps,
            "n_asked": self.n_asked,
            "n_answered": self.n_answered,
            "n_served": self.n_served,
            "unlabelled": self._unlabelled,
            "window_is_complete": self._window_is_complete,
            "benefit": self._benefit.state_dict(),
            "adapter": self.adapter.state_dict(),
            "feedback_source": {
                "kind": type(self.feedback_source).__name__,
                **self.feedback_source.state_dict(),
            },
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        feedback_state = dict(state["feedback_source"])
        kind = feedback_state.pop("kind")
        if kind != type(self.feedback_source).__name__:
            raise InputError(
                f"the session was saved with {kind} feedback, but this one has "
                f"{type(self.feedback_source).__name__}; give feedback={kind}(...) as before."
            )
        device = self.adapter.wrapped.device
        self.adapter.load_state_dict(state["adapter"])
        self.feedback_source.load_state_dict(feedback_state)
        self._window.load_state_dict(state["window"], device=device)
        self._window_is_complete = state["window_is_complete"]
        self._benefit.load_state_dict(state["benefit"])
        self.n_steps = state["n_steps"]
        self.n_asked = state["n_asked"]
        self.n_answered = state["n_answered"]
        self.n_served = state["n_served"]
        unlabelled = state["unlabelled"]
        self._unlabelled = None if unlabelled is None else unlabelled.to(device)

    @contextmanager
    def _observed(self, inputs: Tensor) -> Iterator[Tensor]:
        """Observe a request together with the recent samples. Yield the batch to predict.

        The request is the last rows of the batch. If the window is incomplete, the earlier
        statistics are restored after the block, so that each sample counts once.
        """
        adapter, window = self.adapter, self._window
        completes_window = window.is_completed_by(len(inputs))
        uses_batch_statistics = adapter.statistics == "batch"
        observes = adapter.observes == "before_serving" and (
            completes_window or self._observe_every_request or uses_batch_statistics
        )
        needs_recent = observes or uses_batch_statistics
        recent = window.with_recent(inputs) if needs_recent else inputs
        batch = recent if uses_batch_statistics else inputs
        if not observes:
            yield batch
            return
        with nullcontext() if completes_window else adapter.wrapped.statistics_restored():
            adapter.observe(recent)
            yield batch

    @contextmanager
    def _explained_errors(self, inputs: Tensor) -> Iterator[None]:
        """If the first request fails, explain what is probably wrong with the inputs."""
        try:
            yield
        except FORWARD_ERRORS as error:
            if isinstance(error, BittaError | torch.OutOfMemoryError) or self.n_served:
                raise
            raise explain_forward_error(inputs, error) from error

    def _choose_and_ask(self, served: Prediction, window: CompleteWindow) -> Prediction:
        """Ask about samples of a window. Return what was served, with the questions."""
        chosen = self._choose_queries(window)
        self._ask(window.inputs, chosen.queries)
        if chosen.policy is None:
            return replace(served, queries=chosen.queries)
        agrees = chosen.policy.argmax(-1) == window.prediction.labels
        return replace(
            served,
            queries=chosen.queries,
            policy=chosen.policy[-len(served.labels) :],
            agreement=agrees.float().mean(),
        )

    def _choose_queries(self, window: CompleteWindow) -> ChosenQueries:
        """Choose questions. A method may observe the window before or after the choice."""
        adapter, prediction = self.adapter, window.prediction
        if adapter.observes == "before_asking":
            adapter.observe(window.inputs)
            prediction = adapter.predict(window.inputs)
        chosen = self._query_selector.select(
            window.inputs,
            prediction,
            step=self.n_steps,
            n_asked=self.n_asked,
            n_served=self.n_served,
        )
        if chosen.n_different is not None:
            self._benefit.add_window(n_samples=len(window.inputs), n_different=chosen.n_different)
        if adapter.observes == "after_asking":
            adapter.observe(window.inputs)
        return chosen

    def _ask(self, inputs: Tensor, queries: tuple[Query, ...]) -> None:
        """Pass questions to the feedback source. Keep the other samples to learn from."""
        self.feedback_source.ask(queries)
        queried = {query.index for query in queries}
        others = torch.tensor([row for row in range(len(inputs)) if row not in queried])
        self._unlabelled = inputs[move_to_device(others.long(), inputs.device)]
        self.n_steps += 1
        self.n_asked += len(queries)
        self._window_is_complete = True

    def _collect(self) -> list[Answer]:
        if not self._window_is_complete:
            return []
        answers = self.feedback_source.collect()
        self.n_answered += len(answers)
        self._benefit.add_answers(answers)
        self._answer_check.add(answers)
        return answers

    def _adapt(self, answers: list[Answer]) -> Losses:
        self._window_is_complete = not self._window.size
        if self._unlabelled is None or not (answers or len(self._unlabelled)):
            return Losses()
        feedback = Feedback.from_answers(answers, like=self._unlabelled)
        unlabelled, self._unlabelled = self._unlabelled, self._unlabelled[:0]
        return self.adapter.adapt(unlabelled, feedback)

    def _check_inputs(self, inputs: Tensor) -> Tensor:
        self._require_open()
        inputs = self.adapter.wrapped.prepare_inputs(inputs)
        if self._unlabelled is not None and inputs.shape[1:] != self._unlabelled.shape[1:]:
            raise InputError(
                f"inputs are now {tuple(inputs.shape[1:])} and were "
                f"{tuple(self._unlabelled.shape[1:])}; one session serves one shape. "
                "Send inputs of the first shape."
            )
        return inputs

    def _require_open(self) -> None:
        if not self.adapter.wrapped.is_in_use:
            raise ModelError(
                "this session is closed, or a later session has taken its model over; "
                "start a new one."
            )


def _resolve_method(method: object) -> type[Adapter[Any]]:
    adapter_class = get_method(method) if isinstance(method, str) else method
    if not (isinstance(adapter_class, type) and issubclass(adapter_class, Adapter)):
        raise SettingError(f"method is {method!r}; a name or a subclass of Adapter is needed.")
    return adapter_class


def _check_feedback_source(feedback: object) -> FeedbackSource:
    if isinstance(feedback, type) or not isinstance(feedback, FeedbackSource):
        raise SettingError(
            f"feedback is {feedback!r}; a source that answers is needed, such as "
            "bitta.Simulated(truth) or, for a function, bitta.feedback.Judge(function)."
        )
    return feedback
