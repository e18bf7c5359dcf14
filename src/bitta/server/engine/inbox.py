"""Requests and orders on their way to the one thread that owns the model."""

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
class Request:
    """Samples to be served together."""

    inputs: Tensor
    request_id: str
    came_at: float = field(default_factory=monotonic)
    done: "Future[Any]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Something the worker is to do between two batches."""

    work: Callable[[], Any]
    done: "Future[Any]" = field(default_factory=Future)

    def carry_out(self) -> None:
        """Do it, and tell whoever waits for it."""
        try:
            self.done.set_result(self.work())
        except (BittaError, OSError) as error:
            self.done.set_exception(error)


def refuse(handed_out: Sequence[Request | Order], error: BittaError | RuntimeError) -> bool:
    """Tell those who still wait; whether anybody did."""
    told = (
        error if isinstance(error, BittaError) else ModelError(f"the model fails: {brief(error)}")
    )
    waiting = [one for one in handed_out if not one.done.done()]
    for one in waiting:
        one.done.set_exception(told)
    return bool(waiting)


def brief(error: BaseException) -> str:
    """The first line of what it says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class Inbox:
    """Hands out requests in batches; the first waits no longer than `max_wait` for others."""

    def __init__(self, *, max_batch: int, max_wait: float, capacity: int) -> None:
        self.max_batch, self.max_wait, self.capacity = max_batch, max_wait, capacity
        self._requests: deque[Request] = deque()
        self._orders: deque[Order] = deque()
        self._changed = Condition()
        self._waiting = 0
        self._sought = 1
        """Samples that are waited for: as many as came in several requests and shared a pass last,
        or any."""
        self._handed_out: list[Request | Order] = []

    @property
    def depth(self) -> int:
        """Samples that wait."""
        return self._waiting

    def put(self, request: Request) -> bool:
        """Whether there was room for it."""
        with self._changed:
            if self._requests and self._waiting + len(request.inputs) > self.capacity:
                return False
            self._requests.append(request)
            self._waiting += len(request.inputs)
            if len(self._requests) == 1 or self._waiting >= self._sought:
                self._changed.notify()  # between the two nobody needs to wake up
            return True

    def order(self, order: Order) -> None:
        """Before the next batch."""
        with self._changed:
            self._orders.append(order)
            self._changed.notify()

    def orders(self) -> list[Order]:
        """All there are; whatever was handed out before is over."""
        with self._changed:
            orders, self._orders = list(self._orders), deque()
            self._handed_out = list(orders)
            return orders

    def give_up(self, error: BittaError) -> None:
        """Refuse what was handed out and is not done: nobody works on it any more."""
        refuse(self._handed_out, error)

    def batch(self, *, patience: float) -> list[Request]:
        """The next requests, of one shape and at most `max_batch` samples unless one has more.

        Waits up to `patience` seconds for the first; an order ends the waiting, and comes before,
        but where there is no patience: then nobody can carry it out now.
        """
        with self._changed:
            if not self._requests and not self._orders and patience > 0:
                self._changed.wait(patience)
            if not self._requests:
                return []
            ready = self._requests[0].came_at + self.max_wait
            while self._together() < self._sought and not self._orders:
                left = ready - monotonic()
                if left <= 0 or patience <= 0:
                    break
                self._changed.wait(left)
            if self._orders and patience > 0:
                return []  # they come first
            taken = self._taken(max(self.max_batch, len(self._requests[0].inputs)))
            self._sought = sum(len(one.inputs) for one in taken) if len(taken) > 1 else 1
            return taken

    def overdue(self, *, most: int) -> list[Request]:
        """The next requests, at most so many samples, if none have to be waited for any longer."""
        with self._changed:
            if not self._requests:
                return []
            late = monotonic() >= self._requests[0].came_at + self.max_wait
            enough = self._together() >= min(most, self._sought)
            return self._taken(most) if late or enough else []

    def empty(self) -> list[Request | Order]:
        """Everything that waits, given up."""
        with self._changed:
            left: list[Request | Order] = [*self._requests, *self._orders]
            self._requests.clear()
            self._orders.clear()
            self._waiting = 0
            return left

    def _together(self) -> int:
        first = self._requests[0].inputs.shape[1:]
        total = 0
        for request in self._requests:
            if request.inputs.shape[1:] != first:
                break
            total += len(request.inputs)
        return total

    def _taken(self, most: int) -> list[Request]:
        shape = self._requests[0].inputs.shape[1:]
        taken: list[Request] = []
        total = 0
        while self._requests:
            following = self._requests[0].inputs
            if following.shape[1:] != shape or total + len(following) > most:
                break
            taken.append(self._requests.popleft())
            total += len(following)
        self._waiting -= total
        self._handed_out += taken
        return taken
