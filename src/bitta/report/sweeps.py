"""Settings that were varied, and the rows to draw along each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from bitta.report.names import listed_seeds, shown, title_of
from bitta.report.row import Row, on_shared_seeds
from bitta.report.rows import Section, telling

SETTINGS: Mapping[str, str] = {
    "feedback.n_queries": "questions per batch k",
    "feedback.flip": "share of wrong verdicts",
    "feedback.error": "share of wrong labels",
    "feedback.delay": "delay of answers, in batches",
    "feedback.answer_every": "one batch is answered of every …",
    "feedback.every": "questions come every … batches",
    "feedback.total": "questions in all",
    "feedback.equal": "what the budget is counted in",
    "method.passes": "passes N of MC dropout",
    "method.epochs": "epochs on each batch",
    "method.alpha": "weight on answers α",
    "method.beta": "weight on agreement β",
    "method.threshold": "confidence needed",
    "method.dropout": "dropout rate",
    "method.correct_memory": "memory of correct samples",
    "method.incorrect_memory": "memory of incorrect samples",
    "method.selection": "how questions are chosen",
    "method.policy": "how the policy is estimated",
    "method.agreement": "how agreement is told",
    "method.lr": "step size",
    "enhanced.n_samples": "samples for fine-tuning beforehand",
}
"""What settings are called along an axis."""
_FEW = 3
"""Values that make a plot worth while; words may also be two, for several methods."""
_MOST_LINES = 8
_MOST_SINGLES = 3
"""Rows that differ in something else as well, and are drawn as points; and of levels."""


@dataclass(frozen=True, slots=True)
class Series:
    """Rows of one method that differ in one setting, ordered by its value."""

    method: str
    label: str
    rows: tuple[Row, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Level:
    """A row of the same method in which the setting has no effect: as high everywhere."""

    label: str
    row: Row


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting, and what moves along it."""

    key: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()
    along: tuple[str, ...] = ()
    """Settings that change with it."""

    @property
    def title(self) -> str:
        """What the axis says."""
        also = [setting_title(key) for key in self.along]
        return setting_title(self.key) + (f" (with {', '.join(also)})" if also else "")

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(_is_number(value) for one in self.series for value in one.values)

    @property
    def worth_while(self) -> bool:
        """Whether there is enough for a plot."""
        sizes = sorted(len(set(map(repr, one.values))) for one in self.series)
        return sizes[-1:] >= [_FEW] or (not self.numeric and sizes[-2:] == [2, 2])


def setting_title(key: str) -> str:
    """A setting in words.

    >>> setting_title("feedback.delay"), setting_title("method.bn_momentum")
    ('delay of answers, in batches', 'bn momentum')
    """
    return SETTINGS.get(key, key.rpartition(".")[2].replace("_", " "))


def sweeps_of(section: Section) -> list[Sweep]:
    """Settings along which accuracy can be drawn, those of the paper's figures first."""
    known = [key for key in SETTINGS if key in section.varied]
    keys = [*known, *(key for key in section.varied if key not in known)]
    found: dict[frozenset[frozenset[str]], Sweep] = {}
    for key in keys:
        sweep = _sweep(section, key)
        if not sweep.worth_while:
            continue
        drawn = frozenset(frozenset(row.name for row in one.rows) for one in sweep.series)
        if drawn in found:
            before = found[drawn]
            sweep = replace(before, along=(*before.along, key))
        found[drawn] = sweep
    return list(found.values())


def _sweep(section: Section, key: str) -> Sweep:
    """Rows of a method, apart where they differ in more than this setting."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in section.rows:
        labels = str(row.settings["feedback"]["labels"])
        groups.setdefault((row.method, labels), []).append(row)
    series: list[Series] = []
    levels: list[Level] = []
    for group in groups.values():
        active = [row for row in group if key in row.varying]
        lines = _lines(active, others := _others(active, key))
        if not lines:
            continue
        idle = [row for row in group if key not in row.varying][:_MOST_SINGLES]
        moving = telling([row.varying for row in active])
        heads = [row.varying for row in (*(line[0] for line in lines), *idle)]
        apart = [k for k in telling(heads) if k in others or k not in moving]
        series += [_one(line, key, apart) for line in lines]
        levels += [Level(_label(row, apart), row) for row in idle]
    return Sweep(key, tuple(series[:_MOST_LINES]), tuple(levels))


def _lines(rows: Sequence[Row], others: Sequence[str]) -> list[list[Row]]:
    """Rows that do not differ in others, longest first; none where nothing moves."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(repr([row.varying.get(k) for k in others]), []).append(row)
    drawn = sorted(lines.values(), key=len, reverse=True)
    several = [line for line in drawn if len(line) > 1]
    return drawn[: len(several) + _MOST_SINGLES] if several else []


def _others(rows: Sequence[Row], key: str) -> list[str]:
    """Settings that differ apart from this one, and do not change with it one to one."""
    values = [row.varying for row in rows]
    numbers = {repr(table[key]) for table in values if _is_number(table[key])}
    others = [other for other in telling(values) if other != key]
    if len(numbers) < _FEW:
        return others
    return [
        other
        for other in others
        if len({(repr(t[key]), repr(t.get(other))) for t in values}) > len(numbers)
        or len({repr(t.get(other)) for t in values}) < len(numbers)
    ]


def _one(rows: Sequence[Row], key: str, apart: Sequence[str]) -> Series:
    if all(_is_number(row.varying[key]) for row in rows):
        rows = sorted(rows, key=lambda row: float(row.varying[key]))
    values = tuple(row.varying[key] for row in rows)
    drawn = on_shared_seeds(rows)
    fewer = any(len(row.runs) < len(whole.runs) for row, whole in zip(drawn, rows, strict=True))
    label = _label(drawn[-1], apart, told_seeds=fewer)
    return Series(drawn[0].method, label, tuple(drawn), values)


def _label(row: Row, apart: Sequence[str], *, told_seeds: bool = False) -> str:
    told = [_told(key, row.varying[key]) for key in apart if key in row.varying][:2]
    if told_seeds:
        told.append(listed_seeds(row.runs))
    return title_of(row.method, row.answers, told)


def _told(key: str, value: Any) -> str:
    colon = ":" if isinstance(value, str) else ""
    return f"{setting_title(key)}{colon} {shown(value)}"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
