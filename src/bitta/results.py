"""Results of runs: one JSON file per run, from which tables and plots are made."""

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import torch

from bitta.benefit import Benefit
from bitta.errors import InputError, UnreadableFileError
from bitta.metrics import (
    Agreement,
    LabelEntropies,
    Reliability,
    find_low_accuracy_domains,
    find_low_entropy_domains,
)
from bitta.statefile import write_atomically
from bitta.version import NUMERICS_VERSION, __version__

_FORMAT = 2
_NOT_FINITE = "nan"
"""Value of a loss that was not finite. A loss that was absent is null."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Measurements of one batch."""

    domain: str
    n: int
    n_correct: int
    n_asked: int
    n_answered: int
    n_answered_correct: int
    losses: Mapping[str, float | None]
    """Mean of each term over the updates; None if it was not finite."""
    seconds: float
    brier: float | None = None
    """Sum of the Brier scores of its samples, 0 to 2 each; None if it was not measured."""
    n_measured: int = 0
    """Number of samples for which the policy was computed to choose questions."""
    n_agreeing: int = 0
    """Number of these samples whose served label has the highest probability in the policy."""
    n_agreeing_correct: int = 0
    confidence: float | None = None
    """Sum of the confidences of the served labels; None if it was not measured."""
    policy_confidence: float | None = None
    """Sum of the highest probabilities of the policy, if it was computed."""


