"""The streams an experiment can ask for."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from bitta.bench.sets import KINDS, SPECIAL, Request
from bitta.config import Config, require
from bitta.corruptions import CORRUPTIONS
from bitta.errors import SettingError, unknown_name_error
from bitta.streams import COLOUR_FLIPS, Arrangement, Geometry, Stream


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Config):
    """What is streamed, in which order."""

    kind: str
    """Which set; "bitta streams" lists them."""
    path: str = ""
    """Where its files lie, if not where "bitta data get" puts them."""
    batch_size: int = 64
    """Samples per batch."""
    window: int = -1
    """Samples whose statistics and questions count together; -1 for 64 at batch size 1, else 0."""
    n_samples: int = 0
    """At most so many samples of each domain; 0 for all."""
    corruptions: str = ""
    """Which, in order, separated by commas; empty for all that the set has."""
    severity: int = 5
    """Of corruptions, 1 to 5; an order "gradual" goes through all of them."""
    domains: str = ""
    """Which, in order, separated by commas; empty for all that the set has."""
    colour_flip: float = COLOUR_FLIPS["target"]
    """digits, coloured-mnist: how often the colour lies."""
    resize: int = 0
    """Shorter side that pictures in files are scaled to; 0 for what the model's card says."""
    crop: int = 0
    """Square that is then cut from the centre; 0 for what the model's card says."""
    order: str = "continual"
    """continual, mixed, gradual, recurring, or single: each domain from the source model."""
    labels: str = "iid"
    """iid, or dirichlet: labels that come in runs."""
    beta: float = 0.1
    """dirichlet: the smaller, the longer the runs."""
    rounds: int = 3
    """recurring: how often the sequence is repeated."""
    sequence: str = ""
    """Names of domains in the order of visits, repeats allowed; empty for all, once each."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name_error(
                "kind", self.kind, KINDS, of="stream", hint='"bitta streams" lists them.'
            )
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(self.window >= -1, "window", self.window, "0 or more, or -1")
        require(self.n_samples >= 0, "n_samples", self.n_samples, "0 or more")
        require(1 <= self.severity <= 5, "severity", self.severity, "1 to 5")
        require(0 <= self.colour_flip <= 1, "colour_flip", self.colour_flip, "0 to 1")
        _ = Geometry(self.resize, self.crop)
        _ = self.arrangement
        for name in listed(self.corruptions):
            if name not in CORRUPTIONS:
                raise unknown_name_error("corruption", name, CORRUPTIONS)
        if KINDS[self.kind].needs_path and not self.path:
            raise SettingError(f"stream.path is missing; kind {self.kind!r} needs one.")
        self._refuse_what_means_nothing()

    def _refuse_what_means_nothing(self) -> None:
        known = KINDS[self.kind].keys
        for setting in fields(self):
            given = getattr(self, setting.name)
            if setting.name in SPECIAL and setting.name not in known and given != setting.default:
                raise SettingError(
                    f"stream.{setting.name} is {given!r}, but kind {self.kind!r} has no use for "
                    f"it; it takes {', '.join(known)}."
                )

    @property
    def arrangement(self) -> Arrangement:
        """The order of samples."""
        return Arrangement(
            order=self.order,
            labels=self.labels,
            beta=self.beta,
            rounds=self.rounds,
            sequence=listed(self.sequence),
        )

    @property
    def window_size(self) -> int:
        """Samples that statistics and learning see at once; 0 where each batch is enough."""
        return (64 if self.batch_size == 1 else 0) if self.window < 0 else self.window


def build_stream(
    config: StreamConfig, *, seed: int, preprocessing: Mapping[str, int] | None = None
) -> Stream:
    """The batches of an experiment; the same for every method.

    `preprocessing` is how the model wants pictures brought to size, unless the stream says it.
    """
    wanted = preprocessing or {}
    request = Request(
        path=config.path,
        n_samples=config.n_samples,
        corruptions=listed(config.corruptions),
        severities=(1, 2, 3, 4, 5) if config.order == "gradual" else (config.severity,),
        domains=listed(config.domains),
        colour_flip=config.colour_flip,
        geometry=Geometry(
            config.resize or wanted.get("resize", 0), config.crop or wanted.get("crop", 0)
        ),
        seed=seed,
    )
    domains, origin = KINDS[config.kind].read(request)
    return Stream(
        domains,
        batch_size=config.batch_size,
        seed=seed,
        arrangement=config.arrangement,
        origin=origin,
    )


def listed(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
