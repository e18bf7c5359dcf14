"""Row of a report: runs that differ only in their seed, with their settings and title."""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import fmean
from typing import Any, Literal, Self

from bitta.methods import METHODS
from bitta.report.seed_statistics import Spread
from bitta.results import RunResult

AnswerKind = Literal["none", "verdict", "full"]
"""Kind of answers that a method learned from."""

METHOD_TITLES: Mapping[str, str] = {
    "source": "Source",
    "bn_stats": "BN-Stats",
    "tent": "TENT",
    "eta": "ETA",
    "eata": "EATA",
    "sar": "SAR",
    "cotta": "CoTTA",
    "rotta": "RoTTA",
    "sotta": "SoTTA",
    "deyo": "DeYO",
    "tast": "TAST-BN",
    "owttt": "OWTTT",
    "simatta": "SimATTA",
    "bitta": "BiTTA",
    "self_tuning": "Self-tuning",
}
"""Names of the methods in print."""
DEFAULT_FEEDBACK: Mapping[str, Any] = {
    "every": 1, "total": -1, "equal": "count", "flip": 0.0, "error": 0.0, "annotators": "",
    "delay": 0, "answer_every": 1,
}  # fmt: skip
"""Default values of the settings in [feedback]."""
MIXED_STREAM_POINTS: Mapping[str, float] = {
    f"mixed-{percent}": percent / 100 for percent in (25, 50, 75)
}
"""Fractions of a mixed stream after which the accuracy so far is reported."""
DEPENDENT_SETTINGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "threshold": ("agreement", ("threshold",)),
    "perturbation": ("policy", ("ensemble",)),
    "dropout": ("policy", ("dropout",)),
    "mecta_prune": ("mecta", ("gated", "fixed")),
    "mecta_gate": ("mecta", ("gated",)),
    "mecta_rate": ("mecta", ("fixed",)),
}
"""Settings of methods that have an effect only if another setting has one of these values."""
_ASKING_METHODS = ("bitta", "self_tuning")
"""Methods that learn from verdicts by default."""
_MAX_TITLE_SETTINGS = 2
"""Maximum number of settings in a title. With more, the shorter experiment name is used."""
_UNCOMPARED_GROUPS = ("stream", "model", "forgetting")
"""Groups of settings that are equal in all rows of a section, or have no effect on a result."""
_UNCOMPARED_KEYS = ("feedback.record", "feedback.replay", "method.name")


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed."""

    name: str
    """Name of the experiment."""
    runs: Mapping[int, RunResult]
    """Runs by seed, in ascending order."""
    qualifiers: tuple[str, ...] = ()
    """Preset or settings that distinguish the row from others of the same method and answers."""
    collapsed_domains: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Domains in which the row collapsed, by seed. Seeds without a collapse are missing."""

    @property
    def first_run(self) -> RunResult:
        """Run with the lowest seed."""
        return next(iter(self.runs.values()))

    @property
    def method(self) -> str:
        """Name of the method in bitta."""
        return str(self.first_run.experiment["method"]["name"])

    @property
    def title(self) -> str:
        """Name of the row in print."""
        return row_title(self.method, self.answer_kind, self.qualifiers)

    def title_without(self, settings: Sequence[str]) -> str:
        """Return the title without settings that have their own column."""
        names = {key.rpartition(".")[2] for key in settings}
        qualifiers = [words for words in self.qualifiers if words.partition(" ")[0] not in names]
        return row_title(self.method, self.answer_kind, qualifiers)

    def with_seeds(self, seeds: Container[int]) -> Self:
        """Return the row with the runs of these seeds only."""
        runs = {seed: run for seed, run in self.runs.items() if seed in seeds}
        collapsed = {
            seed: domains for seed, domains in self.collapsed_domains.items() if seed in seeds
        }
        return replace(self, runs=runs, collapsed_domains=collapsed)

    def matches_name(self, pattern: str) -> bool:
        """Return True if the pattern matches the experiment's name or equals the title."""
        return fnmatchcase(self.name, pattern) or pattern in (self.name, self.title)

    @cached_property
    def answer_kind(self) -> AnswerKind:
        """Kind of answers learned from; "none" if no answer came or the method does not learn."""
        method = METHODS.get(self.method)
        learns = method is None or method.trains != "nothing"
        if not learns or not any(run.total("n_answered") for run in self.runs.values()):
            return "none"
        return "full" if self.settings["feedback"]["labels"] == "full" else "verdict"

    @property
    def settings(self) -> dict[str, Any]:
        """Experiment without name and seed."""
        table = self.first_run.experiment
        return {key: value for key, value in table.items() if key not in ("name", "seed")}

    @cached_property
    def flat_settings(self) -> dict[str, Any]:
        """Settings by dotted name that may differ between the rows of a section."""
        flat = {
            f"{group}.{key}": value
            for group, values in self.settings.items()
            if group not in _UNCOMPARED_GROUPS
            for key, value in values.items()
        }
        if flat.get("feedback.n_queries") == -1 and self.method in METHODS:
            flat["feedback.n_queries"] = METHODS[self.method].n_queries
        return {key: value for key, value in flat.items() if key not in _UNCOMPARED_KEYS}

    @cached_property
    def effective_settings(self) -> dict[str, Any]:
        """Flat settings without those that have no effect in this row."""
        return {key: value for key, value in self.flat_settings.items() if self._has_effect(key)}

    def _has_effect(self, key: str) -> bool:
        group, _, name = key.partition(".")
        if group != "method" or name not in DEPENDENT_SETTINGS:
            return True
        other, values = DEPENDENT_SETTINGS[name]
        return self.flat_settings.get(f"method.{other}", values[0]) in values

    @property
    def accuracy(self) -> Spread:
        """Accuracy over all samples in percent."""
        return Spread.from_values([run.accuracy for run in self.runs.values()])

    @property
    def domain_mean(self) -> Spread:
        """Mean of the domains' accuracies in percent, independent of their sizes."""
        return Spread.from_values(
            [fmean(run.accuracy_by_domain.values()) for run in self.runs.values()]
        )

    def accuracy_after(self, fraction: float) -> Spread:
        """Return the accuracy up to the batch that completes this fraction of the stream."""
        return Spread.from_values([_accuracy_after(run, fraction) for run in self.runs.values()])

    @cached_property
    def accuracy_by_domain(self) -> dict[str, Spread]:
        """Accuracy in each domain in percent, in the order of the stream."""
        by_seed = [run.accuracy_by_domain for run in self.runs.values()]
        return {
            domain: Spread.from_values([accuracies[domain] for accuracies in by_seed])
            for domain in by_seed[0]
        }

    @property
    def ece(self) -> Spread | None:
        """Calibration error of the served labels in percent; None if no run has one."""
        return self.spread_of(lambda run: run.ece)

    @property
    def policy_ece(self) -> Spread | None:
        """Calibration error of the policy in percent; None if no run has one."""
        return self.spread_of(lambda run: run.policy_ece)

    def spread_of(self, measure: Callable[[RunResult], float | None]) -> Spread | None:
        """Return mean and deviation of a measure over the runs that have it; None if none has."""
        values = [measure(run) for run in self.runs.values()]
        measured = [value for value in values if value is not None]
        return Spread.from_values(measured) if measured else None


