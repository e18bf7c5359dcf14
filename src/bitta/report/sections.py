"""Sections of a report: read result files, group them into rows, split what is not comparable."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any, get_args

from bitta.errors import InputError
from bitta.methods import METHODS
from bitta.metrics import find_low_accuracy_domains
from bitta.report.rows import (
    MIXED_STREAM_POINTS,
    AnswerKind,
    Row,
    find_preset,
    list_changed_settings,
)
from bitta.results import RunResult, table_hash

_MAX_SWEPT_SETTINGS = 2


@dataclass(frozen=True)
class Section:
    """Rows of one protocol, source model and version of the code. They are comparable."""

    protocol: str
    """Description of the protocol, without the seed."""
    rows: tuple[Row, ...]
    folders: tuple[Path, ...] = ()
    """Folders of the result files."""
    hidden_rows: tuple[Row, ...] = ()
    """Rows that the report does not show."""

    @property
    def source_row(self) -> Row | None:
        """Row of the source model, if it was run. A row without fine-tuning is preferred."""
        found = [row for row in (*self.rows, *self.hidden_rows) if row.method == "source"]
        return min(found, key=lambda row: len(row.qualifiers), default=None)

    @property
    def title(self) -> str:
        """Stream and its size."""
        stream, sizes = self.rows[0].settings["stream"], self.domain_sizes
        different_sizes = {f"{size:,}" for size in sizes.values()}
        if len(different_sizes) == 1:
            domains = f"{len(sizes)} domains of " if len(sizes) > 1 else ""
            size = f"{domains}{different_sizes.pop()} samples"
        else:
            size = f"{len(sizes)} domains, {sum(sizes.values()):,} samples in all"
        return f"{stream['kind']}, {stream['order']}, {size}"

    @property
    def domain_sizes(self) -> dict[str, int]:
        """Number of samples by domain, in the order of the stream."""
        sizes: dict[str, int] = {}
        for step in self.rows[0].first_run.steps:
            sizes[step.domain] = sizes.get(step.domain, 0) + step.n
        return sizes

    @property
    def mixed_stream_points(self) -> Mapping[str, float]:
        """Fractions of a mixed stream to report accuracy at; empty for other streams."""
        return MIXED_STREAM_POINTS if list(self.domain_sizes) == ["mixed"] else {}

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of all rows."""
        return tuple(sorted({seed for row in self.rows for seed in row.runs}))

    @property
    def model(self) -> str:
        """Weights or factory of the source model."""
        settings = [run.experiment["model"] for run in self._runs()]
        return ", ".join(
            dict.fromkeys(str(model["weights"] or model["factory"]) for model in settings)
        )

    def environment_values(self, key: str) -> tuple[str, ...]:
        """Return the different values of "device", "torch", "code" ... of the runs."""
        if key == "code":
            return tuple(dict.fromkeys(run.code_version for run in self._runs()))
        return tuple(dict.fromkeys(str(run.environment.get(key, "")) for run in self._runs()))

    @property
    def has_gpu_memory(self) -> bool:
        """True if memory is that of tensors on one GPU. On a CPU it is that of the process."""
        devices = self.environment_values("device")
        return len(devices) == 1 and devices[0] not in ("", "cpu")

    @property
    def varied_settings(self) -> dict[str, dict[str, Any]]:
        """Settings in which rows of the same method and answers differ: values by row name."""
        settings = {row.name: row.effective_settings for row in self.rows}
        keys: dict[str, None] = {}
        for group in _group_by_method(self.rows):
            keys |= dict.fromkeys(distinguishing_keys([settings[row.name] for row in group]))
        return {key: {name: own.get(key) for name, own in settings.items()} for key in keys}

    @property
    def swept_settings(self) -> tuple[str, ...]:
        """Varied settings that get columns of their own; empty if they do not make a sweep.

        They make a sweep if they are one or two, and at least half of the rows belong to a method
        and kind of answers with several rows.
        """
        group_sizes = [len(group) for group in _group_by_method(self.rows) if len(group) > 1]
        varied = tuple(self.varied_settings)
        is_sweep = len(varied) <= _MAX_SWEPT_SETTINGS and 2 * sum(group_sizes) >= len(self.rows)
        return varied if is_sweep else ()

    def with_rows(self, patterns: Sequence[str]) -> "Section":
        """Return the section with the rows that match a pattern. The others are hidden."""
        shown = tuple(row for row in self.rows if any(map(row.matches_name, patterns)))
        names = {row.name for row in shown}
        hidden = tuple(row for row in self.rows if row.name not in names)
        return replace(self, rows=shown, hidden_rows=hidden)

    def _runs(self) -> Iterator[RunResult]:
        return (run for row in self.rows for run in row.runs.values())


