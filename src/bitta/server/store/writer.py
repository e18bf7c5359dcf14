"""One thread that writes: it takes whatever waits, and commits it at once."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine

from bitta.server.store.errors import StoreBusy, StoreClosed, StoreFull, StoreUnavailable
from bitta.server.store.trouble import reason, trouble

T = TypeVar("T")
_MOST_AT_ONCE = 256
_MOST_WAITING = 10_000
"""Beyond which only what has happened already is taken; whoever serves bounds that."""
_SECONDS_BEHIND = 0.02
"""For which changes that have happened already, so that nobody waits for them, gather."""
_SECONDS_BETWEEN_TRIES = 0.2
_LATELY = 15.0
"""Seconds for which a failure says something about the next change; a try may take 10."""
_LAST_TRIES = 3
"""Of changes that must be written, when the store is closed while the database cannot take them."""
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Task(Generic[T]):
    change: Callable[[Connection], T]
    must: bool
    before: Callable[[], object] | None
    after: Callable[[T], object] | None
    future: Future[T] = field(default_factory=Future)

    def prepared(self) -> bool:
        """Whether what comes before the change could be done; else it is over."""
        try:
            if self.before is not None:
                self.before()
        except BaseException as error:  # whatever it is, it belongs to the one who asked
            self.future.set_exception(error)
            return False
        return True

    def done(self, value: T) -> None:
        try:
            if self.after is not None:
                self.after(value)
        except BaseException as error:  # whatever it is, it belongs to the one who asked
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


@dataclass(frozen=True, slots=True)
class _Outcome:
    task: _Task[Any]
    value: Any
    error: BaseException | None

    def tell(self) -> None:
        if self.error is None:
            self.task.done(self.value)
        else:
            self.task.future.set_exception(self.error)


class Writer:
    """Runs changes in the order they came, many in one transaction; an error harms only its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._again: list[_Task[Any]] = []
        self._trouble: tuple[StoreUnavailable, float] | None = None
        self._closing = False
        self._hurry = threading.Event()
        """Set while somebody waits for a change."""
        self._entry = threading.Lock()
        self._heard: tuple[Callable[[], None], ...] = ()
        self._thread = threading.Thread(target=self._write, name="bitta-store", daemon=True)
        self._thread.start()

    def submit(
        self,
        change: Callable[[Connection], T],
        *,
        must: bool,
        before: Callable[[], object] | None,
        after: Callable[[T], object] | None,
    ) -> Future[T]:
        """Put a change into the line; from here on it cannot be cancelled."""
        task = _Task(change, must, before, after)
        task.future.set_running_or_notify_cancel()
        with self._entry:
            if self._closing:
                task.future.set_exception(StoreClosed("the store is closed; nothing was stored"))
            elif not must and self._waiting.qsize() + len(self._again) >= _MOST_WAITING:
                task.future.set_exception(
                    StoreBusy(f"{_MOST_WAITING} changes wait to be written; try again later")
                )
            else:
                self._waiting.put(task)
        if not must:
            self._hurry.set()
        return task.future

    @property
    def trouble(self) -> StoreUnavailable | None:
        """Why the last changes could not be written, if that was lately."""
        found = self._trouble
        return found[0] if found is not None and monotonic() - found[1] < _LATELY else None

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` after each commit until the returned function is called."""
        with self._entry:
            self._heard = (*self._heard, heard)

        def stop() -> None:
            with self._entry:
                self._heard = tuple(other for other in self._heard if other is not heard)

        return stop

    def close(self) -> None:
        """Write everything that waits, and end."""
        with self._entry:
            if not self._closing:
                self._closing = True
                self._waiting.put(None)
                self._hurry.set()
        self._thread.join()

    def _write(self) -> None:
        last_tries = 0
        while last_tries < _LAST_TRIES:
            if self._again:
                self._try_again()
            elif group := self._take(timeout=None):
                self._commit(group)
            if self._closing and self._waiting.empty():
                if not self._again:
                    return
                last_tries += 1
        for task in self._again:
            task.future.set_exception(
                StoreClosed("the store was closed before the database could take this change")
            )

    def _try_again(self) -> None:
        """What waited longest goes first and alone, so that a try costs little while it fails."""
        sleep(_SECONDS_BETWEEN_TRIES)
        waited, self._again = self._again, []
        most = 1
        while waited:
            self._commit(waited[:most])
            waited = waited[most:]
            if self._again and self._trouble is not None:
                self._refuse(waited + self._take(timeout=0), self._trouble[0])
                return
            most = _MOST_AT_ONCE

    def _take(self, *, timeout: float | None) -> list[_Task[Any]]:
        """Whatever waits."""
        group: list[_Task[Any]] = []
        while len(group) < _MOST_AT_ONCE:
            try:
                task = self._waiting.get(timeout=timeout)
            except Empty:
                break
            if task is None:
                break
            group.append(task)
            if timeout is None:
                self._hurry.wait(_SECONDS_BEHIND)
                self._hurry.clear()
            timeout = 0
        return group

    def _commit(self, group: list[_Task[Any]]) -> None:
        group = [task for task in group if task.prepared()]
        if not group:
            return
        try:
            outcomes = self._together(group)
        except BaseException as error:  # nothing was stored, and this thread has to go on
            self._failed(group, error)
            return
        if self._trouble is not None:
            self._trouble = None
            _log.warning("the database takes changes again")
        for outcome in outcomes:
            outcome.tell()
        self._tell_listeners()

    def _together(self, group: list[_Task[Any]]) -> list[_Outcome]:
        """Run a group in one transaction.

        A savepoint costs as much as most changes, so there are none until a change has failed.
        """
        try:
            with self._engine.begin() as connection:
                return [_Outcome(task, task.change(connection), None) for task in group]
        except BaseException as error:  # whose it is will show
            if trouble(error) is not None:
                raise
        with self._engine.begin() as connection:
            return [_guarded(connection, task) for task in group]

    def _failed(self, group: list[_Task[Any]], error: BaseException) -> None:
        if (why := trouble(error)) is not None and why is not error:
            why.__cause__ = error
        if len(group) > 1 and (why is None or isinstance(why, StoreFull)):
            # One change may be what does not fit, so each is tried alone.
            for place, task in enumerate(group):
                if self._again:
                    # Those behind one that waits may depend on it.
                    self._refuse(group[place:], why or error)
                    return
                self._commit([task])
        else:
            self._refuse(group, why or error)

    def _refuse(self, group: list[_Task[Any]], error: BaseException) -> None:
        if isinstance(error, StoreUnavailable):
            if self._trouble is None:
                _log.warning("the database takes no changes: %s", reason(error.__cause__ or error))
            self._trouble = error, monotonic()
        for task in group:
            if task.must and isinstance(error, StoreUnavailable):
                self._again.append(task)
            else:
                task.future.set_exception(error)

    def _tell_listeners(self) -> None:
        for heard in self._heard:
            try:
                heard()
            except BaseException:  # a listener that fails must not stop the writing
                _log.exception("a listener of the store failed")


def _guarded(connection: Connection, task: _Task[Any]) -> _Outcome:
    savepoint = connection.begin_nested()
    try:
        value = task.change(connection)
        savepoint.commit()
    except BaseException as error:  # whatever it is, it belongs to the one who asked
        if trouble(error) is not None:
            raise
        savepoint.rollback()
        return _Outcome(task, None, error)
    return _Outcome(task, value, None)
