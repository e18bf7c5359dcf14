"""What `bitta speed` leaves behind: one JSON, complete after every case."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bitta.metrics import SpeedMeasurement
from bitta.results import read_table, write_table

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """Measurements of one machine under one set of conditions."""

    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    """Everything the command was given."""
    matmul: Mapping[str, float]
    """Operations per second of one large matrix product, by precision."""
    measurements: Sequence[SpeedMeasurement]

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically."""
        table = {
            "format": _FORMAT,
            "environment": dict(self.environment),
            "settings": dict(self.settings),
            "matmul": dict(self.matmul),
            "measurements": [measurement.as_table() for measurement in self.measurements],
        }
        write_table(path, table)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result back."""
        table = read_table(path, format_number=_FORMAT, kind="speed result")
        table["measurements"] = [
            SpeedMeasurement.from_table(each) for each in table["measurements"]
        ]
        return cls(**table)
