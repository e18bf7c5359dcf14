"""Results put together: seeds to rows, rows of one protocol to sections."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from bitta.errors import InputError
from bitta.methods import METHODS
from bitta.report.collapse import marked
from bitta.report.names import Answers, preset_of, told_settings
from bitta.report.row import POINTS, Row, Spread
from bitta.results import RunResult, table_hash

__all__ = ["Row", "Section", "Spread", "read_sections"]

_MOST_SWEPT = 2
_ANSWERS: tuple[Answers, ...] = ("none", "verdict", "full")


@dataclass(frozen=True)
class Section:
    """Rows of one protocol, model and code: what may stand in one table."""

    protocol: str
    """In words, without the seed."""
    rows: tuple[Row, ...]
    folders: tuple[Path, ...] = ()
    """Where the results lie."""
    hidden: tuple[Row, ...] = ()
    """Rows that were run as well, but are not to be shown."""

    @property
    def source(self) -> Row | None:
        """The model as it was trained, if it was run; else one that was tuned beforehand."""
        found = [row for row in (*self.rows, *self.hidden) if row.method == "source"]
        return min(found, key=lambda row: len(row.apart), default=None)

    @property
    def title(self) -> str:
        """What was run, in a few words."""
        stream, sizes = self.rows[0].settings["stream"], self.domains
        each = {f"{size:,}" for size in sizes.values()}
        samples = each.pop() if len(each) == 1 else f"{sum(sizes.values()):,} in all"
        several = f"{len(sizes)} domains of {samples}" if len(sizes) > 1 else samples
        return f"{stream['kind']}, {stream['order']}, {several} samples"

    @property
    def domains(self) -> dict[str, int]:
        """Samples of each, in the order of the stream."""
        sizes: dict[str, int] = {}
        for step in self.rows[0].first.steps:
            sizes[step.domain] = sizes.get(step.domain, 0) + step.n
        return sizes

    @property
    def points(self) -> Mapping[str, float]:
        """Those of a mixed stream."""
        return POINTS if list(self.domains) == ["mixed"] else {}

    @property
    def seeds(self) -> tuple[int, ...]:
        """All that some row has."""
        return tuple(sorted({seed for row in self.rows for seed in row.runs}))

    @property
    def model(self) -> str:
        """Where the source model came from."""
        given = [run.experiment["model"] for run in self._runs()]
        return ", ".join(
            dict.fromkeys(str(table["weights"] or table["factory"]) for table in given)
        )

    def environment(self, key: str) -> tuple[str, ...]:
        """Every "device", "torch", "code", "source_weights" ... that the runs had."""
        return tuple(dict.fromkeys(str(run.environment.get(key, "")) for run in self._runs()))

    @property
    def has_memory(self) -> bool:
        """Whether memory is that of tensors on one GPU; on a CPU it is the whole process's."""
        devices = self.environment("device")
        return len(devices) == 1 and devices[0] not in ("", "cpu")

    @property
    def varied(self) -> dict[str, dict[str, Any]]:
        """Settings in which rows of the same method and answers differ: values by row name."""
        settings = {row.name: row.varying for row in self.rows}
        keys: dict[str, None] = {}
        for group in grouped(self.rows):
            keys |= dict.fromkeys(telling([settings[row.name] for row in group]))
        return {key: {name: of.get(key) for name, of in settings.items()} for key in keys}

    @property
    def swept(self) -> tuple[str, ...]:
        """One or two of them, if that is what most rows differ in: columns of a table."""
        of = [len(group) for group in grouped(self.rows) if len(group) > 1]
        varied = tuple(self.varied)
        return varied if len(varied) <= _MOST_SWEPT and 2 * sum(of) >= len(self.rows) else ()

    def only(self, names: Sequence[str]) -> "Section":
        """With the rows of such names, or patterns of them; the others are hidden."""
        shown = tuple(row for row in self.rows if any(row.is_called(name) for name in names))
        kept = {row.name for row in shown}
        hidden = tuple(row for row in self.rows if row.name not in kept)
        return replace(self, rows=shown, hidden=hidden)

    def _runs(self) -> Iterator[RunResult]:
        return (run for row in self.rows for run in row.runs.values())


def read_sections(folders: Sequence[Path]) -> list[Section]:
    """Every result in some folders, apart where protocol, source weights or code differ."""
    protocols: dict[str, dict[str, list[_Found]]] = {}
    for found in _read(folders):
        run = found.run
        what = [seedless(run.protocol), {**run.experiment["stream"], "path": ""}]
        model, code = (run.environment.get(key) for key in ("source_weights", "code"))
        versions = protocols.setdefault(table_hash({"what": what, "model": model}), {})
        versions.setdefault(str(code), []).append(found)
    return [section for of in protocols.values() for section in _sections(list(of.values()))]


def seedless(protocol: str) -> str:
    """A protocol for all seeds.

    >>> seedless("64 samples, batch 1, seed 3, window 64")
    '64 samples, batch 1, window 64'
    """
    return re.sub(r", seed -?\d+", "", protocol)


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of the same method and answers together."""
    return [
        list(group)
        for _, group in groupby(sorted(rows, key=_place), lambda row: (row.method, row.answers))
    ]


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that do not have one value everywhere."""
    keys = dict.fromkeys(key for table in settings for key in table)
    return [key for key in keys if len({repr(table.get(key)) for table in settings}) > 1]