@dataclass(frozen=True)
class RunResult:
    """Result of one run: settings, environment and a record per batch."""

    experiment: Mapping[str, Any]
    """Every setting, including defaults."""
    protocol: str
    """Samples, order, resets, batch size and seed of the stream."""
    environment: Mapping[str, Any]
    steps: Sequence[StepRecord]
    reliability: Reliability
    forwards: int
    """Samples times forward passes. N stochastic passes count as N, even if they run as one."""
    backwards: int
    peak_memory: int
    """Peak memory in bytes: of tensors on a GPU, of the whole process on a CPU."""
    final_weights: str
    """Hash of the weights after the last batch."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further values, such as the price of a question."""
    spreads: LabelEntropies = field(default_factory=dict)
    """Entropy of the served and of the true labels, by domain."""
    policy_reliability: Reliability = field(default_factory=Reliability)
    """Reliability of the policy on the samples for which it was computed."""

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return str(self.experiment["name"])

    @property
    def code_version(self) -> str:
        """Numerics version of the code or, in older results, a hash of the source code."""
        if (version := self.environment.get("numerics_version")) is not None:
            return f"v{version}"
        return str(self.environment.get("code", ""))

    @property
    def accuracy(self) -> float:
        """Percentage of correct predictions. Each sample is served before it is learned from."""
        return percent_correct(self.steps)

    @cached_property
    def accuracy_by_domain(self) -> dict[str, float]:
        """Percentage of correct predictions by domain."""
        by_domain: dict[str, list[StepRecord]] = {}
        for step in self.steps:
            by_domain.setdefault(step.domain, []).append(step)
        return {domain: percent_correct(steps) for domain, steps in by_domain.items()}

    def accuracy_by_part(self, parts: int) -> list[float]:
        """Return the accuracy in equal parts of the stream, in order."""
        edges = [round(len(self.steps) * part / parts) for part in range(parts + 1)]
        return [percent_correct(self.steps[a:b]) for a, b in pairwise(edges)]

    def total(self, count: str) -> int:
        """Return the sum of a count, such as "n_asked", over all batches."""
        return sum(getattr(step, count) for step in self.steps)

    @property
    def benefit(self) -> Benefit | None:
        """Difference in accuracy to the source model, measured by paired audits, if there were."""
        values = self.extra.get("benefit")
        return None if values is None else Benefit(**values)

    @property
    def first_nan_batch(self) -> int | None:
        """Number, from 1, of the first batch with only NaN predictions; None if there is none."""
        return next((n for n, step in enumerate(self.steps, 1) if step.confidence == 0), None)

    @property
    def ece(self) -> float | None:
        """Expected calibration error of the served labels in percent.

        It is None if predictions became NaN. They count as confidence 0, which would look well
        calibrated.
        """
        return self.reliability.ece if self.first_nan_batch is None else None

    @property
    def policy_ece(self) -> float | None:
        """Expected calibration error of the policy in percent.

        It is None if predictions became NaN, or if the policy was not computed.
        """
        is_measured = any(self.policy_reliability.count) and self.first_nan_batch is None
        return self.policy_reliability.ece if is_measured else None

    @property
    def brier(self) -> float | None:
        """Mean over samples of Σ (p - one-hot)²; None if it was not measured."""
        sums = [step.brier for step in self.steps if step.brier is not None]
        n = sum(step.n for step in self.steps if step.brier is not None)
        return sum(sums) / n if n else None

    @property
    def agreement(self) -> Agreement:
        """Agreement of the policy with the served labels, if the policy was computed."""
        measured = [step for step in self.steps if step.n_measured]
        return Agreement(
            sum(step.n_measured for step in measured),
            sum(step.n_agreeing for step in measured),
            sum(step.n_agreeing_correct for step in measured),
            sum(step.n_correct for step in measured),
        )

    @property
    def looks_collapsed(self) -> list[str]:
        """Domains in which far fewer classes were served than occur."""
        return find_low_entropy_domains(self.spreads)

    def collapsed(self, source: Self) -> list[str]:
        """Return the domains with less than half of the accuracy of the source model."""
        return find_low_accuracy_domains(self.accuracy_by_domain, source.accuracy_by_domain)

    @property
    def seconds_per_batch(self) -> float:
        """Mean time in seconds to serve, select and learn."""
        return sum(step.seconds for step in self.steps) / len(self.steps)

    @property
    def median_seconds(self) -> float:
        """Median time of a batch. The first batch is slow, because libraries are loaded."""
        return median(step.seconds for step in self.steps)

    def save(self, path: str | Path) -> None:
        """Write a JSON file, atomically."""
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
        table["steps"] = steps_to_columns(self.steps)
        table |= {name: asdict(getattr(self, name)) for name in _RELIABILITIES}
        write_table(path, {"format": _FORMAT, "summary": summary, **table})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save`."""
        table = read_table(path, format_number=_FORMAT, kind="result")
        try:
            del table["summary"]
            table["steps"] = columns_to_steps(table["steps"])
            table |= {name: Reliability(**table[name]) for name in _RELIABILITIES if name in table}
            return cls(**table)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise _unreadable_error(path, "result", reason) from None


def write_table(path: str | Path, table: Mapping[str, Any]) -> None:
    """Write a JSON file, atomically, with one line per key and per column of numbers."""
    write_atomically(path, (_to_json(table) + "\n").encode())


def read_table(path: str | Path, *, format_number: int, kind: str) -> dict[str, Any]:
    """Read a JSON file of a format. Return it without the key "format"."""
    try:
        table = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise _unreadable_error(path, kind, str(error)) from None
    if not isinstance(table, dict) or "format" not in table:
        raise _unreadable_error(path, kind, "it has no format")
    if (given := table.pop("format")) != format_number:
        raise InputError(
            f"{str(path)!r} is a {kind} of format {given}; this version of bitta reads "
            f"{format_number}. Repeat the run that made it."
        )
    return table


def _unreadable_error(path: str | Path, kind: str, reason: str) -> UnreadableFileError:
    return UnreadableFileError(f"{str(path)!r} is not a readable {kind} ({reason}).")


def steps_to_columns(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Return a list per field. Domains are run-length encoded; losses are a list per term."""
    columns: dict[str, Any] = {
        name: [getattr(step, name) for step in steps] for name in _STEP_FIELDS
    }
    runs = groupby(columns["domain"])
    columns["domain"] = [[domain, len(list(run))] for domain, run in runs]
    terms = dict.fromkeys(term for step in steps for term in step.losses)
    columns["losses"] = {
        term: [_encode_loss(step.losses, term) for step in steps] for term in terms
    }
    return columns


def columns_to_steps(columns: Mapping[str, Any]) -> list[StepRecord]:
    """Restore the steps from columns."""
    domains = [domain for domain, length in columns["domain"] for _ in range(length)]
    losses = [
        {term: None if value == _NOT_FINITE else value
         for term, value in zip(columns["losses"], values, strict=True) if value is not None}
        for values in zip(*columns["losses"].values(), strict=True)
    ] or [{} for _ in domains]  # fmt: skip
    rows = zip(*({**columns, "domain": domains, "losses": losses}.values()), strict=True)
    return [StepRecord(**dict(zip(columns, row, strict=True))) for row in rows]


def _encode_loss(losses: Mapping[str, float | None], term: str) -> float | str | None:
    value = losses.get(term)
    return _NOT_FINITE if value is None and term in losses else value


def _to_json(value: Any, depth: int = 0) -> str:
    """Return JSON with one line per key. A list of plain values stays on one line."""
    pad = "\n" + " " * (depth + 1)
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(key)}: {_to_json(item, depth + 1)}" for key, item in value.items()]
        return "{" + pad + ("," + pad).join(lines) + pad[:-1] + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        lines = [_to_json(item, depth + 1) for item in value]
        return "[" + pad + ("," + pad).join(lines) + pad[:-1] + "]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def percent_correct(steps: Collection[StepRecord]) -> float:
    """Return the accuracy in percent over the samples of some batches."""
    n = sum(step.n for step in steps)
    return 100 * sum(step.n_correct for step in steps) / n if n else 0.0


def describe_environment(device: torch.device, weights: str) -> dict[str, Any]:
    """Return versions, machine and source weights, which are stored with a result."""
    return {
        "bitta": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "source_weights": weights,
        "numerics_version": NUMERICS_VERSION,
    }


def table_hash(table: Mapping[str, Any]) -> str:
    """Return the SHA-256 hash of plain values. The order of keys does not matter."""
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


_FIELDS = tuple(part.name for part in fields(RunResult))
_RELIABILITIES = ("reliability", "policy_reliability")
_STEP_FIELDS = tuple(part.name for part in fields(StepRecord))