def read_sections(folders: Sequence[Path]) -> list[Section]:
    """Read all results in the folders. Split them by protocol, source weights and code."""
    protocols: dict[str, dict[str, list[_LoadedRun]]] = {}
    for loaded in _read_runs(folders):
        run = loaded.run
        stream = [protocol_without_seed(run.protocol), {**run.experiment["stream"], "path": ""}]
        model = run.environment.get("source_weights")
        versions = protocols.setdefault(table_hash({"what": stream, "model": model}), {})
        versions.setdefault(run.code_version, []).append(loaded)
    return [
        section
        for versions in protocols.values()
        for section in _sections_of_protocol(list(versions.values()))
    ]


def protocol_without_seed(protocol: str) -> str:
    """Remove the seed from the description of a protocol.

    >>> protocol_without_seed("64 samples, batch 1, seed 3, window 64")
    '64 samples, batch 1, window 64'
    """
    return re.sub(r", seed -?\d+", "", protocol)


def differing_keys(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that do not have the same value in all tables."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({repr(table.get(key)) for table in tables}) > 1]


def distinguishing_keys(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that have several values. Ignore tables that lack the key.

    >>> distinguishing_keys([{"agreement": "policy"}, {"agreement": "threshold", "threshold": 1}])
    ['agreement']
    """
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: {repr(table[key]) for table in tables if key in table} for key in keys}
    return [key for key in keys if len(values[key]) > 1]


@dataclass(frozen=True, slots=True)
class _LoadedRun:
    path: Path
    run: RunResult


def _read_runs(folders: Sequence[Path]) -> Iterator[_LoadedRun]:
    paths: dict[Path, Path] = {}
    for folder in folders:
        for path in _result_files(folder):
            paths.setdefault(path.resolve(), path)
    for path in paths.values():
        yield _LoadedRun(path, _load_run(path))


def _result_files(folder: Path) -> list[Path]:
    if not folder.exists():
        raise InputError(f"there is no folder {str(folder)!r}; give a folder with results.")
    if not folder.is_dir():
        return [folder]
    found = sorted(folder.glob("*.json"))
    if not found:
        below = sorted({str(path.parent) for path in folder.glob("*/*.json")})
        hint = f" Its subfolders have results; give these: {' '.join(below)}" if below else ""
        raise InputError(
            f"there is no result (*.json) in {str(folder)!r}; give a folder with results.{hint}"
        )
    return found


def _load_run(path: Path) -> RunResult:
    try:
        run = RunResult.load(path)
        _ = run.experiment["method"]["name"], run.experiment["stream"], run.experiment["seed"]
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, InputError) else f"{str(path)!r} is not a result."
        raise InputError(
            f"{reason} A report reads the files that bitta run and bitta sweep wrote; move other "
            "JSON files out of the folder."
        ) from None
    return replace(run, experiment=_with_new_settings(run.experiment))


def _with_new_settings(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Add settings that the method got after the run, and drop those that had no effect."""
    settings = experiment["method"]
    method = METHODS.get(settings["name"])
    defaults = {} if method is None else {f.name: f.default for f in fields(method.Config)}
    table = {**experiment, "method": {**defaults, **settings}}
    if table.get("enhanced", {}).get("n_samples") == 0:  # an older result without fine-tuning
        del table["enhanced"]
    return table


def _sections_of_protocol(versions: Sequence[Sequence[_LoadedRun]]) -> list[Section]:
    """Return a section per version of the code. Row titles are unique across versions."""
    rows_by_version = [_group_into_rows(runs) for runs in versions]
    all_rows = [row for rows in rows_by_version for row in rows]
    return [
        _make_section(runs, rows, all_rows)
        for runs, rows in zip(versions, rows_by_version, strict=True)
    ]


def _group_into_rows(loaded_runs: Sequence[_LoadedRun]) -> list[Row]:
    _refuse_different_images(loaded_runs)
    groups: dict[str, dict[int, _LoadedRun]] = {}
    for loaded in loaded_runs:
        table = {key: value for key, value in loaded.run.experiment.items() if key != "seed"}
        runs = groups.setdefault(table_hash(table), {})
        other = runs.setdefault(loaded.run.experiment["seed"], loaded)
        if other is not loaded:
            raise InputError(
                f"{str(other.path)!r} and {str(loaded.path)!r} are the same run twice; leave one "
                "of them out."
            )
    rows = [
        Row(next(iter(runs.values())).run.name, {seed: runs[seed].run for seed in sorted(runs)})
        for runs in groups.values()
    ]
    return _make_names_unique(rows)


def _make_section(
    loaded_runs: Sequence[_LoadedRun], rows: Sequence[Row], all_rows: Sequence[Row]
) -> Section:
    titled = sorted(_add_qualifiers(rows, all_rows), key=_sort_key)
    folders = dict.fromkeys(loaded.path.parent for loaded in loaded_runs)
    protocol = protocol_without_seed(loaded_runs[0].run.protocol)
    section = Section(protocol, tuple(titled), tuple(folders))
    return replace(section, rows=_mark_collapsed_rows(section.rows, section.source_row))


def _refuse_different_images(loaded_runs: Sequence[_LoadedRun]) -> None:
    """Raise an error if runs of one protocol and seed saw different images."""
    first_of_seed: dict[int, _LoadedRun] = {}
    for loaded in loaded_runs:
        first = first_of_seed.setdefault(loaded.run.experiment["seed"], loaded)
        if first.run.environment.get("stream") != loaded.run.environment.get("stream"):
            raise InputError(
                f"{str(first.path)!r} and {str(loaded.path)!r} have the same protocol and seed but "
                "not the same images; report on them one at a time."
            )


def _make_names_unique(rows: Sequence[Row]) -> list[Row]:
    """Add the differing settings to names that several rows have."""
    renamed = []
    for row in rows:
        same_name = [other.flat_settings for other in rows if other.name == row.name]
        keys = differing_keys(same_name)
        settings = ", ".join(f"{key}={row.flat_settings.get(key)}" for key in keys)
        renamed.append(replace(row, name=f"{row.name} ({settings})") if settings else row)
    return renamed


def _add_qualifiers(rows: Sequence[Row], all_rows: Sequence[Row]) -> list[Row]:
    """Set the qualifiers from settings that differ in `all_rows`, or from the row's name."""
    qualified = []
    for row in rows:
        key = _similarity_key(row)
        similar = [other.effective_settings for other in all_rows if _similarity_key(other) == key]
        own = {
            key: row.effective_settings[key]
            for key in distinguishing_keys(similar)
            if key in row.effective_settings
        }
        settings = list_changed_settings(own, row.method, row.name)
        qualified.append(replace(row, qualifiers=(*_preset_qualifiers(row), *settings)))
    n_rows = Counter(row.title for row in qualified)
    return [
        replace(row, qualifiers=(*row.qualifiers, row.name)) if n_rows[row.title] > 1 else row
        for row in qualified
    ]


def _similarity_key(row: Row) -> tuple[str, AnswerKind, tuple[str, ...]]:
    return row.method, row.answer_kind, _preset_qualifiers(row)


def _preset_qualifiers(row: Row) -> tuple[str, ...]:
    # Older results have the table "enhanced" if the model was fine-tuned before the stream.
    is_prepared = bool({"before_stream", "enhanced"} & row.settings.keys())
    preset = find_preset(row.settings["method"])
    return tuple(word for word in (preset, "prepared" if is_prepared else "") if word)


def _group_by_method(rows: Sequence[Row]) -> list[list[Row]]:
    """Group the rows by method and kind of answers."""
    ordered = sorted(rows, key=_sort_key)
    return [list(group) for _, group in groupby(ordered, lambda row: (row.method, row.answer_kind))]


def _sort_key(row: Row) -> tuple[int, int, list[tuple[float, str]]]:
    """Return method, kind of answers, and name. Numbers in the name sort by value: 2 before 10."""
    methods = list(METHODS)
    method = methods.index(row.method) if row.method in methods else len(methods)
    parts = re.findall(r"(\d+(?:\.\d+)?)|(\D+)", row.name)
    name = [(float(number or -1), word) for number, word in parts]
    return method, get_args(AnswerKind).index(row.answer_kind), name


def find_collapsed_domains(row: Row, source_row: Row) -> dict[int, tuple[str, ...]]:
    """Return, by seed, the domains with less than half of the source model's accuracy."""
    domains_by_seed = {
        seed: run.collapsed(source_row.runs.get(seed, source_row.first_run))
        for seed, run in row.runs.items()
    }
    return _without_empty(domains_by_seed)


def _mark_collapsed_rows(rows: Sequence[Row], source_row: Row | None) -> tuple[Row, ...]:
    """Set `collapsed_domains` of the rows.

    A row has collapsed in a domain if its accuracy is less than half of the source model's.
    Without a source row, it has collapsed if its accuracy is less than half of the median row's,
    or if nearly all served labels are of a few classes.
    """
    if source_row is not None:
        return tuple(
            replace(row, collapsed_domains=find_collapsed_domains(row, source_row)) for row in rows
        )
    medians = _median_accuracies(rows)
    marked = []
    for row in rows:
        domains_by_seed = {
            seed: [
                *find_low_accuracy_domains(run.accuracy_by_domain, medians),
                *run.looks_collapsed,
            ]
            for seed, run in row.runs.items()
        }
        marked.append(replace(row, collapsed_domains=_without_empty(domains_by_seed)))
    return tuple(marked)


def _median_accuracies(rows: Sequence[Row]) -> dict[str, float]:
    domains = dict.fromkeys(domain for row in rows for domain in row.accuracy_by_domain)
    return {
        domain: median(
            row.accuracy_by_domain[domain].mean for row in rows if domain in row.accuracy_by_domain
        )
        for domain in domains
    }


def _without_empty(domains_by_seed: Mapping[int, Sequence[str]]) -> dict[int, tuple[str, ...]]:
    return {
        seed: tuple(dict.fromkeys(domains)) for seed, domains in domains_by_seed.items() if domains
    }