def telling(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of several values; who lacks one, as it has no effect there, is not told by it.

    >>> telling([{"agreement": "policy"}, {"agreement": "threshold", "threshold": 0.9}])
    ['agreement']
    """
    keys = dict.fromkeys(key for table in settings for key in table)
    there = {key: {repr(table[key]) for table in settings if key in table} for key in keys}
    return [key for key, values in there.items() if len(values) > 1]


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    run: RunResult


def _read(folders: Sequence[Path]) -> Iterator[_Found]:
    paths: dict[Path, Path] = {}
    for folder in folders:
        for path in _results_in(folder):
            paths.setdefault(path.resolve(), path)
    for path in paths.values():
        yield _Found(path, _loaded(path))


def _results_in(folder: Path) -> list[Path]:
    if not folder.exists():
        raise InputError(f"there is no folder {str(folder)!r}.")
    if not folder.is_dir():
        return [folder]
    found = sorted(folder.glob("*.json"))
    if not found:
        below = sorted({str(path.parent) for path in folder.glob("*/*.json")})
        hint = f" Folders in it have some; give these: {' '.join(below)}" if below else ""
        raise InputError(f"there is no result (*.json) in {str(folder)!r}.{hint}")
    return found


def _loaded(path: Path) -> RunResult:
    try:
        run = RunResult.load(path)
        _ = run.experiment["method"]["name"], run.experiment["stream"], run.experiment["seed"]
    except (KeyError, TypeError, ValueError) as error:
        why = str(error) if isinstance(error, InputError) else f"{str(path)!r} is not a result."
        raise InputError(
            f"{why} A report is made from what bitta run and bitta sweep wrote; move other JSON "
            "files out of the folder."
        ) from None
    return replace(run, experiment=_with_defaults(run.experiment))


def _with_defaults(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """A setting that the method has got since then is at its default, which changes nothing."""
    given = experiment["method"]
    kind = METHODS.get(given["name"])
    since = {} if kind is None else {one.name: one.default for one in fields(kind.Config)}
    return {**experiment, "method": {**since, **given}}


def _sections(versions: Sequence[Sequence[_Found]]) -> list[Section]:
    """One for each version of the code, with rows that are told apart from those of all."""
    made = [_rows(founds) for founds in versions]
    beside = [row for rows in made for row in rows]
    return [_section(founds, rows, beside) for founds, rows in zip(versions, made, strict=True)]


def _rows(founds: Sequence[_Found]) -> list[Row]:
    _refuse_other_images(founds)
    rows: dict[str, dict[int, _Found]] = {}
    for found in founds:
        table = {key: value for key, value in found.run.experiment.items() if key != "seed"}
        runs = rows.setdefault(table_hash(table), {})
        other = runs.setdefault(found.run.experiment["seed"], found)
        if other is not found:
            raise InputError(
                f"{str(other.path)!r} and {str(found.path)!r} are the same run twice; leave one "
                "of them out."
            )
    made = [
        Row(next(iter(of.values())).run.name, {seed: of[seed].run for seed in sorted(of)})
        for of in rows.values()
    ]
    return _uniquely_named(made)


def _section(founds: Sequence[_Found], rows: Sequence[Row], beside: Sequence[Row]) -> Section:
    named = sorted(_told_apart(rows, beside), key=_place)
    folders = dict.fromkeys(found.path.parent for found in founds)
    section = Section(seedless(founds[0].run.protocol), tuple(named), tuple(folders))
    return replace(section, rows=marked(section.rows, section.source))


def _refuse_other_images(founds: Sequence[_Found]) -> None:
    """One protocol and seed is one order of the same images."""
    first: dict[int, _Found] = {}
    for found in founds:
        other = first.setdefault(found.run.experiment["seed"], found)
        if other.run.environment.get("stream") != found.run.environment.get("stream"):
            raise InputError(
                f"{str(other.path)!r} and {str(found.path)!r} have one protocol and seed but not "
                "the same images; report on them one at a time."
            )


def _uniquely_named(rows: Sequence[Row]) -> list[Row]:
    """Rows of one name, of several folders, say in which settings they differ."""
    named = []
    for row in rows:
        like = [other.given for other in rows if other.name == row.name]
        told = [f"{key}={row.given.get(key)}" for key in differing(like)]
        named.append(replace(row, name=f"{row.name} ({', '.join(told)})") if told else row)
    return named


def _told_apart(rows: Sequence[Row], beside: Sequence[Row]) -> list[Row]:
    """By settings in which rows of some version differ; by name where these are the same."""
    told = []
    for row in rows:
        keys = telling([other.varying for other in beside if _kind(other) == _kind(row)])
        own = {key: row.varying[key] for key in keys if key in row.varying}
        settings = told_settings(own, row.method, row.name)
        told.append(replace(row, apart=(*_preset(row), *settings)))
    titles = Counter(row.title for row in told)
    return [
        replace(row, apart=(*row.apart, row.name)) if titles[row.title] > 1 else row for row in told
    ]


def _kind(row: Row) -> tuple[str, Answers, tuple[str, ...]]:
    return row.method, row.answers, _preset(row)


def _preset(row: Row) -> tuple[str, ...]:
    tuned = row.settings.get("enhanced", {}).get("n_samples", 0) != 0
    preset = preset_of(row.settings["method"])
    return tuple(word for word in (preset, "enhanced" if tuned else "") if word)


def _place(row: Row) -> tuple[int, int, list[tuple[float, str]]]:
    """In the order of the methods, then by answers, then by name, 2 before 10."""
    methods = list(METHODS)
    method = methods.index(row.method) if row.method in methods else len(methods)
    words = re.findall(r"(\d+(?:\.\d+)?)|(\D+)", row.name)
    name = [(float(number or -1), word) for number, word in words]
    return method, _ANSWERS.index(row.answers), name
