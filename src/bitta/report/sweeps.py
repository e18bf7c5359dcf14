"""Sweeps: settings that vary between rows, and the rows to draw along each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from bitta.report.rows import Row, format_seeds, format_value, restrict_to_shared_seeds, row_title
from bitta.report.sections import Section, distinguishing_keys

SETTING_TITLES: Mapping[str, str] = {
    "feedback.n_queries": "questions per batch k",
    "feedback.flip": "share of wrong verdicts",
    "feedback.error": "share of wrong labels",
    "feedback.delay": "delay of answers in batches",
    "feedback.answer_every": "n, if every n-th batch is answered",
    "feedback.every": "n, if every n-th batch has questions",
    "feedback.total": "total number of questions",
    "feedback.equal": "unit of the budget",
    "method.passes": "MC-dropout passes N",
    "method.epochs": "epochs per batch",
    "method.alpha": "weight of answers α",
    "method.beta": "weight of agreement β",
    "method.threshold": "confidence threshold",
    "method.dropout": "dropout rate",
    "method.correct_memory": "memory of correct samples",
    "method.incorrect_memory": "memory of incorrect samples",
    "method.selection": "selection of questions",
    "method.policy": "estimate of the policy",
    "method.agreement": "test of agreement",
    "method.lr": "learning rate",
    "before_stream.n_samples": "samples for the preparation before the stream",
}
"""Titles of settings on an axis. Sweeps are in this order."""
_MIN_VALUES = 3
"""Minimum number of values for a plot. Two are enough if they are text and two series have both."""
_MAX_SERIES = 8
_MAX_SINGLE_ROWS = 3
"""Maximum number of series with a single row, and of constant rows of a method."""
_MAX_LABEL_SETTINGS = 2


@dataclass(frozen=True, slots=True)
class SweepSeries:
    """Rows of one method that differ in one setting, ordered by its value."""

    method: str
    label: str
    rows: tuple[Row, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ConstantRow:
    """Row of a swept method in which the setting has no effect."""

    label: str
    row: Row


@dataclass(frozen=True, slots=True)
class SettingSweep:
    """Setting that varies, and the rows to draw along it."""

    key: str
    series: tuple[SweepSeries, ...]
    constant_rows: tuple[ConstantRow, ...] = ()
    coupled_keys: tuple[str, ...] = ()
    """Settings that change together with this one."""

    @property
    def title(self) -> str:
        """Title of the axis."""
        coupled = [setting_title(key) for key in self.coupled_keys]
        return setting_title(self.key) + (f" (with {', '.join(coupled)})" if coupled else "")

    @property
    def is_numeric(self) -> bool:
        """True if all values are numbers."""
        return all(_is_number(value) for series in self.series for value in series.values)

    @property
    def has_enough_values(self) -> bool:
        """True if the series have enough values for a plot (see `_MIN_VALUES`)."""
        n_values = sorted(len(set(map(repr, series.values))) for series in self.series)
        has_two_words_twice = not self.is_numeric and n_values[-2:] == [2, 2]
        return n_values[-1:] >= [_MIN_VALUES] or has_two_words_twice


def setting_title(key: str) -> str:
    """Return the title of a setting on an axis.

    >>> setting_title("feedback.delay"), setting_title("method.bn_momentum")
    ('delay of answers in batches', 'bn momentum')
    """
    return SETTING_TITLES.get(key, key.rpartition(".")[2].replace("_", " "))


def find_sweeps(section: Section) -> list[SettingSweep]:
    """Return the sweeps of a section. Settings that change together make one sweep."""
    varied = section.varied_settings
    keys = [key for key in SETTING_TITLES if key in varied]
    keys += [key for key in varied if key not in keys]
    sweeps: dict[frozenset[frozenset[str]], SettingSweep] = {}
    for key in keys:
        sweep = _make_sweep(section, key)
        if not sweep.has_enough_values:
            continue
        lines = frozenset(frozenset(row.name for row in series.rows) for series in sweep.series)
        if lines in sweeps:
            earlier = sweeps[lines]
            sweep = replace(earlier, coupled_keys=(*earlier.coupled_keys, key))
        sweeps[lines] = sweep
    return list(sweeps.values())


def _make_sweep(section: Section, key: str) -> SettingSweep:
    """Make series of rows that differ only in this setting and in settings coupled to it."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in section.rows:
        labels = str(row.settings["feedback"]["labels"])
        groups.setdefault((row.method, labels), []).append(row)
    series: list[SweepSeries] = []
    constant_rows: list[ConstantRow] = []
    for group in groups.values():
        swept = [row for row in group if key in row.effective_settings]
        independent = _independent_keys(swept, key)
        lines = _split_into_lines(swept, independent)
        if not lines:
            continue
        constant = [row for row in group if key not in row.effective_settings][:_MAX_SINGLE_ROWS]
        varied = distinguishing_keys([row.effective_settings for row in swept])
        examples = [row.effective_settings for row in (*(line[0] for line in lines), *constant)]
        label_keys = [
            k for k in distinguishing_keys(examples) if k in independent or k not in varied
        ]
        series += [_make_series(line, key, label_keys) for line in lines]
        constant_rows += [ConstantRow(_label(row, label_keys), row) for row in constant]
    return SettingSweep(key, tuple(series[:_MAX_SERIES]), tuple(constant_rows))


