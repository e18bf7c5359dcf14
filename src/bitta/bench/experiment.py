"""An experiment: a stream, a model, a method, someone who answers; written as a TOML file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bitta.adapter import AdapterConfig
from bitta.bench.streams import StreamConfig
from bitta.bench.toml import read_toml, section
from bitta.config import Config, build, require, whole
from bitta.errors import SettingError, unknown
from bitta.methods import method_named
from bitta.selection import selector_named


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """The source model."""

    weights: str = ""
    """A file written by `bitta pretrain`, or embedded:digits-resnet8, embedded:cifar10-resnet8."""
    factory: str = ""
    """Instead: module:function that returns any nn.Module, its weights loaded."""
    logits: str = ""
    """Attribute of the model's output that holds the logits, if it is an object."""

    def __post_init__(self) -> None:
        if bool(self.weights) == bool(self.factory):
            raise SettingError(
                "give one of model.weights and model.factory; "
                f"weights is {self.weights!r}, factory is {self.factory!r}."
            )


@dataclass(frozen=True, kw_only=True)
class FeedbackConfig(Config):
    """The annotator, played by the truth."""

    n_queries: int = -1
    """Questions per batch; -1 for the method's own number."""
    every: int = 1
    """Ask on every n-th batch only."""
    total: int = -1
    """Questions in all; -1 for no limit."""
    flip: float = 0.0
    """Probability of a wrong verdict."""
    delay: int = 0
    """How many batches late an answer comes."""
    answer_every: int = 1
    """Answer the questions of every n-th batch only."""

    def __post_init__(self) -> None:
        require(self.n_queries >= -1, "n_queries", self.n_queries, "0 or more, or -1")
        require(self.total >= -1, "total", self.total, "0 or more, or -1")
        require(0 <= self.flip <= 1, "flip", self.flip, "0 to 1")
        require(self.delay >= 0, "delay", self.delay, "0 or more")
        require(self.every >= 1, "every", self.every, "1 or more")
        require(self.answer_every >= 1, "answer_every", self.answer_every, "1 or more")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides a result."""

    name: str
    stream: StreamConfig
    model: ModelConfig
    method: str
    settings: AdapterConfig
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    seed: int = 0

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """From a TOML file."""
        return cls.of(read_toml(path), name=Path(path).stem)

    @classmethod
    def of(cls, table: Mapping[str, Any], *, name: str) -> Self:
        """From a parsed table; `name` is used where it has none."""
        for key in table:
            if key not in _KEYS:
                raise unknown("key", key, _KEYS)
        given = dict(section(table, "method"))
        method = given.pop("name", None)
        if not isinstance(method, str):
            raise SettingError('method.name is missing; say which, such as name = "bitta".')
        preset = given.pop("preset", None)
        stream = section(table, "stream")
        if "kind" not in stream:
            raise SettingError('stream.kind is missing; "bitta streams" lists what there is.')
        settings = method_named(method).configure(given, preset, name=method)
        selector_named(settings.selection)
        name = table.get("name", name)
        if not isinstance(name, str) or not name or set(name) & set("/\\"):
            raise SettingError(f"name is {name!r}; allowed: text that can name a file.")
        return cls(
            name=name,
            stream=build(StreamConfig, stream, preset=None, of="[stream]"),
            model=build(ModelConfig, section(table, "model"), preset=None, of="[model]"),
            method=method,
            settings=settings,
            feedback=build(
                FeedbackConfig, section(table, "feedback"), preset=None, of="[feedback]"
            ),
            seed=whole("seed", table.get("seed", 0)),
        )

    def as_table(self) -> dict[str, Any]:
        """Every setting, as plain values."""
        table = asdict(self)
        table["method"] = {"name": table.pop("method"), **table.pop("settings")}
        return table


_KEYS = ("name", "seed", "stream", "model", "method", "feedback")
