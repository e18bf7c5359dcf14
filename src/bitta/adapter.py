"""The contract of a method: observe · predict · policy · adapt · reset · state_dict."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from bitta.config import Config, build, require
from bitta.nn import Network, Sampling, Sites, Snapshot, Statistics
from bitta.nn.snapshot import tensors_of
from bitta.seeding import Chance
from bitta.types import Feedback, Losses, Prediction, State, softmax

Order: TypeAlias = Literal["before_serving", "before_asking", "after_asking"]
"""When a batch's statistics are taken in."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(Config):
    """Settings of every method: how its uncertainty is sampled, and what it asks about."""

    selection: str = "mc_confidence"
    """Which predictions are asked about: mc_confidence, entropy, confidence, energy, random or
    last (of the batch)."""
    passes: int = 4
    """Number N of MC-dropout passes that make up the policy."""
    dropout: float = 0.3
    """Rate of the MC-dropout; 0 makes the policy the plain softmax."""
    sites: Sites = None
    """Where dropout goes: module names, or a function of (name, module); found if None."""

    def __post_init__(self) -> None:
        require(self.passes >= 1, "passes", self.passes, "1 or more")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "at least 0 and below 1")
        names = self.sites if isinstance(self.sites, list | tuple) else [self.sites]
        named = bool(names) and all(isinstance(name, str) for name in names)
        require(
            self.sites is None or callable(self.sites) or named,
            "sites",
            self.sites,
            "names of modules, or a predicate over name and module",
        )


A = TypeVar("A", bound=AdapterConfig)


def nothing() -> None:
    """What happens between two steps unless somebody says otherwise."""


class Adapter(ABC, Generic[A]):
    """A classifier and one way for it to follow a shifting stream.

    A method says how it serves (`statistics`), what it takes in (`observe`) and how it learns
    (`adapt`); parameters change nowhere else. Ground truth never reaches it.
    """

    Config: ClassVar[type[AdapterConfig]]
    paper: ClassVar[str] = ""
    """Where the method comes from."""
    trains: ClassVar[str] = "nothing"
    """Which parameters change."""
    needs: ClassVar[str] = ""
    """What must be given beyond a model and a stream, such as "source statistics"; else empty."""
    n_queries: ClassVar[int] = 0
    """Questions per batch unless the user says otherwise."""
    learns_from_feedback: bool = True
    """Whether answers change anything."""
    statistics: Statistics = "running"
    """What normalises when serving."""
    policy_statistics: Statistics = "running"
    """What normalises in the stochastic passes that questions are chosen by."""
    observes: Order = "before_serving"

    def __init__(self, network: Network, config: A, *, seed: int = 0) -> None:
        self.seed = seed
        self.between_steps: Callable[[], None] = nothing
        """Called between two steps of one `adapt`; it may predict and observe."""
        self.step = 0
        """How often this model has learned: its version."""
        self.network = network
        if config.sites is not None:
            # A predicate becomes names, which can be saved.
            config = replace(config, sites=network.sites)
        self.config = config
        self.source = Snapshot.of(network.model)

    @classmethod
    def configure(cls, settings: Mapping[str, Any], preset: str | None, *, name: str) -> Any:
        """Settings from keywords, checked."""
        return build(cls.Config, settings, preset=preset, of=f"method {name!r}")

    @property
    def model(self) -> nn.Module:
        """The model being adapted, in place."""
        return self.network.model

    def observe(self, inputs: Tensor) -> None:
        """Take in the statistics of what is served; nothing, unless a method says so."""

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        """What would be served now; changes nothing."""
        return Prediction.of(self.logits(inputs))

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """What is served before it is made into probabilities, (batch, classes)."""
        return self.network(inputs, statistics=self.statistics)

    @torch.no_grad()
    def policy(self, inputs: Tensor) -> Tensor:
        """Mean softmax of the stochastic passes, (batch, classes); changes nothing."""
        how = self.sampling(self.policy_statistics)
        return self.sampled_probs(inputs, how, Chance((self.seed, "policy", self.step)))

    def sampling(self, statistics: Statistics) -> Sampling:
        """How uncertainty is sampled where these normalise."""
        return Sampling(statistics, self.config.dropout, self.config.passes)

    def sampled_probs(self, inputs: Tensor, how: Sampling, chance: Chance) -> Tensor:
        """Eq. 4: π, the mean of N stochastic softmaxes."""
        return softmax(self.network.sample(inputs, how, chance)).mean(0)

    def wishes(self, inputs: Tensor, n_queries: int) -> Tensor | None:  # noqa: ARG002
        """How much a method with a way of its own wants each row judged, (batch,).

        Rows at -inf are never asked about. None leaves the choice to `selection`. Changes nothing.
        """
        return None

    @abstractmethod
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Learn from a batch nobody was asked about and from answers; either may be empty."""

    def reset(self) -> None:
        """Exactly the source model, as if nothing had been seen."""
        self.source.put_back(self.model)
        self.step = 0

    def state_dict(self) -> State:
        """All that the following steps depend on."""
        return {
            "step": self.step,
            "forwards": self.network.counts.forwards,
            "backwards": self.network.counts.backwards,
            "weights": tensors_of(self.model),
            "source": self.source.state_dict(),
            "fans_out": self.network.fans_out,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        Snapshot(state["weights"]).put_back(self.model)
        self.source = Snapshot(state["source"])
        self.step = state["step"]
        self.network.counts.forwards = state["forwards"]
        self.network.counts.backwards = state["backwards"]
        self.network.fans_out = state["fans_out"]

    def close(self) -> None:
        """Give the model back."""
        self.network.close()
