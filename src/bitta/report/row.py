"""Runs that differ in their seed alone, and what they come to."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, Self

from bitta.methods import METHODS
from bitta.report.names import Answers, title_of
from bitta.results import RunResult

_ALIKE = ("stream", "model", "forgetting")
"""Sections that are the same for all rows, or change nothing in a result."""
POINTS: Mapping[str, float] = {f"mixed-{percent}": percent / 100 for percent in (25, 50, 75)}
"""Parts of a mixed stream after which the paper tells how much was right so far."""
_FILES = ("feedback.record", "feedback.replay")
ONLY_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "threshold": ("agreement", ("threshold",)),
    "perturbation": ("policy", ("ensemble",)),
    "dropout": ("policy", ("dropout",)),
    "mecta_prune": ("mecta", ("gated", "fixed")),
    "mecta_gate": ("mecta", ("gated",)),
    "mecta_rate": ("mecta", ("fixed",)),
}
"""Settings of methods that have no effect unless another has one of these values.

They are told here and not by the methods, whose source is part of what results are known by.
"""


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds."""

    mean: float
    deviation: float | None
    """Sample standard deviation; None for one seed."""
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of one value per seed.

        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(mean=2.0, deviation=1.0, n=3)
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone."""

    name: str
    """The experiment's."""
    runs: Mapping[int, RunResult]
    """By seed, ascending."""
    apart: tuple[str, ...] = ()
    """What sets it apart from rows of the same method and answers: a preset, or settings."""
    collapsed: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Domains in which it has, by seed; only where there are some."""

    @property
    def first(self) -> RunResult:
        """That of the lowest seed."""
        return next(iter(self.runs.values()))

    @property
    def method(self) -> str:
        """What bitta calls it."""
        return str(self.first.experiment["method"]["name"])

    @property
    def title(self) -> str:
        """What it is called in print."""
        return title_of(self.method, self.answers, self.apart)

    def titled(self, *, without: Sequence[str]) -> str:
        """The title, but for settings that are told elsewhere."""
        leaves = {key.rpartition(".")[2] for key in without}
        apart = [words for words in self.apart if words.partition(" ")[0] not in leaves]
        return title_of(self.method, self.answers, apart)

    def with_seeds(self, seeds: Container[int]) -> Self:
        """The row of these seeds alone."""
        runs = {seed: run for seed, run in self.runs.items() if seed in seeds}
        collapsed = {seed: of for seed, of in self.collapsed.items() if seed in seeds}
        return replace(self, runs=runs, collapsed=collapsed)

    def is_called(self, name: str) -> bool:
        """By the experiment's name, a pattern of it, or as it is printed."""
        return fnmatchcase(self.name, name) or name in (self.name, self.title)

    @cached_property
    def answers(self) -> Answers:
        """What it learned from; "none" where no answer came, or nothing learns."""
        kind = METHODS.get(self.method)
        learns = kind is None or kind.trains != "nothing"
        if not learns or not any(run.total("n_answered") for run in self.runs.values()):
            return "none"
        return "full" if self.settings["feedback"]["labels"] == "full" else "verdict"

    @property
    def settings(self) -> dict[str, Any]:
        """The experiment without its name and seed."""
        table = self.first.experiment
        return {key: value for key, value in table.items() if key not in ("name", "seed")}

    @cached_property
    def varying(self) -> dict[str, Any]:
        """Settings by dotted name that may differ between rows of a section and have an effect."""
        return {key: value for key, value in self.given.items() if not self._is_idle(key)}

    @cached_property
    def given(self) -> dict[str, Any]:
        """The same with those that have none."""
        flat = {
            f"{place}.{key}": value
            for place, values in self.settings.items()
            if place not in _ALIKE
            for key, value in values.items()
        }
        if flat.get("feedback.n_queries") == -1 and self.method in METHODS:
            flat["feedback.n_queries"] = METHODS[self.method].n_queries
        return {key: value for key, value in flat.items() if key not in (*_FILES, "method.name")}

    def _is_idle(self, key: str) -> bool:
        place, _, leaf = key.partition(".")
        if place != "method" or leaf not in ONLY_WITH:
            return False
        other, values = ONLY_WITH[leaf]
        return self.given.get(f"method.{other}", values[0]) not in values

    @property
    def accuracy(self) -> Spread:
        """Percent right of all samples."""
        return Spread.of([run.accuracy for run in self.runs.values()])

    @property
    def domain_mean(self) -> Spread:
        """Percent right, each domain counting once whatever its size: the paper's mean."""
        return Spread.of([fmean(run.accuracy_by_domain.values()) for run in self.runs.values()])

    def after(self, part: float) -> Spread:
        """Percent right up to the batch in which such a part of the stream ends."""
        return Spread.of([_accuracy_after(run, part) for run in self.runs.values()])

    @cached_property
    def by_domain(self) -> dict[str, Spread]:
        """Percent right in each domain, in the order of the stream."""
        seen = [run.accuracy_by_domain for run in self.runs.values()]
        return {domain: Spread.of([one[domain] for one in seen]) for domain in seen[0]}

    @property
    def ece(self) -> Spread | None:
        """Calibration error of what was served, in percent; None where that was no numbers."""
        return self.spread(lambda run: run.ece)

    @property
    def policy_ece(self) -> Spread | None:
        """Calibration error of the policy, in percent; None where it was not measured."""
        return self.spread(lambda run: run.policy_ece)

    def spread(self, measure: Callable[[RunResult], float | None]) -> Spread | None:
        """Of any measure, over the runs that have it; None where none has."""
        values = [measure(run) for run in self.runs.values()]
        measured = [value for value in values if value is not None]
        return Spread.of(measured) if measured else None


def _accuracy_after(run: RunResult, part: float) -> float:
    seen = right = 0
    least = part * run.total("n")
    for step in run.steps:
        seen, right = seen + step.n, right + step.n_correct
        if seen >= least:
            break
    return 100 * right / seen


def on_shared_seeds(rows: Sequence[Row]) -> list[Row]:
    """Rows with the seeds that all of them have, so that only what was varied tells them apart.

    As they are where no seed is shared.
    """
    shared = set.intersection(*(set(row.runs) for row in rows)) if rows else set()
    return [row.with_seeds(shared) for row in rows] if shared else list(rows)