def _accuracy_after(run: RunResult, fraction: float) -> float:
    n_seen = n_correct = 0
    needed = fraction * run.total("n")
    for step in run.steps:
        n_seen, n_correct = n_seen + step.n, n_correct + step.n_correct
        if n_seen >= needed:
            break
    return 100 * n_correct / n_seen


def restrict_to_shared_seeds(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the seeds that all of them have, or unchanged if they share none."""
    shared = set.intersection(*(set(row.runs) for row in rows)) if rows else set()
    return [row.with_seeds(shared) for row in rows] if shared else list(rows)


def row_title(method: str, answer_kind: AnswerKind, qualifiers: Sequence[str] = ()) -> str:
    """Return the name of a row in print, as the paper prints it.

    A star marks verdicts, except for methods that always learn from verdicts.

    >>> row_title("tent", "verdict", ["reference"]), row_title("simatta", "full")
    ('TENT* (reference)', 'SimATTA (full labels)')
    """
    star = "*" if answer_kind == "verdict" and method not in _ASKING_METHODS else ""
    answers = ["full labels"] if answer_kind == "full" else []
    if answer_kind == "none" and method in ("simatta", *_ASKING_METHODS):
        answers = ["no answers"]
    brackets = ", ".join((*answers, *qualifiers))
    return METHOD_TITLES.get(method, method) + star + (f" ({brackets})" if brackets else "")


def find_preset(method_settings: Mapping[str, Any]) -> str:
    """Return the largest preset whose values all occur in the settings; empty if there is none."""
    method = METHODS.get(method_settings["name"])
    if method is None:
        return ""
    defaults = default_settings(method_settings["name"])
    found, most = "", 0
    for preset, values in method.Config.presets.items():
        own = {key: value for key, value in values.items() if value != defaults.get(key)}
        is_set = all(as_json(method_settings.get(key)) == as_json(own[key]) for key in own)
        if len(own) > most and is_set:
            found, most = preset, len(own)
    return found


def default_settings(method: str) -> dict[str, Any]:
    """Return the default settings of a method; empty for an unknown method."""
    adapter_class = METHODS.get(method)
    return {} if adapter_class is None else vars(adapter_class.configure({}, None, name=method))


def list_changed_settings(settings: Mapping[str, Any], method: str, row_name: str) -> list[str]:
    """Return settings that are not at their default, such as "lr 0.001".

    If there are too many for a title, return the name of the row.
    """
    defaults = {f"method.{key}": as_json(v) for key, v in default_settings(method).items()}
    defaults |= {f"feedback.{key}": value for key, value in DEFAULT_FEEDBACK.items()}
    if method in METHODS:
        defaults["feedback.n_queries"] = METHODS[method].n_queries
    descriptions = [
        f"{key.rpartition('.')[2]} {format_value(value)}"
        for key, value in settings.items()
        if key not in defaults or defaults[key] != as_json(value)
    ]
    return descriptions if len(descriptions) <= _MAX_TITLE_SETTINGS else [row_name]


def as_json(value: Any) -> Any:
    """Return the value as a JSON file gives it back: a list for a tuple."""
    return [as_json(item) for item in value] if isinstance(value, tuple) else value


def format_value(value: Any) -> str:
    """Return a setting's value as short text.

    >>> format_value(1e-4), format_value(True), format_value(None), format_value("mixed")
    ('0.0001', 'yes', '–', 'mixed')
    """
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def format_range(numbers: Sequence[int]) -> str:
    """Return the smallest and the largest number as text.

    >>> format_range([3, 1, 2]), format_range([3, 3])
    ('1 to 3', '3')
    """
    smallest, largest = min(numbers), max(numbers)
    return f"{smallest} to {largest}" if smallest < largest else str(largest)


def format_seeds(seeds: Collection[int]) -> str:
    """Return the seeds as text.

    >>> format_seeds([0]), format_seeds([0, 2])
    ('seed 0', 'seeds 0, 2')
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
