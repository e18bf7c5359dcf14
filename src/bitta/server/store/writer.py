"""Writing thread of the store, and the function that appends to the event log.

The thread commits all waiting changes in one transaction.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, insert

from bitta.server.store.errors import (
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreUnavailable,
    driver_message,
    translate_database_error,
)
from bitta.server.store.schema import events

T = TypeVar("T")
_MAX_GROUP = 256
"""Maximum number of changes in one transaction."""
_MAX_WAITING = 10_000
"""Queue limit. Above it only `must` changes are accepted."""
_GATHER_SECONDS = 0.02
"""Time for which `must` changes are gathered before a commit, because no caller waits for them."""
_RETRY_SECONDS = 0.2
"""Time between two attempts to write."""
_ERROR_MEMORY_SECONDS = 15.0
"""Time for which `last_error` reports a failure. It is longer than one attempt, which can take 10
seconds."""
_MAX_FINAL_ATTEMPTS = 3
"""Attempts to write `must` changes when the store is closed while the database is unavailable."""
_ADD_EVENT = insert(events).returning(events.c.seq)
_log = logging.getLogger(__name__)


def append_event(connection: Connection, *, kind: str, body: Mapping[str, Any], at: int) -> int:
    """Append an event to the log, and return its seq.

    The log holds everything that can change the model, in one order.
    """
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    return int(connection.execute(_ADD_EVENT, {"at": at, "kind": kind, "body": text}).scalar_one())


@dataclass(eq=False, slots=True)
class _Task(Generic[T]):
    change: Callable[[Connection], T]
    must: bool
    before: Callable[[], object] | None
    after: Callable[[T], object] | None
    future: Future[T] = field(default_factory=Future)

    def run_before(self) -> bool:
        """Run `before`. Return False if it failed; then the task is done."""
        try:
            if self.before is not None:
                self.before()
        except BaseException as error:  # the caller of `submit` gets any error
            self.future.set_exception(error)
            return False
        return True

    def finish(self, value: T) -> None:
        """Run `after` and set the result."""
        try:
            if self.after is not None:
                self.after(value)
        except BaseException as error:  # the caller of `submit` gets any error
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


@dataclass(frozen=True, slots=True)
class _Outcome:
    task: _Task[Any]
    value: Any
    error: BaseException | None

    def report(self) -> None:
        """Set the task's result or its error."""
        if self.error is None:
            self.task.finish(self.value)
        else:
            self.task.future.set_exception(self.error)


