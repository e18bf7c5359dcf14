"""GET /v1/events: the log as it grows, and the status every few seconds."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import Any

from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from bitta.server.api.auth import Caller, too_many
from bitta.server.api.feed import rung
from bitta.server.api.parts import Parts
from bitta.server.api.status import status_body
from bitta.server.store import LogEvent, StoreError

_PING = 15
_LOOK = 5.0
"""Seconds after which, at the latest, it is looked whether the key still is valid."""
_LAST = 2**63 - 1


def event_stream(
    parts: Parts, request: Request, caller: Caller, last_event_id: str | None
) -> EventSourceResponse:
    """A response that ends with the client, its key or session, or the server."""
    after = _seq(last_event_id)
    if parts.feed.n_streams >= parts.settings.limits.streams:
        raise too_many("too many event streams are open", 10.0)
    return EventSourceResponse(
        _messages(parts, request, caller, after),
        ping=_PING,
        send_timeout=parts.settings.limits.read_seconds,
        headers={"Cache-Control": "no-store"},
    )


def _seq(last_event_id: str | None) -> int | None:
    """Where to go on; what is no number of ours begins from now."""
    text = (last_event_id or "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    return min(int(text), _LAST)


async def _messages(
    parts: Parts, request: Request, caller: Caller, after: int | None
) -> AsyncIterator[ServerSentEvent]:
    feed, every = parts.feed, parts.settings.status_seconds
    place, told = after, 0.0
    with feed.listening(), feed.streaming():
        while not feed.closing:
            mark = feed.news.mark()
            try:
                if not await parts.auth.still(request, caller):
                    return
                if place is None:
                    place = await asyncio.to_thread(parts.store.last_seq)
                if monotonic() - told >= every:
                    status = await _status(parts, caller)
                    told = monotonic()
                    yield ServerSentEvent(status, event="status")
                events, place = await asyncio.to_thread(feed.read, place)
            except StoreError:  # the stream goes on when the database is back
                await rung(mark, min(_LOOK, every))
                continue
            for event in events:
                body = json.dumps(_shown(event, caller))
                yield ServerSentEvent(body, event=event.kind, id=str(event.seq))
            if not events:
                await rung(mark, min(_LOOK, max(0.05, told + every - monotonic())))


async def _status(parts: Parts, caller: Caller) -> str:
    return (await status_body(parts, caller)).model_dump_json()


def _shown(event: LogEvent, caller: Caller) -> Mapping[str, Any]:
    """Annotators are not told which questions are audits: it would change their answers."""
    if event.kind == "asked" and caller.role != "operator":
        return {"n": len(event.body.get("questions", ()))}
    return event.body
