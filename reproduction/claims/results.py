"""Results as claims look at them: by the folder of experiments that they come from."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bitta.errors import InputError
from bitta.report.reference_numbers import is_shorter
from bitta.report.row import Row, on_shared_seeds
from bitta.report.rows import Section, read_sections
from bitta.results import table_hash

STAND_INS: Mapping[str, str] = dict.fromkeys(
    ("main-cifar10-c", "original", "full-labels", "recent-baselines"), "cifar10-c"
)
"""results/cifar10-c has the same rows with one seed, and counts where the others are not run."""


class Results:
    """What lies under results/, read when it is asked for."""

    def __init__(self, root: Path, expected: Mapping[str, Collection[str]] | None = None) -> None:
        """`expected` are the names of the runs of each folder; without it, what is there is all."""
        self.root = root
        self.expected = expected or {}
        self._sections: dict[str, list[Section]] = {}

    def has(self, folder: str) -> bool:
        """Whether something of it was run under its own name."""
        return any((self.root / folder).glob("*.json"))

    def unfinished(self, folder: str, part: str = "*") -> bool:
        """Whether some of its runs, but not all, are there."""
        wanted = {name for name in self.expected.get(folder, ()) if fnmatchcase(name, part)}
        return self.has(folder) and bool(wanted - self.names(folder))

    def names(self, folder: str) -> set[str]:
        """What its results are called, without the ending."""
        return {path.stem for path in (self.root / folder).glob("*.json")}

    def own_sections(self, folder: str) -> list[Section]:
        """Of one protocol and model each, whatever the version of the code."""
        if folder not in self._sections:
            found = read_sections([self.root / folder]) if self.has(folder) else []
            self._sections[folder] = _joined(found)
        return self._sections[folder]

    def sections(self, folder: str) -> list[Section]:
        """Its own, then those that stand in for it."""
        other = STAND_INS.get(folder)
        return self.own_sections(folder) + (self.own_sections(other) if other else [])

    def rows(self, folder: str, method: str, *, kind: str = "", **settings: Any) -> list[Row]:
        """Rows of a method on a set, with such settings: method__policy="dropout"."""
        wanted = {key.replace("__", "."): value for key, value in settings.items()}
        return [
            row
            for section in self.sections(folder)
            for row in section.rows
            if row.method == method
            and kind in ("", row.settings["stream"]["kind"])
            and all(row.varying.get(key) == value for key, value in wanted.items())
        ]

    def source_of(self, row: Row) -> Row | None:
        """The source model on the images of a row, if it was run in any folder."""
        return next((one for one in self.beside(row) if one.method == "source"), None)

    def beside(self, row: Row) -> Iterator[Row]:
        """Rows of all folders on the images of one, from the same weights."""
        seen = _images(row)
        for folder in self.expected or sorted(path.name for path in self.root.iterdir()):
            for section in self.own_sections(folder):
                yield from (other for other in section.rows if seen & _images(other))

    def sweep(
        self, folder: str, key: str, method: str = "bitta", *, kind: str = "", **settings: Any
    ) -> dict[Any, Row]:
        """Rows of a method by the value of a setting, ascending, with the seeds that all have."""
        rows = self.rows(folder, method, kind=kind, **settings)
        found = {row.varying[key]: row for row in reversed(rows) if key in row.varying}
        return dict(sorted(zip(found, on_shared_seeds(list(found.values())), strict=True)))

    def is_shorter(self, folder: str, part: str = "*") -> bool:
        """Whether streams of such runs are shorter than the paper's."""
        return any(
            is_shorter(section)
            for section in self.sections(folder)
            if any(fnmatchcase(f"{row.name}-seed", part) for row in section.rows)
        )


def _images(row: Row) -> set[tuple[str, str]]:
    """Streams that it was run on, and the weights it began with, where both are known."""
    runs = [run.environment for run in row.runs.values()]
    return {(of["stream"], of["source_weights"])
            for of in runs if {"stream", "source_weights"} <= of.keys()}  # fmt: skip


def _joined(sections: list[Section]) -> list[Section]:
    """Versions of the code put together; rows of the same settings are one."""
    groups: dict[str, list[Section]] = {}
    for section in sections:
        what = {
            "protocol": section.protocol,
            "stream": {**section.rows[0].settings["stream"], "path": ""},
            "weights": section.environment("source_weights"),
        }
        groups.setdefault(table_hash(what), []).append(section)
    return [_one(group) for group in groups.values()]


def _one(sections: list[Section]) -> Section:
    _refuse_other_images(sections)
    rows: dict[str, Row] = {}
    for row in (row for section in sections for row in section.rows):
        key = table_hash({"name": row.name, **row.settings})
        rows[key] = _with(row, rows[key]) if key in rows else row
    folders = dict.fromkeys(folder for section in sections for folder in section.folders)
    return replace(sections[0], rows=tuple(rows.values()), folders=tuple(folders))


def _with(row: Row, first: Row) -> Row:
    """Seeds of both; what the first has stays."""
    runs = {**row.runs, **first.runs}
    collapsed = {**row.collapsed, **first.collapsed}
    return replace(row, runs=dict(sorted(runs.items())), collapsed=collapsed)


def _refuse_other_images(sections: list[Section]) -> None:
    """Versions of the code may share a statement, but only about the same images."""
    streams: dict[int, set[str]] = {}
    for row in (row for section in sections for row in section.rows):
        for seed, run in row.runs.items():
            streams.setdefault(seed, set()).add(str(run.environment.get("stream")))
    if differing := [seed for seed, found in streams.items() if len(found) > 1]:
        places = ", ".join(str(folder) for folder in sections[0].folders)
        raise InputError(
            f"results of one protocol in {places!r} have seen other images, with seed "
            f"{differing[0]}; move those of one machine elsewhere."
        )
