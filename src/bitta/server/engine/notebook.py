"""What the guard knows, on disk: a restart must not take a model that has gone bad for normal."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

_NAME = "watch.json"
_PERIOD = 5.0  # seconds, of which a crash loses what the guard has seen
_log = logging.getLogger(__name__)


class Kept(Protocol):
    """Something with a state of plain numbers."""

    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...  # noqa: D102


class Notebook:
    """One file in the data folder, written over as a whole."""

    def __init__(self, data_dir: Path, parts: Mapping[str, Kept]) -> None:
        self._path = data_dir / _NAME
        self._parts = parts
        self._written = 0.0

    def read(self) -> None:
        """Go on with what was written last; where it cannot be used, that is said and no more."""
        try:
            known = json.loads(self._path.read_text())
            for name, part in self._parts.items():
                part.load_state_dict(known[name])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the guard begins anew, as %s cannot be used: %s", _NAME, error)

    def write(self, *, now: bool = False) -> None:
        """Every few seconds, or `now`; a disk without room is no reason to stop."""
        if not now and monotonic() - self._written < _PERIOD:
            return
        self._written = monotonic()
        draft = self._path.with_suffix(".draft")
        try:
            known = {name: part.state_dict() for name, part in self._parts.items()}
            draft.write_text(json.dumps(known))
            os.replace(draft, self._path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            _log.warning("what the guard knows is not kept: %s", error.strerror)
