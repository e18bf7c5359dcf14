"""Waiting in the event loop for work of another thread."""

import asyncio
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


async def outcome(future: "Future[T]", seconds: float) -> T:
    """What comes of it; TimeoutError where it takes longer, and then it goes on unheard."""
    wrapped = asyncio.wrap_future(future)
    # Nobody may be there any more when it fails, which is no mistake of ours to be logged.
    wrapped.add_done_callback(_heard)
    async with asyncio.timeout(seconds):
        return await asyncio.shield(wrapped)


def _heard(done: "asyncio.Future[Any]") -> None:
    if not done.cancelled():
        done.exception()
