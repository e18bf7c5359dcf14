"""Session that can serve while it learns or chooses questions.

Requests that arrive meanwhile are served between two layers of the model, with the weights and
statistics from before the current update of the optimiser. They never complete a window. The log
records them as served before that update, so a replay gives the same weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from itertools import chain
from threading import get_ident
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from bitta.memory import CompleteWindow
from bitta.methods.base import Adapter
from bitta.nn import ModelRestorer, WrappedModel, batch_norms
from bitta.selection import Budget, ChosenQueries, QuerySelector
from bitta.session import Session
from bitta.types import Losses, Prediction

Interrupt: TypeAlias = Callable[[], None]
"""Function called between two layers. It may call `InterruptibleSession.predict_in_interrupt`."""


def _ignore(_: Prediction) -> None:
    """Ignore the prediction."""


class InterruptibleSession(Session):
    """Session that calls an interrupt between two layers of the model."""

    on_prediction: Callable[[Prediction], None] = staticmethod(_ignore)
    """Called with the prediction before questions are chosen."""
    skips_questions: bool = False
    """True if the next complete window raises no questions."""
    _interrupt: Interrupt | None = None
    _serving_copy: "ServingCopy | None" = None
    _allows_interrupts = False
    """True in an interruptible block, except between two updates and while an interrupt runs."""
    _depth = 0
    """Number of nested interruptible blocks."""

    @contextmanager
    def interrupted_by(self, interrupt: Interrupt | None) -> Iterator[None]:
        """Call `interrupt` between layers inside this block, in the same thread."""
        before, self._interrupt = self._interrupt, interrupt
        try:
            yield
        finally:
            self._interrupt = before

    def is_window_completed_by(self, n_samples: int) -> bool:
        """Return True if this number of further samples completes the window."""
        return self._window.size > 0 and self._window.is_completed_by(n_samples)

    @property
    def n_interrupt_samples(self) -> int:
        """Number of samples that an interrupt can serve now without completing the window."""
        if not self._window.size or self._serving_copy is None or self._serving_copy.is_outdated:
            return 0
        return self._window.size - self._window.n_new - 1

    def predict_in_interrupt(self, inputs: Tensor) -> Prediction:
        """Serve up to `n_interrupt_samples` samples in an interrupt."""
        assert self._serving_copy is not None
        inputs = self._check_inputs(inputs)
        prediction = self._serving_copy.predict(inputs)
        self.n_served += len(inputs)
        self._window.add(inputs, prediction)
        return prediction

    def learn(self, *, between_updates: Callable[[], None] | None = None) -> Losses:
        """Adapt. The interrupt is called between layers, `between_updates` between two updates."""

        def after_update() -> None:
            self._allows_interrupts = False
            if between_updates is not None:
                between_updates()
            self._allow_interrupts()

        with self._interruptible():
            return super().learn(between_updates=after_update)

    def close(self) -> None:
        """Restore the model and drop the serving copy."""
        self._serving_copy = None
        super().close()

    def _choose_and_ask(self, served: Prediction, window: CompleteWindow) -> Prediction:
        self.on_prediction(served)
        if self.adapter.observes != "before_serving":  # choosing changes the statistics
            return super()._choose_and_ask(served, window)
        with self._interruptible():
            return super()._choose_and_ask(served, window)

    def _choose_queries(self, window: CompleteWindow) -> ChosenQueries:
        if not self.skips_questions:
            return super()._choose_queries(window)
        selector = self._query_selector
        self._query_selector = QuerySelector(self.adapter, Budget(n_queries=0))
        try:
            return super()._choose_queries(window)
        finally:
            self._query_selector = selector

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Call the interrupt inside this block, if there is one and the model can be copied."""
        if self._interrupt is None or not self._has_serving_copy():
            yield
            return
        before, hooks = self._allows_interrupts, self._add_hooks() if self._depth == 0 else []
        self._depth += 1
        self._allow_interrupts()
        try:
            yield
        finally:
            self._allows_interrupts = before
            self._depth -= 1
            for hook in hooks:
                hook.remove()

    def _has_serving_copy(self) -> bool:
        if self._serving_copy is None and _serves_by_plain_forward(self.adapter):
            self._serving_copy = ServingCopy.try_build(self.adapter.wrapped)
        return self._serving_copy is not None

    def _allow_interrupts(self) -> None:
        if self._serving_copy is not None:
            self._serving_copy.record_versions()
            self._allows_interrupts = True

    def _add_hooks(self) -> list[Any]:
        thread = get_ident()

        def call_interrupt(*_: Any) -> None:
            if not self._allows_interrupts or get_ident() != thread or self._interrupt is None:
                return
            self._allows_interrupts = False
            try:
                self._interrupt()
            finally:
                self._allows_interrupts = True

        # Use a global hook. With its own hook, nn.TransformerEncoderLayer leaves its fast path.
        forward = register_module_forward_pre_hook(call_interrupt)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return [forward, *(p.register_post_accumulate_grad_hook(call_interrupt) for p in trained)]


class ServingCopy:
    """Copy of the model's modules that shares the model's weights and buffers.

    It does not have the hooks that learning adds to the model later, such as dropout.
    """

    def __init__(self, wrapped: WrappedModel) -> None:
        model = wrapped.model
        self._tensors = tuple(chain(model.parameters(), model.buffers()))
        shared: dict[int, Any] = {id(tensor): tensor for tensor in self._tensors}
        shared |= {
            id(value): value for value in vars(model).values() if isinstance(value, ModelRestorer)
        }
        self._network = copy(wrapped)
        self._network.model = deepcopy(model, shared)
        self._recorded_tensor_versions: tuple[int, ...] = ()

    @classmethod
    def try_build(cls, wrapped: WrappedModel) -> Self | None:
        """Return a serving copy; None if the model cannot be copied."""
        try:
            return cls(wrapped)
        except (RuntimeError, TypeError):
            return None

    def record_versions(self) -> None:
        """Record the current weights and buffers as those to serve."""
        self._recorded_tensor_versions = self._tensor_versions()

    @property
    def is_outdated(self) -> bool:
        """True if an update has changed weights or buffers since they were recorded."""
        return self._recorded_tensor_versions != self._tensor_versions()

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        """Predict with running statistics. The model itself may be inside a forward pass."""
        # The interrupted forward pass may run in a mode that replaces batch normalisation.
        with torch._C.DisableTorchFunction():
            return Prediction.from_logits(self._network(inputs, statistics="running"))

    def _tensor_versions(self) -> tuple[int, ...]:
        return tuple(tensor._version for tensor in self._tensors)


def _serves_by_plain_forward(adapter: Adapter[Any]) -> bool:
    """Return True if the method serves by one CPU forward pass with running statistics."""
    method, wrapped = type(adapter), adapter.wrapped
    return (
        wrapped.device.type == "cpu"
        and wrapped.normaliser is None
        and all(norm.running_mean is not None for norm in batch_norms(wrapped.model))
        and adapter.statistics == "running"
        and method.predict is Adapter.predict
        and method.logits is Adapter.logits
    )
