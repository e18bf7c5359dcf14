"""Hook that prepares the model before the stream begins, and the file that keeps its result.

An experiment names a subclass of `BeforeStream` in its table [before_stream]. The runner calls it
once for all runs of a folder that start with the same prepared model.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from torch import nn

from bitta.config_base import Config, build_config
from bitta.errors import SettingError
from bitta.models import import_object
from bitta.nn import SavedWeights, WrappedModel
from bitta.statefile import save_state
from bitta.streams import Stream
from bitta.types import State

if TYPE_CHECKING:
    from bitta.bench.experiment import Experiment

OnPreparationBatch = Callable[[int, int, float], None]
"""Called after every batch of the preparation: batches done, total number of batches, loss."""


@dataclass(frozen=True, kw_only=True)
class BeforeStream(Config, ABC):
    """Base class of a preparation. Its fields are the settings in [before_stream]."""

    factory: str
    """The class, as module:Class. The module is also looked up in the working directory."""

    def check_experiment(self, experiment: "Experiment") -> None:
        """Raise a `SettingError` if this experiment cannot use this preparation."""

    @abstractmethod
    def identity(self, context: "PreparationContext") -> Mapping[str, Any]:
        """Return plain values of the experiment that the prepared model depends on.

        Leave out the settings of this class, the stream, the source weights, the seed and the
        device: they are always compared. Runs with the same values share one prepared model.
        """

    @abstractmethod
    def prepare(
        self,
        context: "PreparationContext",
        progress: "PreparationProgress",
        on_batch: OnPreparationBatch,
    ) -> dict[str, Any]:
        """Change the weights of `context.wrapped` in place.

        Return plain values for the result of the run. `progress` holds the state of an
        interrupted preparation; `on_batch` raises an exception to interrupt this one.
        """


@dataclass(frozen=True, slots=True)
class PreparationContext:
    """The parts of a run that a preparation may use."""

    experiment: "Experiment"
    wrapped: WrappedModel
    """The source model, on its device."""
    stream: Stream
    n_classes: int


class PreparationProgress:
    """State of one preparation, kept in a file from one process to the next."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        identity: Mapping[str, Any] | None = None,
        saved: State | None = None,
        save_every_seconds: float = 30.0,
    ) -> None:
        saved = saved or {}
        self.result: dict[str, Any] | None = saved.get("result")
        """Values for the result of the run; None until the preparation is finished."""
        self.state: State = saved.get("state", {})
        """State that was saved by an interrupted preparation; empty at the beginning."""
        self._weights: State | None = saved.get("weights")
        self._earlier_seconds: float = saved.get("seconds", 0.0)
        self._path = path
        self._identity = dict(identity or {})
        self._save_every_seconds = save_every_seconds
        self._started = perf_counter()
        self._next_save = monotonic() + save_every_seconds

    @property
    def seconds(self) -> float:
        """Time spent on this preparation so far, in all processes."""
        return self._earlier_seconds + perf_counter() - self._started

    @property
    def is_save_due(self) -> bool:
        """True if `save_every_seconds` have passed since the last save."""
        return monotonic() >= self._next_save

    def restore_weights(self, model: nn.Module) -> None:
        """Give the model the saved weights, if there are any."""
        if self._weights is not None:
            SavedWeights(self._weights).restore(model)
            self._weights = None

    def save(self, model: nn.Module, state: State) -> None:
        """Save the weights and the state of an unfinished preparation."""
        self._write(model, {"state": state, "seconds": self.seconds})

    def finish(self, model: nn.Module, result: Mapping[str, Any]) -> dict[str, Any]:
        """Save the weights and the result. Return the result with the time of the preparation."""
        self.result = {**result, "seconds": self.seconds}
        self._write(model, {"result": self.result})
        return self.result

    def _write(self, model: nn.Module, values: State) -> None:
        if self._path is None:
            return
        weights = SavedWeights.copy_of(model).state_dict()
        try:
            save_state(self._path, {"identity": self._identity, "weights": weights, **values})
        except OSError as error:
            warnings.warn(
                f"{str(self._path)!r} cannot be written ({error.strerror}); the preparation "
                "continues, but is not saved.",
                stacklevel=2,
            )
            self._path = None
        self._next_save = monotonic() + self._save_every_seconds


def build_before_stream(table: Mapping[str, Any]) -> BeforeStream:
    """Build the preparation that the table [before_stream] names."""
    factory = table.get("factory")
    if not isinstance(factory, str):
        raise SettingError(
            f'before_stream.factory is {factory!r}; allowed: text of the form "module:Class".'
        )
    kind = import_object(factory, of="before_stream.factory")
    if not isinstance(kind, type) or not issubclass(kind, BeforeStream):
        raise SettingError(
            f"before_stream.factory {factory!r} is not a subclass of {BeforeStream.__qualname__}; "
            f"give a class that inherits from {BeforeStream.__module__}.{BeforeStream.__name__}."
        )
    return build_config(kind, table, preset=None, of="[before_stream]")
