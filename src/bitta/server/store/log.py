"""The log: everything that can change the model, in one order."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert

from bitta.server.store.tables import events

_ADD = insert(events).returning(events.c.seq)


def append(connection: Connection, *, kind: str, body: Mapping[str, Any], at: int) -> int:
    """Add an event; its seq."""
    written = json.dumps(body, separators=(",", ":"), allow_nan=False)
    return int(connection.execute(_ADD, {"at": at, "kind": kind, "body": written}).scalar_one())
