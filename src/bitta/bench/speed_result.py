"""What `bitta speed` leaves behind: one JSON, complete after every case."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bitta.errors import InputError
from bitta.metrics import Measurement
from bitta.statefile import write_atomically

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """Measurements of one machine under one set of conditions."""

    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    """Everything the command was given."""
    matmul: Mapping[str, float]
    """Operations per second of one large matrix product, by precision."""
    measurements: Sequence[Measurement]

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically."""
        table = {
            "format": _FORMAT,
            "environment": dict(self.environment),
            "settings": dict(self.settings),
            "matmul": dict(self.matmul),
            "measurements": [measurement.as_table() for measurement in self.measurements],
        }
        write_atomically(path, (json.dumps(table, indent=1, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result back."""
        try:
            table = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{str(path)!r} is not a readable result ({error}).") from None
        if not isinstance(table, dict) or table.pop("format", None) != _FORMAT:
            raise InputError(f"{str(path)!r} is not a speed result of this version of bitta.")
        table["measurements"] = [Measurement.of(each) for each in table["measurements"]]
        return cls(**table)
