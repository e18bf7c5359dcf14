"""News of the log for those who wait: long polls and event streams."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from bitta.server.store import LogEvent, Store, StoreError

TOLD = (
    "started", "recovered", "asked", "answered", "undone", "learned", "snapshot", "rollback",
    "paused", "resumed", "image_deleted", "expired", "unusable",
)  # fmt: skip
"""Kinds that streams tell; what was served is in the status, as it would be too many."""
_WITH_QUESTIONS = frozenset(("asked", "undone", "expired"))
"""Kinds after which there may be a question for somebody who had none."""
_CALM = 0.1
"""Seconds between two looks at the log, however much is written."""
_TROUBLED = 1.0
"""Seconds before a database that could not be read is read again."""
_AT_ONCE = 500


class Feed:
    """Rings when something was logged that somebody may wait for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._n_listening = 0
        self.news, self.questions = Bell(), Bell()
        self.n_streams = 0
        self.closing = False
        """Waits end at once from now on."""

    def open(self) -> None:
        """Begin to hear of commits, in the running loop."""
        loop = asyncio.get_running_loop()
        self.closing = False

        def heard() -> None:
            if self._n_listening and not loop.is_closed():
                loop.call_soon_threadsafe(self._grown.set)

        self._unlisten = self._store.add_listener(heard)
        self._task = loop.create_task(self._watch())

    def end(self) -> None:
        """Send everybody home who waits."""
        self.closing = True
        self.news.ring()
        self.questions.ring()

    async def close(self) -> None:
        """Hear no more."""
        self.end()
        if self._unlisten is not None and self._task is not None:
            self._unlisten()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this is open, the bells ring."""
        self._n_listening += 1
        try:
            yield
        finally:
            self._n_listening -= 1

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """While this is open, a stream is."""
        self.n_streams += 1
        try:
            yield
        finally:
            self.n_streams -= 1

    def read(self, after: int) -> tuple[Sequence[LogEvent], int]:
        """Events that are told, and the place up to which the log has been read (blocking)."""
        top = self._store.last_seq()
        events = self._store.events(after=after, limit=_AT_ONCE, kinds=TOLD)
        return events, events[-1].seq if len(events) == _AT_ONCE else max(after, top)

    async def _watch(self) -> None:
        place = 0
        with suppress(StoreError):
            place = await asyncio.to_thread(self._store.last_seq)
        while True:
            await self._grown.wait()
            self._grown.clear()
            try:
                events, place = await asyncio.to_thread(self.read, place)
            except StoreError:  # read again once the database is back
                self._grown.set()
                await asyncio.sleep(_TROUBLED)
                continue
            if events:
                self.news.ring()
            if any(event.kind in _WITH_QUESTIONS for event in events):
                self.questions.ring()
            await asyncio.sleep(_CALM)


class Bell:
    """Wakes everybody who took a mark before it rang."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake them."""
        rung, self._event = self._event, asyncio.Event()
        rung.set()

    def mark(self) -> asyncio.Event:
        """To be taken before the log is read, so that nothing is missed in between."""
        return self._event


async def rung(mark: asyncio.Event, seconds: float) -> bool:
    """Whether it rang since the mark was taken, within the time."""
    try:
        async with asyncio.timeout(seconds):
            return await mark.wait()
    except TimeoutError:
        return False
