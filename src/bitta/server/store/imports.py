"""Answers read back from the lines of an export."""

import json

from bitta.errors import InputError
from bitta.server.store.records import ExportedAnswer, NewAnswer

_NEEDED = ("prediction_id", "verdict", "annotator_id", "idempotency_key")
_GIVEN = (
    *_NEEDED,
    *("annotator_kind", "comment", "metadata", "shown_at", "answered_at", "lead_time_ms", "weight"),
)
_BECAME = ("id", "uncertainty", "selection_reason", "supersedes_id", "standing", "undone")


def read(line: str) -> ExportedAnswer:
    """Read a line of JSON; what the store says of the prediction itself is left."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is no JSON: {error}") from None
    if not isinstance(told, dict):
        raise InputError(f"it is {type(told).__name__}; give an object per line")
    if missing := [name for name in _NEEDED if name not in told]:
        raise InputError(f"it has no {missing[0]}; every answer needs {', '.join(_NEEDED)}")
    given = NewAnswer(**{name: told[name] for name in _GIVEN if name in told})
    return ExportedAnswer(given, **{name: told[name] for name in _BECAME if name in told})
