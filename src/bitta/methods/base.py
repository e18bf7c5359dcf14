"""Contract of a method, the gradient step, and the unsupervised step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config import Config, build_config, require
from bitta.errors import ModelError
from bitta.losses import complementary_loss
from bitta.memory import FeedbackMemory, MixedBatch
from bitta.nn import (
    SamplingSettings,
    SavedWeights,
    Sites,
    Statistics,
    WrappedModel,
    explain_out_of_memory,
)
from bitta.nn.weights import named_tensors
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, Prediction, State, softmax

ObserveTime: TypeAlias = Literal["before_serving", "before_asking", "after_asking"]
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


def do_nothing() -> None:
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
    observes: ObserveTime = "before_serving"

    def __init__(self, wrapped: WrappedModel, config: A, *, seed: int = 0) -> None:
        self.seed = seed
        self.between_updates: Callable[[], None] = do_nothing
        """Called between two steps of one `adapt`; it may predict and observe."""
        self.version = 0
        """How often this model has learned: its version."""
        self.wrapped = wrapped
        if config.sites is not None:
            # A predicate becomes names, which can be saved.
            config = replace(config, sites=wrapped.sites)
        self.config = config
        self.source_weights = SavedWeights.copy_of(wrapped.model)

    @classmethod
    def configure(cls, settings: Mapping[str, Any], preset: str | None, *, name: str) -> Any:
        """Settings from keywords, checked."""
        return build_config(cls.Config, settings, preset=preset, of=f"method {name!r}")

    @property
    def model(self) -> nn.Module:
        """The model being adapted, in place."""
        return self.wrapped.model

    def observe(self, inputs: Tensor) -> None:
        """Take in the statistics of what is served; nothing, unless a method says so."""

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        """What would be served now; changes nothing."""
        return Prediction.from_logits(self.logits(inputs))

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """What is served before it is made into probabilities, (batch, classes)."""
        return self.wrapped(inputs, statistics=self.statistics)

    @torch.no_grad()
    def policy(self, inputs: Tensor) -> Tensor:
        """Mean softmax of the stochastic passes, (batch, classes); changes nothing."""
        how = self.sampling(self.policy_statistics)
        return self.sampled_probs(inputs, how, RandomKey((self.seed, "policy", self.version)))

    def sampling(self, statistics: Statistics) -> SamplingSettings:
        """How uncertainty is sampled where these normalise."""
        return SamplingSettings(statistics, self.config.dropout, self.config.passes)

    def sampled_probs(self, inputs: Tensor, how: SamplingSettings, random_key: RandomKey) -> Tensor:
        """Eq. 4: π, the mean of N stochastic softmaxes."""
        return softmax(self.wrapped.sample(inputs, how, random_key)).mean(0)

    def query_scores(self, inputs: Tensor, n_queries: int) -> Tensor | None:  # noqa: ARG002
        """How much a method with a way of its own wants each row judged, (batch,).

        Rows at -inf are never asked about. None leaves the choice to `selection`. Changes nothing.
        """
        return None

    @abstractmethod
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Learn from a batch nobody was asked about and from answers; either may be empty."""

    def forget(self, sample_ids: Iterable[int]) -> None:
        """Remove answered samples from the memories. The weights stay as they are.

        The id of a sample is the id of the query that was answered. Unknown ids are ignored.
        """

    def reset(self) -> None:
        """Exactly the source model, as if nothing had been seen."""
        self.source_weights.restore(self.model)
        self.version = 0

    def state_dict(self) -> State:
        """All that the following steps depend on."""
        return {
            "version": self.version,
            "forwards": self.wrapped.counts.forwards,
            "backwards": self.wrapped.counts.backwards,
            "weights": named_tensors(self.model),
            "source": self.source_weights.state_dict(),
            "can_fan_out": self.wrapped.can_fan_out,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        SavedWeights(state["weights"]).restore(self.model)
        self.source_weights = SavedWeights(state["source"])
        self.version = state["version"]
        self.wrapped.counts.forwards = state["forwards"]
        self.wrapped.counts.backwards = state["backwards"]
        self.wrapped.can_fan_out = state["can_fan_out"]

    def close(self) -> None:
        """Give the model back."""
        self.wrapped.close()


@dataclass(frozen=True, kw_only=True)
class GradientConfig(AdapterConfig):
    """Settings of every method that trains."""

    lr: float = 1e-3
    """Step size."""
    epochs: int = 1
    """Number E of steps on each batch."""
    correct_memory: int = 64
    """How many samples judged correct are remembered."""
    incorrect_memory: int = 64
    """How many samples judged incorrect are remembered."""
    memory: Literal["full", "low"] = "full"
    """low keeps one stochastic pass's activations at a time, by running each twice; the same
    gradient."""
    micro_batch: int = 0
    """Rows whose activations are kept at once; 0 for all. The same gradient only where nothing
    normalises by the batch: each part is normalised by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        for name in ("correct_memory", "incorrect_memory"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.micro_batch >= 0, "micro_batch", self.micro_batch, "0 or more")


G = TypeVar("G", bound=GradientConfig)

_LESS_MEMORY = (
    "set memory='low', a micro_batch (see docs/explanation/performance.md), or smaller memories "
    "and batches."
)


class GradientAdapter(Adapter[G]):
    """Descend on `objective`, `epochs` times a batch."""

    trains: ClassVar[str] = "all"
    is_capturable: bool = True
    """Whether a step can be captured as a CUDA graph: it decides nothing by a value it computed."""

    def __init__(self, wrapped: WrappedModel, config: G, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.memory = FeedbackMemory(
            correct=config.correct_memory, incorrect=config.incorrect_memory
        )
        self.trained_model = self.make_trained_model()
        """The network that is trained; a method may serve another."""
        self.parameters = self._trainable(self.trained_model.model)
        self.trained_model.train_only(self.parameters)
        self.trained_model.low_memory = config.memory == "low"
        self.trained_model.micro_batch = config.micro_batch
        self.optimiser = self.make_optimiser()

    def make_trained_model(self) -> WrappedModel:
        """The network that serves, unless a method trains a student apart from it."""
        return self.wrapped

    @abstractmethod
    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that change, as far as the user has not frozen them."""

    @abstractmethod
    def make_optimiser(self) -> torch.optim.Optimizer:
        """A fresh optimiser over `self.parameters`."""

    def make_sgd(
        self, *, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
    ) -> torch.optim.Optimizer:
        """Stochastic gradient descent, on the path of the learner."""
        return torch.optim.SGD(
            self.parameters,
            lr=self.config.lr,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov and momentum > 0,
            fused=self.trained_model.execution.fused,
        )

    def make_adam(self, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
        """Adam with the usual moments, on the path of the learner."""
        fused = self.trained_model.execution.fused
        return torch.optim.Adam(
            self.parameters,
            lr=self.config.lr,
            weight_decay=weight_decay,
            fused=fused,
            capturable=fused,
        )

    @abstractmethod
    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """The terms of the loss, weighted; a term without rows is left out.

        A function of its arguments and of the weights alone, without a look at any value: once the
        shapes have settled a GPU repeats it without coming back here.
        """

    @torch.enable_grad()
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Remember the answers, then take `epochs` steps; nothing to learn from, no step."""
        self.memory.add(feedback)
        mixed = self.memory.mix_with(unlabelled)
        self._align_optimiser()
        samples = f"a step on {len(mixed.inputs)} samples with {self.config.passes} passes"
        with explain_out_of_memory(samples, _LESS_MEMORY):
            epochs = [self._descend(mixed, 0)]
            for epoch in range(1, self.config.epochs):
                self.between_updates()
                epochs.append(self._descend(mixed, epoch))
        self.version += 1
        names = dict.fromkeys(name for terms in epochs for name in terms)
        absent = unlabelled.new_full((), torch.nan, dtype=torch.float32)
        return Losses(
            {name: torch.stack([terms.get(name, absent) for terms in epochs]) for name in names}
        )

    def forget(self, sample_ids: Iterable[int]) -> None:
        """Remove answered samples from both memories."""
        self.memory.remove(sample_ids)

    def reset(self) -> None:
        """Source weights, empty memories, a fresh optimiser."""
        super().reset()
        if self.trained_model is not self.wrapped:
            self.source_weights.restore(self.trained_model.model)
        self.memory.clear()
        self._start_optimiser()

    def state_dict(self) -> State:
        """Memories and optimiser beside the weights."""
        slots = self.optimiser.state_dict()["state"]
        apart = self.trained_model is not self.wrapped
        return super().state_dict() | {
            "memory": self.memory.state_dict(),
            "optimiser": {str(place): slot for place, slot in slots.items()},
            "trained_model": named_tensors(self.trained_model.model) if apart else {},
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        if self.trained_model is not self.wrapped:
            SavedWeights(state["trained_model"]).restore(self.trained_model.model)
        self.memory.load_state_dict(state["memory"], device=self.wrapped.device)
        self._start_optimiser()
        self.optimiser.load_state_dict(
            self.optimiser.state_dict()
            | {"state": {int(place): slot for place, slot in state["optimiser"].items()}}
        )

    def close(self) -> None:
        """Give the model back, and let a student go."""
        self.trained_model.close()
        super().close()

    def _trainable(self, model: nn.Module) -> list[nn.Parameter]:
        """What the user froze stays frozen, unless all of the model is: it was loaded to serve."""
        frozen = not any(parameter.requires_grad for parameter in model.parameters())
        chosen = [p for p in self.select_parameters(model) if p.requires_grad or frozen]
        if not chosen:
            raise ModelError(
                f"{type(self).__name__} finds nothing to train in {type(model).__name__}; "
                f"it trains {self.trains}, as far as not frozen."
            )
        return chosen

    def _descend(self, mixed: MixedBatch, epoch: int) -> dict[str, Tensor]:
        if not len(mixed.inputs):
            return {}
        random_key = RandomKey((self.seed, "adapt", self.version, epoch))
        if not self.is_capturable:
            return self._step(*mixed, random_key=random_key)
        return self.trained_model.run_or_replay(
            "descend", self._step, mixed, random_key, turn=self.version
        )

    def _step(self, *mixed: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        terms = self.compute_gradients(MixedBatch(*mixed), random_key)
        if terms:
            self.optimiser.step()
        return {name: term.detach() for name, term in terms.items()}

    def compute_gradients(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Leave the gradient of the objective in the parameters; no terms, no step."""
        return self.backward(lambda: self.objective(mixed, random_key))

    def backward(self, objective: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Compute the terms of an objective and, alone in the parameters, their sum's gradient."""
        counts = self.wrapped.counts
        before = counts.tracked
        self.optimiser.zero_grad(set_to_none=True)
        terms = objective()
        tracked = counts.tracked - before
        if terms:
            with self.trained_model.execution.arithmetic():
                torch.stack(list(terms.values())).sum().backward()
            counts.backwards += tracked
        return terms

    def _start_optimiser(self) -> None:
        """A fresh one; what was captured has the state of the last one in it."""
        self.optimiser = self.make_optimiser()
        self.trained_model.graphs.clear()

    def _align_optimiser(self) -> None:
        """Saved momenta may lie in memory in another order than the parameters do here."""
        for parameter, slot in self.optimiser.state.items():
            for name, value in slot.items():
                same = torch.is_tensor(value) and value.shape == parameter.shape
                if same and value.stride() != parameter.stride():
                    slot[name] = torch.empty_like(parameter).copy_(value)


PUBLISHED_BASELINE: Mapping[str, Any] = {
    "selection": "last",
    "correct_memory": 3,
    "incorrect_memory": 3,
    "judged_among": "alike",
    "feedback_softmax": "double",
}
"""How the code published with BiTTA lets its baselines learn from answers."""


@dataclass(frozen=True, kw_only=True)
class UnsupervisedConfig(GradientConfig):
    """Settings of every unsupervised method that can learn from answers, too."""

    feedback_weight: float = 1.0
    """Weight of the loss on answered samples."""
    feedback_softmax: Literal["single", "double"] = "single"
    """double applies softmax again to the probabilities of answered samples, as the code published
    with BiTTA does."""
    judged_among: Literal["all", "judged", "alike"] = "all"
    """Whose statistics normalise answered samples: those of all samples of the step, of the
    answered ones, or of the ones with the same verdict."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.feedback_weight >= 0, "feedback_weight", self.feedback_weight, "0 or more")


U = TypeVar("U", bound=UnsupervisedConfig)


class UnsupervisedAdapter(GradientAdapter[U]):
    """`unsupervised` on what nobody was asked about, and the usual loss on answers.

    The unlabelled samples go through the model by themselves: their loss is the method's own,
    whether or not somebody answers.
    """

    training_statistics: Statistics = "batch"
    """What normalises while learning."""

    def __init__(self, wrapped: WrappedModel, config: U, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.learns_from_feedback = config.feedback_weight > 0

    @abstractmethod
    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """The terms of the method's own loss."""

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Both losses, as far as there are samples for them."""
        *_, unlabelled = mixed.split(mixed.inputs)
        own = self.unsupervised_terms(unlabelled, random_key) if len(unlabelled) else {}
        return own | self.feedback_terms(mixed)

    def feedback_terms(self, mixed: MixedBatch) -> dict[str, Tensor]:
        """Cross-entropy on correct and complementary loss on incorrect samples."""
        if not (mixed.n_judged and self.config.feedback_weight):
            return {}
        correct, incorrect = self.feedback_logits(mixed)
        if self.config.feedback_softmax == "double":
            correct, incorrect = softmax(correct), softmax(incorrect)
        terms = {}
        if len(correct):
            terms["correct"] = F.cross_entropy(correct, mixed.correct)
        if len(incorrect):
            terms["incorrect"] = complementary_loss(incorrect, mixed.incorrect)
        return {name: self.config.feedback_weight * term for name, term in terms.items()}

    def feedback_logits(self, mixed: MixedBatch) -> tuple[Tensor, Tensor]:
        """Of the samples judged correct and incorrect, by the network that is trained."""
        if self.config.judged_among == "alike":
            correct, incorrect, _ = mixed.split(mixed.inputs)
            return self.training_logits(correct), self.training_logits(incorrect)
        among = len(mixed.inputs) if self.config.judged_among == "all" else mixed.n_judged
        correct, incorrect, _ = mixed.split(self.training_logits(mixed.inputs[:among]))
        return correct, incorrect

    def training_logits(self, inputs: Tensor) -> Tensor:
        """Of some rows, which may be none; running statistics stay where they are."""
        if not len(inputs):
            return inputs.new_zeros((0, 2))
        return self.trained_model(inputs, statistics=self.training_statistics)
