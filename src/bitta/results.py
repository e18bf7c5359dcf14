"""What a run leaves behind: one JSON with its protocol, from which everything else is made."""

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from bitta.errors import InputError
from bitta.metrics import Reliability
from bitta.statefile import write_atomically
from bitta.version import __version__

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One batch."""

    domain: str
    n: int
    n_correct: int
    n_asked: int
    n_answered: int
    n_answered_correct: int
    losses: Mapping[str, float | None]
    """Mean of each term over the epochs; None where it was not finite."""
    seconds: float


@dataclass(frozen=True)
class RunResult:
    """One run: settings, circumstances, and what happened at each step."""

    experiment: Mapping[str, Any]
    """Every setting, defaults included."""
    protocol: str
    """Samples, order, reset, batch and seed of the stream."""
    environment: Mapping[str, Any]
    steps: Sequence[StepRecord]
    reliability: Reliability
    forwards: int
    """Samples times passes through the model; a fan-out of N counts N."""
    backwards: int
    peak_memory: int
    """Bytes: of tensors on a GPU, of the whole process on a CPU."""
    final_weights: str
    """Hash of the weights at the end."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.experiment["name"])

    @property
    def accuracy(self) -> float:
        """Percent right of everything served, each sample judged before it is learned from."""
        return percent_right(self.steps)

    @property
    def accuracy_by_domain(self) -> dict[str, float]:
        """Percent right in each domain."""
        domains = dict.fromkeys(step.domain for step in self.steps)
        return {d: percent_right([s for s in self.steps if s.domain == d]) for d in domains}

    def accuracy_by_part(self, parts: int) -> list[float]:
        """Percent right in equal parts of the stream, in order."""
        edges = [round(len(self.steps) * part / parts) for part in range(parts + 1)]
        return [percent_right(self.steps[a:b]) for a, b in pairwise(edges)]

    def total(self, count: str) -> int:
        """Sum of a count such as "n_asked" over the steps."""
        return sum(getattr(step, count) for step in self.steps)

    @property
    def seconds_per_batch(self) -> float:
        """Mean time to serve, select and learn."""
        return sum(step.seconds for step in self.steps) / len(self.steps)

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically."""
        summary = {
            "accuracy": self.accuracy,
            "accuracy_by_domain": self.accuracy_by_domain,
            "ece": self.reliability.ece,
            "questions": self.total("n_asked"),
            "answers": self.total("n_answered"),
            "answers_correct": self.total("n_answered_correct"),
            "seconds_per_batch": self.seconds_per_batch,
        }
        table = {"format": _FORMAT, "summary": summary, **asdict(self)}
        write_table(path, table)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result back."""
        table = read_table(path, form=_FORMAT, what="result")
        del table["summary"]
        table["steps"] = [StepRecord(**step) for step in table["steps"]]
        table["reliability"] = Reliability(**table["reliability"])
        return cls(**table)


def write_table(path: str | Path, table: Mapping[str, Any]) -> None:
    """Write as JSON, atomically."""
    write_atomically(path, (json.dumps(table, indent=1, allow_nan=False) + "\n").encode())


def read_table(path: str | Path, *, form: int, what: str) -> dict[str, Any]:
    """Read a JSON of this version back, without its format."""
    try:
        table = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} is not a readable {what} ({error}).") from None
    if not isinstance(table, dict) or table.pop("format", None) != form:
        raise InputError(f"{str(path)!r} is not a {what} of this version of bitta.")
    return table


def percent_right(steps: Collection[StepRecord]) -> float:
    """Accuracy over some steps, each sample counting once."""
    n = sum(step.n for step in steps)
    return 100 * sum(step.n_correct for step in steps) / n if n else 0.0


def environment(device: torch.device, weights: str) -> dict[str, Any]:
    """Versions, machine and source weights: what a result must not be compared without."""
    return {
        "bitta": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "source_weights": weights,
    }
