"""Event log over HTTP: notify waiting requests of new entries, and stream them to browsers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from bitta.server.api.authentication import Caller
from bitta.server.api.errors import too_many_requests
from bitta.server.api.status import status_body
from bitta.server.store import LogEvent, Store, StoreError

if TYPE_CHECKING:
    from bitta.server.api.dependencies import AppState

STREAMED_KINDS = (
    "started", "recovered", "asked", "answered", "undone", "learned", "snapshot", "rollback",
    "paused", "resumed", "image_deleted", "expired",
)  # fmt: skip
"""Kinds of events that streams send. Served batches are too many; the status counts them."""
_QUESTION_KINDS = frozenset(("asked", "undone", "expired"))
"""Kinds of events after which an annotator may get a question."""
_POLL_SECONDS = 0.1
"""Minimum time between two reads of the log."""
_RETRY_SECONDS = 1.0
"""Time after which an unreadable database is read again."""
_MAX_EVENTS_PER_READ = 500
_PING_SECONDS = 15
_KEY_CHECK_SECONDS = 5.0
"""Maximum time between two checks of the key of an open stream."""
_MAX_SEQ = 2**63 - 1


class Notifier:
    """Wakes all tasks that wait for the next notification."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all waiting tasks."""
        notified, self._next = self._next, asyncio.Event()
        notified.set()

    def next_notification(self) -> asyncio.Event:
        """Return the event of the next notification.

        Take it before reading the log, so that no entry is missed between reading and waiting.
        """
        return self._next


async def wait_for_notification(notification: asyncio.Event, seconds: float) -> bool:
    """Return True as soon as the notification comes, or False after the timeout."""
    try:
        async with asyncio.timeout(seconds):
            return await notification.wait()
    except TimeoutError:
        return False


class LogWatcher:
    """Reads the log after each commit and notifies the requests that wait for entries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_new_commits = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._remove_listener: Callable[[], None] | None = None
        self.new_events, self.new_questions = Notifier(), Notifier()
        self.n_waiting = 0
        """Requests that wait for a notification, streams included."""
        self.n_streams = 0
        self.is_closing = False
        """True when the server stops: waiting requests end."""

    def start(self) -> None:
        """Listen to commits of the store, in the running event loop."""
        loop = asyncio.get_running_loop()
        self.is_closing = False

        def on_commit() -> None:
            if self.n_waiting and not loop.is_closed():
                loop.call_soon_threadsafe(self._has_new_commits.set)

        self._remove_listener = self._store.add_listener(on_commit)
        self._task = loop.create_task(self._watch())

    def end_waits(self) -> None:
        """Make all waiting requests end."""
        self.is_closing = True
        self.new_events.notify()
        self.new_questions.notify()

    async def stop(self) -> None:
        """End all waits and stop listening."""
        self.end_waits()
        if self._remove_listener is not None and self._task is not None:
            self._remove_listener()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count a waiting request. The log is watched only while there is one."""
        self.n_waiting += 1
        try:
            yield
        finally:
            self.n_waiting -= 1

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count an open stream."""
        self.n_streams += 1
        try:
            yield
        finally:
            self.n_streams -= 1

    def read(self, after: int) -> tuple[Sequence[LogEvent], int]:
        """Return the next events to stream, and the seq up to which the log was read. It blocks."""
        last_seq = self._store.last_seq()
        events = self._store.events(after=after, limit=_MAX_EVENTS_PER_READ, kinds=STREAMED_KINDS)
        if len(events) == _MAX_EVENTS_PER_READ:
            return events, events[-1].seq
        return events, max(after, last_seq)

    async def _watch(self) -> None:
        position = 0
        with suppress(StoreError):
            position = await asyncio.to_thread(self._store.last_seq)
        while True:
            await self._has_new_commits.wait()
            self._has_new_commits.clear()
            try:
                events, position = await asyncio.to_thread(self.read, position)
            except StoreError:
                self._has_new_commits.set()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if events:
                self.new_events.notify()
            if any(event.kind in _QUESTION_KINDS for event in events):
                self.new_questions.notify()
            await asyncio.sleep(_POLL_SECONDS)


def event_stream(
    state: "AppState", request: Request, caller: Caller, last_event_id: str | None
) -> EventSourceResponse:
    """Return a stream of events.

    It ends when the client disconnects, the key or session ends, or the server stops.
    """
    if state.log_watcher.n_streams >= state.settings.limits.max_event_streams:
        raise too_many_requests("too many event streams are open", 10.0)
    return EventSourceResponse(
        _messages(state, request, caller, _parse_seq(last_event_id)),
        ping=_PING_SECONDS,
        send_timeout=state.settings.limits.read_seconds,
        headers={"Cache-Control": "no-store"},
    )


def _parse_seq(last_event_id: str | None) -> int | None:
    """Return the seq after which the stream continues; None to start with new events."""
    text = (last_event_id or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    return min(int(text), _MAX_SEQ)


async def _messages(
    state: "AppState", request: Request, caller: Caller, after: int | None
) -> AsyncIterator[ServerSentEvent]:
    watcher, status_seconds = state.log_watcher, state.settings.status_seconds
    position, status_sent_at = after, 0.0
    with watcher.waiting(), watcher.streaming():
        while not watcher.is_closing:
            notification = watcher.new_events.next_notification()
            try:
                if not await state.authenticator.is_still_valid(request, caller):
                    return
                if position is None:
                    position = await asyncio.to_thread(state.store.last_seq)
                if monotonic() - status_sent_at >= status_seconds:
                    status = await status_body(state, caller)
                    status_sent_at = monotonic()
                    yield ServerSentEvent(status.model_dump_json(), event="status")
                events, position = await asyncio.to_thread(watcher.read, position)
            except StoreError:  # continue when the database is back
                await wait_for_notification(notification, min(_KEY_CHECK_SECONDS, status_seconds))
                continue
            for event in events:
                body = json.dumps(_event_body(event, caller))
                yield ServerSentEvent(body, event=event.kind, id=str(event.seq))
            if not events:
                next_status_in = max(0.05, status_sent_at + status_seconds - monotonic())
                await wait_for_notification(notification, min(_KEY_CHECK_SECONDS, next_status_in))


def _event_body(event: LogEvent, caller: Caller) -> Mapping[str, Any]:
    """Return the body that this caller may see.

    Only operators see which questions are audits, because this knowledge biases answers.
    """
    if event.kind == "asked" and caller.role != "operator":
        return {"n": len(event.body.get("questions", ()))}
    return event.body
