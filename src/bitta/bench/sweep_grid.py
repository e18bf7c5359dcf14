"""Runs of a sweep: every experiment with every combination of the values in its [sweep]."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

from bitta.bench.experiment import Experiment, override, read_toml, section
from bitta.bench.run_files import result_path
from bitta.config_base import check_integer
from bitta.errors import InputError, SettingError, unknown_name_error

_SECTIONS = ("stream", "model", "method", "feedback", "before_stream", "forgetting")
_SELF_EXPLANATORY = ("method.name", "method.preset", "stream.kind")
"""Settings whose value alone goes into the name of a run."""
_MAX_NAME_BYTES = 200
"""Maximum length of a run's name. File systems allow 255 bytes, and suffixes are added."""

Choice = tuple[str, Any]
"""A dotted setting and one of its values."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a sweep."""

    experiment: Experiment
    file: Path
    """The TOML file that describes it."""

    @property
    def label(self) -> str:
        """Name and seed, as in the names of its files."""
        return result_path(self.experiment, Path()).stem


def read_jobs(
    paths: Sequence[str | Path],
    *,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: str = "*",
) -> list[Job]:
    """Build every run, in the order given, and check that no two have the same name.

    `overrides` are assignments a.b=value for every file. `seeds` replace the seeds in the files.
    `only` is a pattern for names, with or without the seed.
    """
    jobs: list[Job] = []
    for path in _find_files(paths):
        try:
            jobs += _read_file(path, overrides, seeds)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from None
    _refuse_collisions(jobs)
    chosen = [job for job in jobs if fnmatch(job.label, only) or fnmatch(job.experiment.name, only)]
    if not chosen:
        names = ", ".join(dict.fromkeys(job.experiment.name for job in jobs))
        raise InputError(f"--only {only!r} matches none of the runs; their names are: {names}.")
    return chosen


def _find_files(paths: Sequence[str | Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        files = sorted(path.rglob("*.toml")) if path.is_dir() else [path]
        if not files:
            raise InputError(
                f"there is no TOML file in {str(path)!r}; give a folder of experiments."
            )
        for file in files:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def _read_file(path: Path, overrides: Sequence[str], seeds: Sequence[int] | None) -> list[Job]:
    table = read_toml(path)
    for assignment in overrides:
        override(table, assignment)
    values = _read_sweep(section(table, "sweep"))
    table.pop("sweep", None)
    for assignment in overrides:
        if (setting := assignment.partition("=")[0].strip()) in values:
            raise SettingError(
                f"--set {assignment!r}, but [sweep] varies {setting}; leave one out."
            )
    own_seeds = values.pop("seeds", [table.get("seed", 0)])
    name = table.get("name", path.stem)
    jobs = []
    for choices in product(*([(key, value) for value in values[key]] for key in values)):
        for seed in own_seeds if seeds is None else seeds:
            own = {"seed": seed, "name": _run_name(name, choices)}
            changed = _apply_choices(table, choices) | own
            jobs.append(Job(Experiment.from_table(changed, name=path.stem), path))
    return jobs


def _read_sweep(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of each dotted setting."""
    values: dict[str, list[Any]] = {}
    for key, choices in _flatten(table):
        if key in values:
            raise SettingError(f"[sweep] has {key} twice; leave one of them out.")
        if key != "seeds" and (key.count(".") != 1 or key.partition(".")[0] not in _SECTIONS):
            known = ("seeds", *(f"{name}." for name in _SECTIONS))
            raise unknown_name_error(
                "key", key, known, of="[sweep]", hint='Write "method.lr" = [...].'
            )
        if not isinstance(choices, list) or not choices:
            raise SettingError(
                f"[sweep] {key} is {choices!r}; allowed: a list of one or more values."
            )
        for value in choices:
            if key == "seeds":
                check_integer("[sweep] seeds", value)
            elif not isinstance(value, bool | int | float | str):
                raise SettingError(
                    f"[sweep] {key} has {value!r}; allowed: numbers, text, booleans."
                )
        values[key] = choices
    return values


def _flatten(table: Mapping[str, Any], prefix: str = "") -> list[Choice]:
    """Return dotted keys. TOML reads method.lr without quotes as a table in a table."""
    pairs: list[Choice] = []
    for key, value in table.items():
        pairs += (
            _flatten(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else [(prefix + key, value)]
        )
    return pairs


def _apply_choices(table: Mapping[str, Any], choices: Sequence[Choice]) -> dict[str, Any]:
    changed = deepcopy(dict(table))
    for setting, value in choices:
        name, _, key = setting.partition(".")
        changed[name] = section(changed, name) | {key: value}
    return changed


def _run_name(name: Any, choices: Sequence[Choice]) -> Any:
    """Return a name such as bitta-lr0.0003-n_queries10.

    A name that is not text is returned as it is; `Experiment.from_table` refuses it.
    """
    if not isinstance(name, str) or not choices:
        return name
    keys = [setting.partition(".")[2] for setting, _ in choices]
    for (setting, value), key in zip(choices, keys, strict=True):
        label = setting if keys.count(key) > 1 else key
        if setting in _SELF_EXPLANATORY:
            name += f"-{_file_word(value)}"
        elif isinstance(value, int | float) and not isinstance(value, bool):
            name += f"-{label}{_file_word(value)}"
        else:
            name += f"-{label}-{_file_word(value)}"
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise SettingError(f"the name {name!r} is too long for a file; vary less in [sweep].")
    return name


def _file_word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text)


def _refuse_collisions(jobs: Sequence[Job]) -> None:
    """Refuse two runs that would write one result or one log of answers."""
    by_label: dict[str, Job] = {}
    by_log: dict[str, Job] = {}
    for job in jobs:
        other = by_label.setdefault(job.label, job)
        if other is not job:
            files = " and ".join(dict.fromkeys(map(str, (other.file, job.file))))
            raise SettingError(
                f"two runs would be called {job.label!r} ({files}); give one of them another "
                "name, or leave it out."
            )
        log = job.experiment.feedback.record
        if log and by_log.setdefault(log, job) is not job:
            raise SettingError(
                f"{by_log[log].label!r} and {job.label!r} would both write feedback.record "
                f"{log!r}; leave it out, or vary it."
            )
