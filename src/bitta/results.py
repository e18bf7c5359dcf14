"""What a run leaves behind: one JSON with its protocol, from which everything else is made."""

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import torch

from bitta.errors import InputError, UnreadableFileError
from bitta.metrics import (
    Agreement,
    LabelEntropies,
    Reliability,
    find_low_accuracy_domains,
    find_low_entropy_domains,
)
from bitta.statefile import write_atomically
from bitta.version import __version__

_FORMAT = 2
_SHOWN_ONLY = ("cli/", "client/", "report/", "server/")
"""What starts runs and shows results changes none."""
_NOT_FINITE = "nan"
"""A loss that was there but was no number; one that was not there is null."""


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
    brier: float | None = None
    """Sum over its samples, 0 to 2 each; None where it was not measured."""
    n_measured: int = 0
    """Samples on which the policy was computed, to choose questions."""
    n_agreeing: int = 0
    """As many of these as were served the policy's own first choice."""
    n_agreeing_correct: int = 0
    confidence: float | None = None
    """Sum over its samples of what the label served had; None where it was not measured."""
    policy_confidence: float | None = None
    """Sum of the policy's, each time in its own first choice, where it was computed."""


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
    spreads: LabelEntropies = field(default_factory=dict)
    policy_reliability: Reliability = field(default_factory=Reliability)
    """Of the policy, on the samples on which it was computed; empty where it never was."""

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.experiment["name"])

    @property
    def accuracy(self) -> float:
        """Percent right of everything served, each sample judged before it is learned from."""
        return percent_right(self.steps)

    @cached_property
    def accuracy_by_domain(self) -> dict[str, float]:
        """Percent right in each domain."""
        by_domain: dict[str, list[StepRecord]] = {}
        for step in self.steps:
            by_domain.setdefault(step.domain, []).append(step)
        return {domain: percent_right(steps) for domain, steps in by_domain.items()}

    def accuracy_by_part(self, parts: int) -> list[float]:
        """Percent right in equal parts of the stream, in order."""
        edges = [round(len(self.steps) * part / parts) for part in range(parts + 1)]
        return [percent_right(self.steps[a:b]) for a, b in pairwise(edges)]

    def total(self, count: str) -> int:
        """Sum of a count such as "n_asked" over the steps."""
        return sum(getattr(step, count) for step in self.steps)

    @property
    def lost_at(self) -> int | None:
        """The first batch, from 1, in which nothing served was a number; None where all were."""
        return next((n for n, step in enumerate(self.steps, 1) if step.confidence == 0), None)

    @property
    def ece(self) -> float | None:
        """Calibration error of what was served, in percent; None where that ceased to be numbers,
        which would pass for doubt that is well founded."""
        return self.reliability.ece if self.lost_at is None else None

    @property
    def policy_ece(self) -> float | None:
        """That of the policy; None as well where it was not computed, or nobody measured it."""
        measured = any(self.policy_reliability.count) and self.lost_at is None
        return self.policy_reliability.ece if measured else None

    @property
    def brier(self) -> float | None:
        """Mean over samples of Σ (p - one-hot)²; None where it was not measured."""
        sums = [step.brier for step in self.steps if step.brier is not None]
        n = sum(step.n for step in self.steps if step.brier is not None)
        return sum(sums) / n if n else None

    @property
    def agreement(self) -> Agreement:
        """How often the policy agreed with what was served, where it was computed."""
        measured = [step for step in self.steps if step.n_measured]
        return Agreement(
            sum(step.n_measured for step in measured),
            sum(step.n_agreeing for step in measured),
            sum(step.n_agreeing_correct for step in measured),
            sum(step.n_correct for step in measured),
        )

    @property
    def looks_collapsed(self) -> list[str]:
        """Domains in which far fewer classes were served than there are."""
        return find_low_entropy_domains(self.spreads)

    def collapsed(self, source: Self) -> list[str]:
        """Domains in which accuracy was less than half of what the source model has there."""
        return find_low_accuracy_domains(self.accuracy_by_domain, source.accuracy_by_domain)

    @property
    def seconds_per_batch(self) -> float:
        """Mean time to serve, select and learn."""
        return sum(step.seconds for step in self.steps) / len(self.steps)

    @property
    def median_seconds(self) -> float:
        """Of a batch: the first, for which libraries are loaded, weighs no more than another."""
        return median(step.seconds for step in self.steps)

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically."""
        agreement = self.agreement
        summary = {
            "accuracy": self.accuracy,
            "accuracy_by_domain": self.accuracy_by_domain,
            "ece": self.ece,
            "policy_ece": self.policy_ece,
            "brier": self.brier,
            "agreement": agreement.rate,
            "accuracy_agreeing": agreement.accuracy_agreeing,
            "accuracy_disagreeing": agreement.accuracy_disagreeing,
            "looks_collapsed": self.looks_collapsed if self.spreads else None,
            "questions": self.total("n_asked"),
            "answers": self.total("n_answered"),
            "answers_correct": self.total("n_answered_correct"),
            "seconds_per_batch": self.seconds_per_batch,
        }
        table = {name: getattr(self, name) for name in _FIELDS}
        table["steps"] = as_columns(self.steps)
        table |= {name: asdict(getattr(self, name)) for name in _RELIABILITIES}
        write_table(path, {"format": _FORMAT, "summary": summary, **table})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result back."""
        table = read_table(path, form=_FORMAT, what="result")
        try:
            del table["summary"]
            table["steps"] = from_columns(table["steps"])
            table |= {name: Reliability(**table[name]) for name in _RELIABILITIES if name in table}
            return cls(**table)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise _unreadable(path, "result", reason) from None


