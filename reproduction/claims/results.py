"""Our results, by the folder of experiments that they belong to."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bitta.errors import InputError
from bitta.report.paper_numbers import PaperTable, has_other_length
from bitta.report.rows import Row, restrict_to_shared_seeds
from bitta.report.sections import Section, read_sections
from bitta.results import table_hash

SUBSTITUTE_FOLDERS: Mapping[str, str] = dict.fromkeys(
    ("main-cifar10-c", "original", "full-labels", "recent-baselines"), "cifar10-c"
)
"""Folders whose missing rows are taken from another folder.

The folder cifar10-c has the same rows with one seed.
"""


class ResultFolders:
    """The results in one folder per folder of experiments. A folder is read on first use."""

    def __init__(self, root: Path, expected: Mapping[str, Collection[str]] | None = None) -> None:
        """`expected` has the names of all runs by folder. Without it no run counts as missing."""
        self.root = root
        self.expected = expected or {}
        self._sections: dict[str, list[Section]] = {}

    def has_results(self, folder: str) -> bool:
        """Return True if the folder itself holds a result."""
        return any((self.root / folder).glob("*.json"))

    def is_unfinished(self, folder: str, runs: str = "*") -> bool:
        """Return True if some, but not all, runs whose names match `runs` have a result."""
        wanted = {name for name in self.expected.get(folder, ()) if fnmatchcase(name, runs)}
        return self.has_results(folder) and bool(wanted - self.run_names(folder))

    def run_names(self, folder: str) -> set[str]:
        """Return the names of the runs that have a result."""
        return {path.stem for path in (self.root / folder).glob("*.json")}

    def own_sections(self, folder: str) -> list[Section]:
        """Return the folder's results, one section per protocol and source model.

        Results of different versions of the code share a section.
        """
        if folder not in self._sections:
            found = read_sections([self.root / folder]) if self.has_results(folder) else []
            self._sections[folder] = _join_code_versions(found)
        return self._sections[folder]

    def sections(self, folder: str) -> list[Section]:
        """Return the folder's sections, then those of its substitute."""
        substitute = SUBSTITUTE_FOLDERS.get(folder)
        return self.own_sections(folder) + (self.own_sections(substitute) if substitute else [])

    def rows(self, folder: str, method: str, *, kind: str = "", **settings: Any) -> list[Row]:
        """Return the rows of a method on a kind of stream with some settings.

        Two underscores stand for the dot in a setting's name: method__policy="dropout".
        """
        wanted = {key.replace("__", "."): value for key, value in settings.items()}
        return [
            row
            for section in self.sections(folder)
            for row in section.rows
            if row.method == method
            and kind in ("", row.settings["stream"]["kind"])
            and all(row.effective_settings.get(key) == value for key, value in wanted.items())
        ]

    def rows_by_setting(
        self, folder: str, key: str, method: str = "bitta", *, kind: str = "", **settings: Any
    ) -> dict[Any, Row]:
        """Return a method's rows by the value of a setting, ascending, with their common seeds."""
        rows = self.rows(folder, method, kind=kind, **settings)
        # Reversed, so that a row of the folder itself replaces that of its substitute.
        found = {
            row.effective_settings[key]: row
            for row in reversed(rows)
            if key in row.effective_settings
        }
        return dict(sorted(zip(found, restrict_to_shared_seeds(list(found.values())), strict=True)))

    def source_row(self, row: Row) -> Row | None:
        """Return the unadapted source model on the images of a row, from any folder."""
        others = self.rows_on_same_images(row)
        return next((other for other in others if other.method == "source"), None)

    def rows_on_same_images(self, row: Row) -> Iterator[Row]:
        """Yield the rows of all folders on the images of a row, with the same source weights."""
        images = _images_and_weights(row)
        for folder in self.expected or sorted(path.name for path in self.root.iterdir()):
            for section in self.own_sections(folder):
                yield from (o for o in section.rows if images & _images_and_weights(o))

    def has_other_lengths(
        self, folder: str, tables: Collection[PaperTable], runs: str = "*"
    ) -> bool:
        """Return True if some of these runs have another length of stream than the paper."""
        return any(
            has_other_length(section, tables)
            for section in self.sections(folder)
            if any(fnmatchcase(f"{row.name}-seed", runs) for row in section.rows)
        )


def _images_and_weights(row: Row) -> set[tuple[str, str]]:
    """Return the hashes of stream and source weights of each run that recorded both."""
    environments = [run.environment for run in row.runs.values()]
    return {
        (environment["stream"], environment["source_weights"])
        for environment in environments
        if {"stream", "source_weights"} <= environment.keys()
    }


def _join_code_versions(sections: list[Section]) -> list[Section]:
    groups: dict[str, list[Section]] = {}
    for section in sections:
        key = {
            "protocol": section.protocol,
            "stream": {**section.rows[0].settings["stream"], "path": ""},
            "weights": section.environment_values("source_weights"),
        }
        groups.setdefault(table_hash(key), []).append(section)
    return [_join(group) for group in groups.values()]


def _join(sections: list[Section]) -> Section:
    """Join sections. Rows with the same name and settings become one row."""
    _refuse_other_images(sections)
    rows: dict[str, Row] = {}
    for row in (row for section in sections for row in section.rows):
        key = table_hash({"name": row.name, **row.settings})
        rows[key] = _with_runs_of(rows[key], row) if key in rows else row
    folders = dict.fromkeys(folder for section in sections for folder in section.folders)
    return replace(sections[0], rows=tuple(rows.values()), folders=tuple(folders))


def _with_runs_of(row: Row, other: Row) -> Row:
    """Add the runs of another row. For a seed that both have, keep the first row's run."""
    runs = {**other.runs, **row.runs}
    collapsed = {**other.collapsed_domains, **row.collapsed_domains}
    return replace(other, runs=dict(sorted(runs.items())), collapsed_domains=collapsed)


def _refuse_other_images(sections: list[Section]) -> None:
    """Raise InputError if runs with the same seed have seen different images."""
    streams: dict[int, set[str]] = {}
    for row in (row for section in sections for row in section.rows):
        for seed, run in row.runs.items():
            streams.setdefault(seed, set()).add(str(run.environment.get("stream")))
    if differing := [seed for seed, found in streams.items() if len(found) > 1]:
        folders = ", ".join(str(folder) for folder in sections[0].folders)
        raise InputError(
            f"results of one protocol in {folders!r} were run on different images, with seed "
            f"{differing[0]}; move the results of one machine to another folder."
        )
