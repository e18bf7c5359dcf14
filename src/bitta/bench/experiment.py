"""An experiment: a stream, a model, a method, someone who answers; written as a TOML file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bitta.bench.annotators import FeedbackConfig
from bitta.bench.clean import ForgettingConfig
from bitta.bench.enhanced import EnhancedConfig
from bitta.bench.streams import StreamConfig
from bitta.bench.toml import read_toml, section
from bitta.config import Config, build_config, check_integer
from bitta.errors import SettingError, unknown_name_error
from bitta.methods import get_method
from bitta.methods.base import AdapterConfig
from bitta.selection import get_score_function


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
class Experiment:
    """Everything that decides a result."""

    name: str
    stream: StreamConfig
    model: ModelConfig
    method: str
    settings: AdapterConfig
    feedback: FeedbackConfig = field(default_factory=FeedbackConfig)
    enhanced: EnhancedConfig = field(default_factory=EnhancedConfig)
    forgetting: ForgettingConfig = field(default_factory=ForgettingConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.enhanced.n_samples and (self.feedback.record or self.feedback.replay):
            raise SettingError(
                "[enhanced] asks before the stream begins, which a log does not hold; leave out "
                "[enhanced], or feedback.record and feedback.replay."
            )
        if self.enhanced.n_samples and "source statistics" in get_method(self.method).needs:
            raise SettingError(
                f"[enhanced] changes the weights before the stream begins, and {self.method} needs "
                "statistics of the very weights it starts from; leave out [enhanced], or use "
                "another method."
            )

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """From a TOML file."""
        return cls.of(read_toml(path), name=Path(path).stem)

    @classmethod
    def of(cls, table: Mapping[str, Any], *, name: str) -> Self:
        """From a parsed table; `name` is used where it has none."""
        if "sweep" in table:
            raise SettingError('[sweep] makes many runs of one file; use "bitta sweep" for it.')
        for key in table:
            if key not in _KEYS:
                raise unknown_name_error("key", key, _KEYS)
        given = dict(section(table, "method"))
        method = given.pop("name", None)
        if not isinstance(method, str):
            told = "missing" if method is None else repr(method)
            raise SettingError(f'method.name is {told}; say which, such as name = "bitta".')
        preset = given.pop("preset", None)
        stream = section(table, "stream")
        if "kind" not in stream:
            raise SettingError('stream.kind is missing; "bitta streams" lists what there is.')
        settings = get_method(method).configure(given, preset, name=method)
        get_score_function(settings.selection)
        name = table.get("name", name)
        if not isinstance(name, str) or not name or set(name) & set("/\\"):
            raise SettingError(f"name is {name!r}; allowed: text that can name a file.")
        return cls(
            name=name,
            stream=build_config(StreamConfig, stream, preset=None, of="[stream]"),
            model=build_config(ModelConfig, section(table, "model"), preset=None, of="[model]"),
            method=method,
            settings=settings,
            feedback=FeedbackConfig.of(section(table, "feedback")),
            enhanced=_enhanced(table),
            forgetting=build_config(
                ForgettingConfig, section(table, "forgetting"), preset=None, of="[forgetting]"
            ),
            seed=check_integer("seed", table.get("seed", 0)),
        )

    def as_table(self) -> dict[str, Any]:
        """Every setting, as plain values."""
        table = asdict(self)
        table["method"] = {"name": table.pop("method"), **table.pop("settings")}
        return table

    def matches(self, table: Mapping[str, Any]) -> bool:
        """Whether it says the same as a table that this version or an earlier one has written.

        A setting that did not exist then is taken to be at its default.
        """
        try:
            return Experiment.of(table, name="").as_table() == self.as_table()
        except SettingError:
            return False


def _enhanced(table: Mapping[str, Any]) -> EnhancedConfig:
    """A section that does not say how many samples wants as many as would be asked about."""
    implied = {"n_samples": -1} if "enhanced" in table else {}
    given = {**implied, **section(table, "enhanced")}
    return build_config(EnhancedConfig, given, preset=None, of="[enhanced]")


_KEYS = ("name", "seed", "stream", "model", "method", "feedback", "enhanced", "forgetting")
