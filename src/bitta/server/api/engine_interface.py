"""Interface of the engine for the API, and a function that waits for the engine's futures.

The API uses the engine only through these protocols, so tests can replace it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, Protocol, TypeVar

from numpy.typing import NDArray

from bitta.server.store.records import StoredSnapshot

# ruff: noqa: D102 (members without a docstring are explained by their name and type)

T = TypeVar("T")


class ServedInterface(Protocol):
    """Predictions for the samples of one request, one row each."""

    @property
    def prediction_ids(self) -> Sequence[str]: ...
    @property
    def class_indices(self) -> Sequence[int]: ...
    @property
    def confidence(self) -> Sequence[float]: ...
    @property
    def log_probs(self) -> NDArray[Any]:  # (samples, classes)
        """Logits up to a constant per row."""

    @property
    def model_version(self) -> str: ...


class EngineStatusInterface(Protocol):
    """State of the model and of the worker. All numbers are finite, or None."""

    @property
    def model_version(self) -> str: ...
    @property
    def weights(self) -> str | None:
        """Hash of the weights of the newest snapshot."""

    @property
    def learning(self) -> Literal["on", "paused"]: ...
    @property
    def reason(self) -> str | None:
        """Reason for the pause."""

    @property
    def duty(self) -> float:
        """Share of the worker's time spent on asking and learning."""

    @property
    def n_learning_steps(self) -> int: ...
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
        """Columns of equal length, oldest row first. `at` is in seconds since 1970."""

    @property
    def queue_depth(self) -> int: ...
    @property
    def last_snapshot_at(self) -> int | None: ...


class EngineInterface(Protocol):
    """Engine with one worker thread that owns the model. All members are thread-safe."""

    @property
    def model_name(self) -> str: ...
    @property
    def classes(self) -> Sequence[str]: ...
    @property
    def input_shape(self) -> tuple[int, ...]:
        """Channels, height and width of one sample."""

    @property
    def model_version(self) -> str: ...
    @property
    def is_alive(self) -> bool:
        """True if the worker thread runs and is not stuck."""

    @property
    def idle_seconds(self) -> float:
        """Seconds since the worker last served a batch or completed a pass of its loop."""

    def ping(self) -> "Future[None]":
        """Return a future that completes with the worker's next pass of its loop."""

    def predict(self, inputs: NDArray[Any], *, request_id: str) -> "Future[Any]":
        """Return a future of a `ServedInterface`."""

    def status(self) -> EngineStatusInterface:
        """Return the current status. It may read the store, so it may block."""

    def snapshot(self, reason: Literal["asked"]) -> "Future[StoredSnapshot]": ...
    def rollback(self, snapshot_id: str, *, by: str, reason: str) -> "Future[str]":
        """Return a future of the model version that is served after the rollback."""

    def pause(self, by: str, reason: str) -> "Future[None]": ...
    def resume(self, by: str) -> "Future[None]": ...
    def keep_answered_image(self, prediction_id: str) -> None:
        """Write the image of an answered prediction to disk, if it is still in memory."""

    def forget_image(self, sha256: str) -> None:
        """Remove an image from the recent inputs, which answers refer to.

        Copies in the memories and the window of the method, and in snapshots, stay.
        """


async def wait_for_future(future: "Future[T]", seconds: float) -> T:
    """Return the result of another thread's work, or raise TimeoutError. The work continues."""
    wrapped = asyncio.wrap_future(future)
    # Retrieve the exception of work that fails after the timeout. asyncio would log it otherwise.
    wrapped.add_done_callback(_retrieve_exception)
    async with asyncio.timeout(seconds):
        return await asyncio.shield(wrapped)


def _retrieve_exception(done: "asyncio.Future[Any]") -> None:
    if not done.cancelled():
        done.exception()