class Writer:
    """Thread that runs changes in the order of their submission, many in one transaction.

    An error in one change affects only that change. If the database is unavailable, all waiting
    changes fail or are tried again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._retries: list[_Task[Any]] = []
        """`must` tasks that the database could not store yet."""
        self._last_error: tuple[StoreUnavailable, float] | None = None
        """Last error of the database and its time; None after a successful commit."""
        self._is_closing = False
        self._is_awaited = threading.Event()
        """Set when a caller waits for a queued change. It ends the gathering of changes."""
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._thread = threading.Thread(target=self._run, name="bitta-store", daemon=True)
        self._thread.start()

    def submit(
        self,
        change: Callable[[Connection], T],
        *,
        must: bool,
        before: Callable[[], object] | None,
        after: Callable[[T], object] | None,
    ) -> Future[T]:
        """Queue a change. It cannot be cancelled."""
        task = _Task(change, must, before, after)
        task.future.set_running_or_notify_cancel()
        with self._lock:
            if self._is_closing:
                task.future.set_exception(StoreClosed("the store is closed; nothing was stored"))
            elif not must and self._queue.qsize() + len(self._retries) >= _MAX_WAITING:
                task.future.set_exception(
                    StoreBusy(f"{_MAX_WAITING} changes wait to be written; try again later")
                )
            else:
                self._queue.put(task)
        if not must:
            self._is_awaited.set()
        return task.future

    @property
    def last_error(self) -> StoreUnavailable | None:
        """Error of the last attempt to write, if it failed and was recent."""
        if self._last_error is None:
            return None
        error, at = self._last_error
        return error if monotonic() - at < _ERROR_MEMORY_SECONDS else None

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each commit. Return a function that removes it."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def remove() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return remove

    def close(self) -> None:
        """Write all queued changes, then end the thread."""
        with self._lock:
            if not self._is_closing:
                self._is_closing = True
                self._queue.put(None)
                self._is_awaited.set()
        self._thread.join()

    def _run(self) -> None:
        n_final_attempts = 0
        while n_final_attempts < _MAX_FINAL_ATTEMPTS:
            if self._retries:
                self._retry()
            elif group := self._take_group(timeout=None):
                self._commit(group)
            if self._is_closing and self._queue.empty():
                if not self._retries:
                    return
                n_final_attempts += 1
        for task in self._retries:
            task.future.set_exception(
                StoreClosed("the store was closed before the database could store this change")
            )

    def _retry(self) -> None:
        """Try the tasks again. The oldest goes first and alone, so that a failure costs little."""
        sleep(_RETRY_SECONDS)
        tasks, self._retries = self._retries, []
        n = 1
        while tasks:
            self._commit(tasks[:n])
            tasks = tasks[n:]
            if self._retries and self._last_error is not None:
                self._refuse(tasks + self._take_group(timeout=0), self._last_error[0])
                return
            n = _MAX_GROUP

    def _take_group(self, *, timeout: float | None) -> list[_Task[Any]]:
        """Take all queued tasks, up to the limit. Without a timeout, wait for the first one."""
        group: list[_Task[Any]] = []
        while len(group) < _MAX_GROUP:
            try:
                task = self._queue.get(timeout=timeout)
            except Empty:
                break
            if task is None:
                break
            group.append(task)
            if timeout is None:
                self._is_awaited.wait(_GATHER_SECONDS)
                self._is_awaited.clear()
            timeout = 0
        return group

    def _commit(self, group: list[_Task[Any]]) -> None:
        group = [task for task in group if task.run_before()]
        if not group:
            return
        try:
            outcomes = self._run_transaction(group)
        except BaseException as error:  # nothing was stored, and this thread must go on
            self._handle_failure(group, error)
            return
        if self._last_error is not None:
            self._last_error = None
            _log.warning("the database accepts changes again")
        for outcome in outcomes:
            outcome.report()
        self._call_listeners()

    def _run_transaction(self, group: list[_Task[Any]]) -> list[_Outcome]:
        """Run a group of tasks in one transaction.

        A savepoint costs as much as most changes. Savepoints are used only after a task failed.
        """
        try:
            with self._engine.begin() as connection:
                return [_Outcome(task, task.change(connection), None) for task in group]
        except BaseException as error:  # the second run finds the task that raised it
            if translate_database_error(error) is not None:
                raise
        with self._engine.begin() as connection:
            return [_run_in_savepoint(connection, task) for task in group]

    def _handle_failure(self, group: list[_Task[Any]], error: BaseException) -> None:
        translated = translate_database_error(error)
        if translated is not None and translated is not error:
            translated.__cause__ = error
        if len(group) > 1 and (translated is None or isinstance(translated, StoreFull)):
            # A single change may be too large, so try each one alone.
            for position, task in enumerate(group):
                if self._retries:
                    # Later tasks may depend on the one that waits.
                    self._refuse(group[position:], translated or error)
                    return
                self._commit([task])
        else:
            self._refuse(group, translated or error)

    def _refuse(self, group: list[_Task[Any]], error: BaseException) -> None:
        """Fail the tasks. Keep `must` tasks for a retry if the database is unavailable."""
        if isinstance(error, StoreUnavailable):
            if self._last_error is None:
                message = driver_message(error.__cause__ or error)
                _log.warning("the database does not accept changes: %s", message)
            self._last_error = error, monotonic()
        for task in group:
            if task.must and isinstance(error, StoreUnavailable):
                self._retries.append(task)
            else:
                task.future.set_exception(error)

    def _call_listeners(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except BaseException:  # a failing listener must not stop the thread
                _log.exception("a listener of the store failed")


def _run_in_savepoint(connection: Connection, task: _Task[Any]) -> _Outcome:
    savepoint = connection.begin_nested()
    try:
        value = task.change(connection)
        savepoint.commit()
    except BaseException as error:  # the caller of `submit` gets any error
        if translate_database_error(error) is not None:
            raise
        savepoint.rollback()
        return _Outcome(task, None, error)
    return _Outcome(task, value, None)
