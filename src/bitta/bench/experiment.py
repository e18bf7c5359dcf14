"""An experiment: a stream, a model, a method and an annotator, described in a TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bitta.bench.annotators import FeedbackConfig
from bitta.bench.before_stream import BeforeStream, build_before_stream
from bitta.bench.streams import ForgettingConfig, StreamConfig
from bitta.config_base import Config, build_config, check_integer
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.methods import get_method
from bitta.methods.base import AdapterConfig
from bitta.selection import get_score_function

_KEYS = ("name", "seed", "stream", "model", "method", "feedback", "before_stream", "forgetting")
_OLD_FINE_TUNING_KEY = "enhanced"
"""Table in older results. It has n_samples = 0 if the run was not fine-tuned."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The source model."""

    weights: str = ""
    """A file written by `bitta pretrain`, or embedded:digits-resnet8, embedded:cifar10-resnet8."""
    factory: str = ""
    """Instead of weights: module:function that returns an nn.Module with loaded weights."""
    logits: str = ""
    """Attribute of the model's output that holds the logits, if it is an object."""

    def __post_init__(self) -> None:
        if bool(self.weights) == bool(self.factory):
            raise SettingError(
                "give one of model.weights and model.factory; "
                f"weights is {self.weights!r}, factory is {self.factory!r}."
            )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings that determine the result of a run."""

    name: str
    stream: StreamConfig
    model: ModelConfig
    method: str
    settings: AdapterConfig
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    before_stream: BeforeStream | None = None
    forgetting: ForgettingConfig = field(default_factory=ForgettingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.before_stream is None:
            return
        if "source statistics" in get_method(self.method).needs:
            raise SettingError(
                f"[before_stream] changes the weights, but {self.method} needs source statistics, "
                "which belong to the unchanged weights; leave out [before_stream], or use another "
                "method."
            )
        self.before_stream.check_experiment(self)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read an experiment from a TOML file."""
        return cls.from_table(read_toml(path), name=Path(path).stem)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], *, name: str) -> Self:
        """Build an experiment from a parsed table. `name` is used if the table has no name."""
        if "sweep" in table:
            raise SettingError('[sweep] makes many runs of one file; use "bitta sweep" for it.')
        for key in table:
            if key not in _KEYS:
                raise unknown_name_error("key", key, _KEYS)
        method, settings = _read_method(section(table, "method"))
        stream = section(table, "stream")
        if "kind" not in stream:
            raise SettingError('stream.kind is missing; "bitta streams" lists all kinds.')
        name = table.get("name", name)
        if not isinstance(name, str) or not name or set(name) & set("/\\"):
            raise SettingError(f"name is {name!r}; allowed: text that can name a file.")
        return cls(
            name=name,
            stream=build_config(StreamConfig, stream, preset=None, of="[stream]"),
            model=build_config(ModelConfig, section(table, "model"), preset=None, of="[model]"),
            method=method,
            settings=settings,
            feedback=FeedbackConfig.from_table(section(table, "feedback")),
            before_stream=(
                build_before_stream(section(table, "before_stream"))
                if "before_stream" in table
                else None
            ),
            forgetting=build_config(
                ForgettingConfig, section(table, "forgetting"), preset=None, of="[forgetting]"
            ),
            seed=check_integer("seed", table.get("seed", 0)),
        )

    def as_table(self) -> dict[str, Any]:
        """Return every setting as plain values. `from_table` reads them back."""
        table = asdict(self)
        table["method"] = {"name": table.pop("method"), **table.pop("settings")}
        if self.before_stream is None:
            del table["before_stream"]
        return table

    def matches(self, table: Mapping[str, Any]) -> bool:
        """Return True if the table, written by this or an earlier version, has the same settings.

        A setting that is missing in the table has its default.
        """
        fine_tuning = table.get(_OLD_FINE_TUNING_KEY)
        if isinstance(fine_tuning, Mapping) and fine_tuning.get("n_samples") == 0:
            table = {key: table[key] for key in table if key != _OLD_FINE_TUNING_KEY}
        try:
            return Experiment.from_table(table, name="").as_table() == self.as_table()
        except SettingError:
            return False


def _read_method(table: Mapping[str, Any]) -> tuple[str, AdapterConfig]:
    """Return the name and the settings of the method in the table [method]."""
    given = dict(table)
    name = given.pop("name", None)
    if not isinstance(name, str):
        found = "missing" if name is None else repr(name)
        raise SettingError(f'method.name is {found}; give a name, such as name = "bitta".')
    preset = given.pop("preset", None)
    settings = get_method(name).configure(given, preset, name=name)
    get_score_function(settings.selection)
    return name, settings


def read_toml(path: str | Path) -> dict[str, Any]:
    """Parse a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}; give an existing TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error}); give a TOML file in UTF-8."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{str(path)!r} is not valid TOML: {error}; correct it.") from None


def override(table: dict[str, Any], assignment: str) -> None:
    """Apply `a.b=c` to a table in place. The value is read as TOML, or else as a string."""
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise SettingError(
            f"--set {assignment!r} does not have the form a.b=value, such as method.lr=1e-3."
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = _parse_number(text.strip())
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise SettingError(
                f"--set {assignment!r}: {key!r} is a value, not a table; name a setting in a "
                "table, such as method.lr."
            )
    table[keys[-1]] = value


def _parse_number(text: str) -> float | str:
    """Accept .1, which TOML does not. Return text that is not a number as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def section(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a sub-table, or an empty one if there is none."""
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise SettingError(f"{name} is {value!r}; allowed: a table [{name}].")
    return value
