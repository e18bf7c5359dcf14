"""What the API needs of the engine; anything of this shape can stand behind it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from bitta.server.store.records import StoredSnapshot

# ruff: noqa: D102 (a name and its type say it, unless there is more to say)


class Served(Protocol):
    """What the model said about the samples of one request, a row each."""

    @property
    def prediction_ids(self) -> Sequence[str]: ...
    @property
    def class_indices(self) -> Sequence[int]: ...
    @property
    def confidence(self) -> Sequence[float]: ...
    @property
    def log_probs(self) -> NDArray[Any]:  # (samples, classes)
        """Logits up to a constant of each row."""

    @property
    def model_version(self) -> str: ...


class EngineStatus(Protocol):
    """How the model fares, read without waiting for the worker; all numbers finite, or None."""

    @property
    def model_version(self) -> str: ...
    @property
    def weights(self) -> str | None:
        """Hash of the weights of the newest snapshot."""

    @property
    def learning(self) -> Literal["on", "paused"]: ...
    @property
    def reason(self) -> str | None:
        """Why it is paused."""

    @property
    def duty(self) -> float:
        """Share of the worker's time that learning takes."""

    @property
    def n_steps(self) -> int: ...
    @property
    def last_step_at(self) -> int | None: ...
    @property
    def losses(self) -> Mapping[str, float | None]: ...
    @property
    def n_served(self) -> int: ...
    @property
    def per_second(self) -> float: ...
    @property
    def latency_ms(self) -> Mapping[str, float | None]: ...
    @property
    def audits(self) -> Mapping[str, int | float | None]: ...
    @property
    def agreement(self) -> float | None: ...
    @property
    def confidence(self) -> Mapping[str, float | None]: ...
    @property
    def distance(self) -> Mapping[str, float | None]: ...
    @property
    def collapse(self) -> Mapping[str, Any]: ...
    @property
    def history(self) -> Mapping[str, Sequence[float | None]]:
        """Columns of equal length, oldest first; `at` in seconds since 1970."""

    @property
    def queue_depth(self) -> int: ...
    @property
    def last_snapshot_at(self) -> int | None: ...


class Engine(Protocol):
    """One worker that owns the model; everything here may be called from any thread."""

    @property
    def model_name(self) -> str: ...
    @property
    def classes(self) -> Sequence[str]: ...
    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one sample: channels, height, width."""

    @property
    def model_version(self) -> str: ...
    @property
    def alive(self) -> bool:
        """Whether the worker goes round."""

    @property
    def idle(self) -> float:
        """Seconds since the worker last served, came round, or was ready to serve."""

    def ping(self) -> "Future[None]":
        """Done as soon as the worker has come round."""

    def predict(self, inputs: NDArray[Any], *, request_id: str) -> "Future[Any]":
        """A `Served`, later."""

    def status(self) -> EngineStatus:
        """It may read the store: not for the event loop."""

    def snapshot(self, reason: Literal["asked"]) -> "Future[StoredSnapshot]": ...
    def rollback(self, snapshot_id: str, *, by: str, reason: str) -> "Future[str]":
        """The version that is served from then on."""

    def pause(self, by: str, reason: str) -> "Future[None]": ...
    def resume(self, by: str) -> "Future[None]": ...
    def keep_answered(self, prediction_id: str) -> None:
        """Keep the image of an answer that nobody asked for, if it is at hand."""

    def forget(self, sha256: str) -> None:
        """Let go of every copy of an image that is only in memory."""
