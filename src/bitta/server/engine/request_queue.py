"""Queue of inference requests and tasks for the thread that owns the model."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic
from typing import Any

from torch import Tensor

from bitta.errors import BittaError, ModelError


@dataclass(frozen=True, slots=True, eq=False)
class InferenceRequest:
    """Samples that are served together."""

    inputs: Tensor
    request_id: str
    received_at: float = field(default_factory=monotonic)
    future: "Future[Any]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class WorkerTask:
    """Function that the worker runs after its current batch or learning step."""

    function: Callable[[], Any]
    future: "Future[Any]" = field(default_factory=Future)

    def run(self) -> None:
        """Run the function and set the future to its result or error."""
        try:
            self.future.set_result(self.function())
        except (BittaError, OSError) as error:
            self.future.set_exception(error)


def fail_unfinished(
    items: Sequence[InferenceRequest | WorkerTask], error: BittaError | RuntimeError
) -> bool:
    """Set the error on all unfinished futures. Return True if there was one."""
    if not isinstance(error, BittaError):
        error = ModelError(f"the model fails: {first_line(error)}")
    unfinished = [item for item in items if not item.future.done()]
    for item in unfinished:
        item.future.set_exception(error)
    return bool(unfinished)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class RequestQueue:
    """Queue that returns requests in batches.

    A request waits at most `max_wait_seconds` for others to join its batch.
    """

    def __init__(self, *, max_batch: int, max_wait_seconds: float, capacity: int) -> None:
        self.max_batch, self.max_wait_seconds = max_batch, max_wait_seconds
        self.capacity = capacity
        self._requests: deque[InferenceRequest] = deque()
        self._tasks: deque[WorkerTask] = deque()
        self._changed = Condition()
        self._n_waiting = 0
        self._n_expected = 1
        """Number of samples to wait for: as many as the last batch had if it combined several
        requests, else 1."""
        self._taken: list[InferenceRequest | WorkerTask] = []

    @property
    def n_waiting(self) -> int:
        """Number of samples in the queue."""
        return self._n_waiting

    def put(self, request: InferenceRequest) -> bool:
        """Add a request. Return False if the queue is full."""
        with self._changed:
            if self._requests and self._n_waiting + len(request.inputs) > self.capacity:
                return False
            self._requests.append(request)
            self._n_waiting += len(request.inputs)
            if len(self._requests) == 1 or self._n_waiting >= self._n_expected:
                self._changed.notify()
            return True

    def put_task(self, task: WorkerTask) -> None:
        """Add a task. It runs after the current batch or learning step."""
        with self._changed:
            self._tasks.append(task)
            self._changed.notify()

    def take_tasks(self) -> list[WorkerTask]:
        """Take all tasks. Everything taken earlier counts as finished."""
        with self._changed:
            tasks, self._tasks = list(self._tasks), deque()
            self._taken = list(tasks)
            return tasks

    def fail_taken(self, error: BittaError) -> None:
        """Set the error on everything that was taken and is not finished."""
        fail_unfinished(self._taken, error)

    def next_batch(self, *, timeout: float) -> list[InferenceRequest]:
        """Take the next requests, all of one sample shape.

        They have at most `max_batch` samples, unless a single request has more. The call waits up
        to `timeout` seconds for the first request. If a task waits, the batch is empty, so that the
        caller can run the task first; with a `timeout` of 0, tasks are ignored.
        """
        with self._changed:
            if not self._requests and not self._tasks and timeout > 0:
                self._changed.wait(timeout)
            if not self._requests:
                return []
            deadline = self._requests[0].received_at + self.max_wait_seconds
            while self._n_combinable() < self._n_expected and not self._tasks:
                seconds = deadline - monotonic()
                if seconds <= 0 or timeout <= 0:
                    break
                self._changed.wait(seconds)
            if self._tasks and timeout > 0:
                return []
            batch = self._take(max(self.max_batch, len(self._requests[0].inputs)))
            n_samples = sum(len(request.inputs) for request in batch)
            self._n_expected = n_samples if len(batch) > 1 else 1
            return batch

    def next_due_batch(self, *, max_samples: int) -> list[InferenceRequest]:
        """Take the next requests if the first one is due, or if enough samples wait."""
        with self._changed:
            if not self._requests:
                return []
            is_late = monotonic() >= self._requests[0].received_at + self.max_wait_seconds
            has_enough = self._n_combinable() >= min(max_samples, self._n_expected)
            return self._take(max_samples) if is_late or has_enough else []

    def clear(self) -> list[InferenceRequest | WorkerTask]:
        """Remove and return everything that waits."""
        with self._changed:
            waiting: list[InferenceRequest | WorkerTask] = [*self._requests, *self._tasks]
            self._requests.clear()
            self._tasks.clear()
            self._n_waiting = 0
            return waiting

    def _n_combinable(self) -> int:
        """Count the samples at the front of the queue that have the same shape."""
        shape = self._requests[0].inputs.shape[1:]
        n_samples = 0
        for request in self._requests:
            if request.inputs.shape[1:] != shape:
                break
            n_samples += len(request.inputs)
        return n_samples

    def _take(self, max_samples: int) -> list[InferenceRequest]:
        shape = self._requests[0].inputs.shape[1:]
        batch: list[InferenceRequest] = []
        n_samples = 0
        while self._requests:
            inputs = self._requests[0].inputs
            if inputs.shape[1:] != shape or n_samples + len(inputs) > max_samples:
                break
            batch.append(self._requests.popleft())
            n_samples += len(inputs)
        self._n_waiting -= n_samples
        self._taken += batch
        return batch
