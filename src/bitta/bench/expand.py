"""The runs of a sweep: every experiment that is named, times every combination of its [sweep]."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

from bitta.bench.experiment import Experiment
from bitta.bench.places import result_path
from bitta.bench.toml import override, read_toml, section
from bitta.config import check_integer
from bitta.errors import InputError, SettingError, unknown_name_error

_SECTIONS = ("stream", "model", "method", "feedback", "enhanced", "forgetting")
_PLAIN = ("method.name", "method.preset", "stream.kind")
"""Settings whose values say enough by themselves."""
_LONGEST = 200
"""Bytes of a name: file systems allow 255, and suffixes are added."""

Choice = tuple[str, Any]
"""A dotted setting and one of its values."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep."""

    experiment: Experiment
    file: Path
    """The TOML it comes from."""

    @property
    def label(self) -> str:
        """Name and seed: what its files are called."""
        return result_path(self.experiment, Path()).stem


def read_jobs(
    paths: Sequence[str | Path],
    *,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: str = "*",
) -> list[Job]:
    """Every run, built and seen to be unlike every other, in the order given.

    `overrides` are a.b=value, applied to each file; `seeds` take the place of those of the files;
    `only` is a pattern for names with or without the seed.
    """
    jobs: list[Job] = []
    for path in _files(paths):
        try:
            jobs += _jobs_of(path, overrides, seeds)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from None
    _refuse_clashes(jobs)
    chosen = [job for job in jobs if _matches(job, only)]
    if not chosen:
        names = ", ".join(dict.fromkeys(job.experiment.name for job in jobs))
        raise InputError(f"--only {only!r} leaves none of the runs; there are: {names}.")
    return chosen


def _files(paths: Sequence[str | Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        files = sorted(path.rglob("*.toml")) if path.is_dir() else [path]
        if not files:
            raise InputError(f"there is no TOML file in {str(path)!r}.")
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _jobs_of(path: Path, overrides: Sequence[str], seeds: Sequence[int] | None) -> list[Job]:
    table = read_toml(path)
    for assignment in overrides:
        override(table, assignment)
    varied = _varied(section(table, "sweep"))
    table.pop("sweep", None)
    for assignment in overrides:
        if (setting := assignment.partition("=")[0].strip()) in varied:
            raise SettingError(
                f"--set {assignment!r}, but [sweep] varies {setting}; leave one out."
            )
    own = varied.pop("seeds", [table.get("seed", 0)])
    name = table.get("name", path.stem)
    jobs = []
    for choices in product(*([(key, value) for value in varied[key]] for key in varied)):
        for seed in own if seeds is None else seeds:
            changed = _changed(table, choices) | {"seed": seed, "name": _name(name, choices)}
            jobs.append(Job(Experiment.of(changed, name=path.stem), path))
    return jobs


def _varied(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Lists by dotted setting, however the table is written."""
    varied: dict[str, list[Any]] = {}
    for key, values in _flat(table):
        if key in varied:
            raise SettingError(f"[sweep] has {key} twice; leave one of them out.")
        if key != "seeds" and (key.count(".") != 1 or key.partition(".")[0] not in _SECTIONS):
            known = ("seeds", *(f"{name}." for name in _SECTIONS))
            raise unknown_name_error(
                "key", key, known, of="[sweep]", hint='Write "method.lr" = [...].'
            )
        if not isinstance(values, list) or not values:
            raise SettingError(f"[sweep] {key} is {values!r}; allowed: a list of one or more.")
        for value in values:
            if key == "seeds":
                check_integer("[sweep] seeds", value)
            elif not isinstance(value, bool | int | float | str):
                raise SettingError(
                    f"[sweep] {key} has {value!r}; allowed: numbers, text, booleans."
                )
        varied[key] = values
    return varied


def _flat(table: Mapping[str, Any], above: str = "") -> list[Choice]:
    """Without quotes TOML reads method.lr as a table in a table."""
    pairs: list[Choice] = []
    for key, value in table.items():
        pairs += (
            _flat(value, f"{above}{key}.") if isinstance(value, dict) else [(above + key, value)]
        )
    return pairs


def _changed(table: Mapping[str, Any], choices: Sequence[Choice]) -> dict[str, Any]:
    changed = deepcopy(dict(table))
    for setting, value in choices:
        place, _, key = setting.partition(".")
        changed[place] = section(changed, place) | {key: value}
    return changed


def _name(name: Any, choices: Sequence[Choice]) -> Any:
    """bitta-lr0.0003-n_queries10; what is no name stays for `Experiment.of` to refuse."""
    if not isinstance(name, str) or not choices:
        return name
    leaves = [setting.partition(".")[2] for setting, _ in choices]
    for (setting, value), leaf in zip(choices, leaves, strict=True):
        word = setting if leaves.count(leaf) > 1 else leaf
        name += f"-{_word(value)}" if setting in _PLAIN else f"-{word}{_joined(value)}"
    if len(name.encode()) > _LONGEST:
        raise SettingError(
            f"the name {name!r} is too long for a file; shorten what [sweep] varies."
        )
    return name


def _joined(value: Any) -> str:
    """lr0.1, but order-mixed."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return _word(value) if number else f"-{_word(value)}"


def _word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text)


def _refuse_clashes(jobs: Sequence[Job]) -> None:
    first: dict[str, Job] = {}
    logs: dict[str, Job] = {}
    for job in jobs:
        other = first.setdefault(job.label, job)
        if other is not job:
            where = " and ".join(dict.fromkeys(map(str, (other.file, job.file))))
            raise SettingError(
                f"two runs would be called {job.label!r} ({where}); give one of them another "
                "name, or leave it out."
            )
        log = job.experiment.feedback.record
        if log and logs.setdefault(log, job) is not job:
            raise SettingError(
                f"{logs[log].label!r} and {job.label!r} would both write feedback.record "
                f"{log!r}; leave it out, or vary it."
            )


def _matches(job: Job, only: str) -> bool:
    return fnmatch(job.label, only) or fnmatch(job.experiment.name, only)
