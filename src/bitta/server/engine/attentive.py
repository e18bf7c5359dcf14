"""A session that answers before it asks, and in between while it asks and learns.

What is served inside a step or a question is served by the weights and statistics from before it,
and never fills a window: it is as if it had been served just before, which is how it is logged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from itertools import chain
from threading import get_ident
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from bitta.memory import CompleteWindow
from bitta.methods.base import Adapter
from bitta.nn import WrappedModel
from bitta.nn.batchnorm import batch_norms
from bitta.nn.prepared_model import ModelRestorer
from bitta.selection import Budget, ChosenQueries, QuerySelector
from bitta.session import Session
from bitta.types import Losses, Prediction

Turn = Callable[[], None]


def _ignored(_: Prediction) -> None:
    """Nobody waits for the answer."""


class AttentiveSession(Session):
    """Gives others a turn between two layers of the model, where they can be served."""

    answered: Callable[[Prediction], None] = staticmethod(_ignored)
    """Called with what is served as soon as it is known, where questions follow."""
    silent: bool = False
    """Whether a window that is full raises no questions."""
    _turn: Turn | None = None
    _twin: "Twin | None" = None
    _open = False
    """Whether somebody could be served now."""
    _depth = 0

    @contextmanager
    def giving(self, turn: Turn | None) -> Iterator[None]:
        """Call `turn` in this thread between layers; it may serve by `predict_within`."""
        before, self._turn = self._turn, turn
        try:
            yield
        finally:
            self._turn = before

    def fills(self, n_samples: int) -> bool:
        """Whether so many more make the window full."""
        return self._window.size > 0 and self._window.is_completed_by(n_samples)

    @property
    def room(self) -> int:
        """Samples that can be served by `predict_within` now: the window must not be full."""
        if not self._window.size or self._twin is None or not self._twin.unchanged:
            return 0
        return self._window.size - self._window.n_new - 1

    def predict_within(self, inputs: Tensor) -> Prediction:
        """Serve inside a step or a question, at most `room` samples."""
        assert self._twin is not None
        inputs = self._check_inputs(inputs)
        prediction = self._twin.predict(inputs)
        self.n_served += len(inputs)
        self._window.add(inputs, prediction)
        return prediction

    def learn(self, *, between_updates: Turn | None = None) -> Losses:
        """Adapt; others have turns between layers, `between_updates` between two updates."""

        def closed() -> None:
            self._open = False
            if between_updates is not None:
                between_updates()
            self._reopen()

        with self._interruptible():
            return super().learn(between_updates=closed)

    def close(self) -> None:
        """Give the model back."""
        self._twin = None
        super().close()

    def _choose_and_ask(self, served: Prediction, window: CompleteWindow) -> Prediction:
        self.answered(served)
        if self.adapter.observes != "before_serving":  # its statistics move while it asks
            return super()._choose_and_ask(served, window)
        with self._interruptible():
            return super()._choose_and_ask(served, window)

    def _choose_queries(self, window: CompleteWindow) -> ChosenQueries:
        if not self.silent:
            return super()._choose_queries(window)
        selector = self._query_selector
        self._query_selector = QuerySelector(self.adapter, Budget(n_queries=0))
        try:
            return super()._choose_queries(window)
        finally:
            self._query_selector = selector

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let others have their turns inside, unless nobody wants one or none can be served."""
        if self._turn is None or not self._find_twin():
            yield
            return
        was, hooks = self._open, self._hooks() if self._depth == 0 else []
        self._depth += 1
        self._reopen()
        try:
            yield
        finally:
            self._open = was
            self._depth -= 1
            for hook in hooks:
                hook.remove()

    def _find_twin(self) -> bool:
        if self._twin is None and _is_plain(self.adapter):
            self._twin = Twin.of(self.adapter.wrapped)
        return self._twin is not None

    def _reopen(self) -> None:
        if self._twin is not None:
            self._twin.mark()
            self._open = True

    def _hooks(self) -> list[Any]:
        here = get_ident()

        def give_turn(*_: Any) -> None:
            if not self._open or get_ident() != here or self._turn is None:
                return
            self._open = False
            try:
                self._turn()
            finally:
                self._open = True

        # For all modules at once: a hook on one of the model's own would change its path.
        forward = register_module_forward_pre_hook(give_turn)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return [forward, *(p.register_post_accumulate_grad_hook(give_turn) for p in trained)]


class Twin:
    """The same weights and buffers in modules of their own, free of hooks on those of the model."""

    def __init__(self, wrapped: WrappedModel) -> None:
        model = wrapped.model
        self._tensors = tuple(chain(model.parameters(), model.buffers()))
        shared: dict[int, Any] = {id(tensor): tensor for tensor in self._tensors}
        shared |= {
            id(each): each for each in vars(model).values() if isinstance(each, ModelRestorer)
        }
        self._network = copy(wrapped)
        self._network.model = deepcopy(model, shared)
        self._seen: tuple[int, ...] = ()

    @classmethod
    def of(cls, wrapped: WrappedModel) -> Self | None:
        """A twin, or None of a model that cannot be copied."""
        try:
            return cls(wrapped)
        except (RuntimeError, TypeError):
            return None

    def mark(self) -> None:
        """Take the weights and buffers as they are now for those that serve."""
        self._seen = self._versions()

    @property
    def unchanged(self) -> bool:
        """Whether all are as at the mark; a step or statistics under way show here."""
        return self._seen == self._versions()

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        """What the model serves, whatever is being done with it in this thread."""
        # The model's own forward may be under way inside a mode that normalises otherwise.
        with torch._C.DisableTorchFunction():
            return Prediction.from_logits(self._network(inputs, statistics="running"))

    def _versions(self) -> tuple[int, ...]:
        return tuple(tensor._version for tensor in self._tensors)


def _is_plain(adapter: Adapter[Any]) -> bool:
    """Whether it serves by one forward with running statistics, on the processor itself."""
    kind, wrapped = type(adapter), adapter.wrapped
    return (
        wrapped.device.type == "cpu"
        and wrapped.normaliser is None
        and all(norm.running_mean is not None for norm in batch_norms(wrapped.model))
        and adapter.statistics == "running"
        and kind.predict is Adapter.predict
        and kind.logits is Adapter.logits
    )