def write_table(path: str | Path, table: Mapping[str, Any]) -> None:
    """Write as JSON, atomically: a line per key, and per column of numbers."""
    write_atomically(path, (_text(table) + "\n").encode())


def read_table(path: str | Path, *, form: int, what: str) -> dict[str, Any]:
    """Read a JSON of this version back, without its format."""
    try:
        table = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise _unreadable(path, what, str(error)) from None
    if not isinstance(table, dict) or "format" not in table:
        raise _unreadable(path, what, "it has no format")
    if table.pop("format") != form:
        raise InputError(f"{str(path)!r} is not a {what} of this version of bitta.")
    return table


def _unreadable(path: str | Path, what: str, reason: str) -> UnreadableFileError:
    return UnreadableFileError(f"{str(path)!r} is not a readable {what} ({reason}).")


def as_columns(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Steps as a list per field: domains as [name, how many], losses as a list per term."""
    columns: dict[str, Any] = {
        name: [getattr(step, name) for step in steps] for name in _STEP_FIELDS
    }
    runs = groupby(columns["domain"])
    columns["domain"] = [[domain, len(list(run))] for domain, run in runs]
    terms = dict.fromkeys(term for step in steps for term in step.losses)
    columns["losses"] = {term: [_told(step.losses, term) for step in steps] for term in terms}
    return columns


def from_columns(columns: Mapping[str, Any]) -> list[StepRecord]:
    """Steps as they were."""
    domains = [domain for domain, length in columns["domain"] for _ in range(length)]
    losses = [
        {term: None if value == _NOT_FINITE else value
         for term, value in zip(columns["losses"], values, strict=True) if value is not None}
        for values in zip(*columns["losses"].values(), strict=True)
    ] or [{} for _ in domains]  # fmt: skip
    rows = zip(*({**columns, "domain": domains, "losses": losses}.values()), strict=True)
    return [StepRecord(**dict(zip(columns, row, strict=True))) for row in rows]


def _told(losses: Mapping[str, float | None], term: str) -> float | str | None:
    value = losses.get(term)
    return _NOT_FINITE if value is None and term in losses else value


def _text(value: Any, depth: int = 0) -> str:
    """JSON with a line per key; lists of plain values stay on theirs."""
    pad = "\n" + " " * (depth + 1)
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(key)}: {_text(item, depth + 1)}" for key, item in value.items()]
        return "{" + pad + ("," + pad).join(lines) + pad[:-1] + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        lines = [_text(item, depth + 1) for item in value]
        return "[" + pad + ("," + pad).join(lines) + pad[:-1] + "]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


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
        "code": code_hash(),
    }


@cache
def code_hash() -> str:
    """SHA-256 of the source that a result depends on, as it was when this process first asked."""
    folder, digest = Path(__file__).parent, sha256()
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(_SHOWN_ONLY):
            digest.update(f"{name}\n".encode())
            digest.update(sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def table_hash(table: Mapping[str, Any]) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


_FIELDS = tuple(part.name for part in fields(RunResult))
_RELIABILITIES = ("reliability", "policy_reliability")
_STEP_FIELDS = tuple(part.name for part in fields(StepRecord))
