"""Whether the server lives, and whether it can do what it is for."""

import asyncio
import shutil
from time import monotonic

from bitta.errors import BittaError
from bitta.server.api.feed import Feed
from bitta.server.api.ports import Engine
from bitta.server.api.waiting import outcome
from bitta.server.settings import ServeSettings
from bitta.server.store import Store

_FRESH = 1.0
_PATIENCE = 5.0
_ROOM = 16 * 2**20
"""Bytes without which nothing more should be promised."""


class Health:
    """Answers probes, which need no key: one real check per second, however many come."""

    def __init__(self, engine: Engine, store: Store, settings: ServeSettings, feed: Feed) -> None:
        self._engine, self._store, self._settings, self._feed = engine, store, settings, feed
        self._checked: tuple[float, str] | None = None
        self._lock = asyncio.Lock()

    def live(self) -> str:
        """Empty, or what is wrong in a way that only a restart mends."""
        return "" if self._engine.alive else "the worker that owns the model does not go round."

    async def ready(self) -> str:
        """Empty, or why requests should go elsewhere for now."""
        if self._feed.closing:
            return "the server is shutting down."
        async with self._lock:
            if self._checked is None or monotonic() - self._checked[0] > _FRESH:
                problem = self.live() or await self._answering() or await self._storable()
                self._checked = monotonic(), problem
            return self._checked[1]

    async def _answering(self) -> str:
        try:
            await outcome(self._engine.ping(), _PATIENCE)
        except TimeoutError:
            if self._engine.idle < _PATIENCE:  # a long step, inside which it serves
                return ""
            return f"the worker has not come round for {_PATIENCE:g} seconds."
        except BittaError as error:
            return str(error)
        return ""

    async def _storable(self) -> str:
        data_dir = self._settings.data_dir
        try:
            free = (await asyncio.to_thread(shutil.disk_usage, data_dir)).free
            if free < _ROOM:
                return f"the disk of the data folder has {free:,} bytes left."
            # A change that changes nothing takes the writer's way all the same.
            await outcome(self._store.expire_questions(0), _PATIENCE)
        except TimeoutError:
            return f"the store has not written for {_PATIENCE:g} seconds."
        except (OSError, BittaError) as error:
            return f"the store cannot be written: {error}"
        return ""