def _split_into_lines(rows: Sequence[Row], independent_keys: Sequence[str]) -> list[list[Row]]:
    """Group rows that are equal in the independent settings, longest line first.

    The result is empty if no line has two rows.
    """
    lines: dict[str, list[Row]] = {}
    for row in rows:
        values = repr([row.effective_settings.get(key) for key in independent_keys])
        lines.setdefault(values, []).append(row)
    longest_first = sorted(lines.values(), key=len, reverse=True)
    n_long = sum(len(line) > 1 for line in longest_first)
    return longest_first[: n_long + _MAX_SINGLE_ROWS] if n_long else []


def _independent_keys(rows: Sequence[Row], key: str) -> list[str]:
    """Return the settings that vary, except this one and those that change one to one with it."""
    tables = [row.effective_settings for row in rows]
    others = [other for other in distinguishing_keys(tables) if other != key]
    n_numbers = len({repr(table[key]) for table in tables if _is_number(table[key])})
    if n_numbers < _MIN_VALUES:
        return others
    return [
        other
        for other in others
        if len({(repr(table[key]), repr(table.get(other))) for table in tables}) > n_numbers
        or len({repr(table.get(other)) for table in tables}) < n_numbers
    ]


def _make_series(rows: Sequence[Row], key: str, label_keys: Sequence[str]) -> SweepSeries:
    """Make a series of rows with the same seeds, so that the points are comparable."""
    if all(_is_number(row.effective_settings[key]) for row in rows):
        rows = sorted(rows, key=lambda row: float(row.effective_settings[key]))
    values = tuple(row.effective_settings[key] for row in rows)
    drawn = restrict_to_shared_seeds(rows)
    has_fewer_seeds = any(len(d.runs) < len(row.runs) for d, row in zip(drawn, rows, strict=True))
    label = _label(drawn[-1], label_keys, with_seeds=has_fewer_seeds)
    return SweepSeries(drawn[0].method, label, tuple(drawn), values)


def _label(row: Row, keys: Sequence[str], *, with_seeds: bool = False) -> str:
    settings = row.effective_settings
    words = [_describe_setting(key, settings[key]) for key in keys if key in settings]
    words = words[:_MAX_LABEL_SETTINGS]
    if with_seeds:
        words.append(format_seeds(row.runs))
    return row_title(row.method, row.answer_kind, words)


def _describe_setting(key: str, value: Any) -> str:
    colon = ":" if isinstance(value, str) else ""
    return f"{setting_title(key)}{colon} {format_value(value)}"


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
