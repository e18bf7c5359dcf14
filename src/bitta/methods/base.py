"""Base classes of all methods: the contract, the gradient step and the unsupervised step.

`Adapter` is the contract. `GradientAdapter` adds memories of answered samples, an optimiser and the
updates on an objective. `UnsupervisedAdapter` adds a loss on answers to a method's own loss.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import Config, build_config, require
from bitta.errors import ModelError
from bitta.losses import complementary_loss
from bitta.memory import FeedbackMemory, MixedBatch
from bitta.nn import (
    Normaliser,
    SamplingSettings,
    SavedWeights,
    Sites,
    Statistics,
    WrappedModel,
    explain_out_of_memory,
    named_tensors,
)
from bitta.seeding import RandomKey
from bitta.types import Feedback, Losses, Prediction, State, softmax

ObserveTime: TypeAlias = Literal["before_serving", "before_asking", "after_asking"]
"""Time at which the statistics of a batch are observed."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(Config):
    """Settings of every method: MC-dropout and the selection of questions."""

    selection: str = "mc_confidence"
    """Score that selects the questions: mc_confidence, entropy, confidence, energy, random or last
    (the last rows of the batch)."""
    passes: int = 4
    """Number N of MC-dropout passes. The policy π is the mean of their softmaxes."""
    dropout: float = 0.3
    """Rate of MC-dropout. With 0 the policy is the plain softmax."""
    sites: Sites = None
    """Modules after which dropout is applied: their names, or a function of (name, module). None
    finds them by the structure of the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.passes >= 1, "passes", self.passes, "1 or more")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "at least 0 and below 1")
        names = self.sites if isinstance(self.sites, list | tuple) else [self.sites]
        are_names = bool(names) and all(isinstance(name, str) for name in names)
        require(
            self.sites is None or callable(self.sites) or are_names,
            "sites",
            self.sites,
            "names of modules, or a function of name and module",
        )


A = TypeVar("A", bound=AdapterConfig)


def do_nothing() -> None:
    """Do nothing between two updates."""


class Adapter(ABC, Generic[A]):
    """Classifier, together with the method that adapts it to a shifting stream.

    A method defines how it serves (`statistics`), what it observes (`observe`) and how it learns
    (`adapt`). Parameters change in `adapt` only. A method never sees ground truth.

    The policy π is a second estimate of the class probabilities, the mean of stochastic passes. It
    selects the questions, and some methods learn from it.
    """

    Config: ClassVar[type[AdapterConfig]]
    """Class of the settings."""
    paper: ClassVar[str] = ""
    """Paper that describes the method."""
    trains: ClassVar[str] = "nothing"
    """Short description of the parameters that change."""
    needs: ClassVar[str] = ""
    """Requirements beyond a model and a stream, such as "source statistics"."""
    n_queries: ClassVar[int] = 0
    """Default number of questions per batch."""
    audits: ClassVar[int] = 0
    """Default number of these questions that are about samples drawn at random."""
    paired_audits: ClassVar[int] = 0
    """Default number of these questions that compare the served model with the source model."""
    window: ClassVar[int] = 0
    """Default number of samples in a window; 0 if every request is a batch."""
    learns_from_feedback: bool = True
    """True if answers change the model."""
    statistics: Statistics = "running"
    """Statistics that normalise when the model serves."""
    policy_statistics: Statistics = "running"
    """Statistics that normalise in the stochastic passes of the policy."""
    observes: ObserveTime = "before_serving"
    """Time at which the session calls `observe`."""

    def __init__(self, wrapped: WrappedModel, config: A, *, seed: int = 0) -> None:
        self.seed = seed
        self.between_updates: Callable[[], None] = do_nothing
        """Called between two updates of one `adapt`. It may call `predict` and `observe`."""
        self.version = 0
        """Version of the model: the number of times it has learned."""
        self.wrapped = wrapped
        """The model that serves."""
        if config.sites is not None:
            # Replace a function by names, which can be saved.
            config = replace(config, sites=wrapped.sites)
        self.config = config
        self.source_weights = SavedWeights.copy_of(wrapped.model)
        """Weights of the source model."""
        self._source_model: WrappedModel | None = None

    @classmethod
    def configure(cls, settings: Mapping[str, Any], preset: str | None, *, name: str) -> Any:
        """Build the settings from keywords and check them."""
        return build_config(cls.Config, settings, preset=preset, of=f"method {name!r}")

    @property
    def model(self) -> nn.Module:
        """The model that is adapted in place."""
        return self.wrapped.model

    def observe(self, inputs: Tensor) -> None:
        """Update statistics with a batch of the stream. By default this does nothing."""

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Prediction:
        """Return the predictions to serve. This changes nothing."""
        return Prediction.from_logits(self.logits(inputs))

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logits of the predictions, (batch, classes)."""
        return self.wrapped(inputs, statistics=self.statistics)

    @torch.no_grad()
    def policy(self, inputs: Tensor) -> Tensor:
        """Return π, the mean softmax of the stochastic passes, (batch, classes)."""
        sampling = self.sampling_settings(self.policy_statistics)
        random_key = RandomKey((self.seed, "policy", self.version))
        return self.sampled_probs(inputs, sampling, random_key)

    @torch.no_grad()
    def source_logits(self, inputs: Tensor) -> Tensor:
        """Return the logits of the source model, (batch, classes). The first call copies it."""
        if self._source_model is None:
            self._source_model = self.wrapped.clone_model()
            self.source_weights.restore(self._source_model.model)
        return self._source_model(inputs, statistics="running")

    def source_labels(self, inputs: Tensor) -> Tensor:
        """Return the labels of the source model, (batch,)."""
        return self.source_logits(inputs).argmax(-1)

    def sampling_settings(self, statistics: Statistics) -> SamplingSettings:
        """Return the settings of stochastic passes with these statistics."""
        return SamplingSettings(statistics, self.config.dropout, self.config.passes)

    def sampled_probs(
        self, inputs: Tensor, sampling: SamplingSettings, random_key: RandomKey
    ) -> Tensor:
        """Eq. 4 of BiTTA: return π, the mean of N stochastic softmaxes, (batch, classes)."""
        return softmax(self.wrapped.sample(inputs, sampling, random_key)).mean(0)

    def query_scores(self, inputs: Tensor, n_queries: int) -> Tensor | None:  # noqa: ARG002
        """Return a score of each row, (batch,), if the method has its own selection of questions.

        Questions are asked about the rows with the highest scores, but never about rows with the
        score -inf. With None the setting `selection` decides. This changes nothing.
        """
        return None

    @abstractmethod
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Learn from answers, and from the samples of a batch that no question is about.

        Both may be empty.
        """

    def forget(self, sample_ids: Iterable[int]) -> None:
        """Remove answered samples from the memories. The weights stay as they are.

        The id of a sample is the id of the query that was answered. Unknown ids are ignored.
        """

    def reset(self) -> None:
        """Restore the source model exactly."""
        self.source_weights.restore(self.model)
        self.version = 0

    def state_dict(self) -> State:
        """Return everything that later steps depend on."""
        return {
            "version": self.version,
            "forwards": self.wrapped.counts.forwards,
            "backwards": self.wrapped.counts.backwards,
            "weights": named_tensors(self.model),
            "source": self.source_weights.state_dict(),
            "can_fan_out": self.wrapped.can_fan_out,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        SavedWeights(state["weights"]).restore(self.model)
        self.source_weights = SavedWeights(state["source"])
        self._source_model = None
        self.version = state["version"]
        self.wrapped.counts.forwards = state["forwards"]
        self.wrapped.counts.backwards = state["backwards"]
        self.wrapped.can_fan_out = state["can_fan_out"]

    def close(self) -> None:
        """Restore the model's modes, flags and layout. Its weights stay adapted."""
        self.wrapped.close()


@dataclass(frozen=True, kw_only=True)
class GradientConfig(AdapterConfig):
    """Settings of every method that trains."""

    lr: float = 1e-3
    """Learning rate."""
    epochs: int = 1
    """Number E of updates on each batch."""
    correct_memory: int = 64
    """Capacity of the memory of samples judged correct."""
    incorrect_memory: int = 64
    """Capacity of the memory of samples judged incorrect."""
    memory: Literal["full", "low"] = "full"
    """Memory use. "low" stores the activations of one stochastic pass at a time and runs each pass
    twice, with the same gradient."""
    micro_batch: int = 0
    """Number of rows whose activations are stored at a time; 0 for all rows. The gradient is the
    same, except with batch statistics, because each micro batch has its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        for name in ("correct_memory", "incorrect_memory"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.micro_batch >= 0, "micro_batch", self.micro_batch, "0 or more")

    def make_normaliser(self, model: nn.Module) -> Normaliser | None:  # noqa: ARG002
        """Return the normaliser that the settings ask for, or None."""
        return None


G = TypeVar("G", bound=GradientConfig)

_OUT_OF_MEMORY_REMEDY = (
    "set memory='low', a micro_batch (see docs/explanation/performance.md), or smaller memories "
    "and batches."
)


class GradientAdapter(Adapter[G]):
    """Method that makes `epochs` updates on `objective` per batch."""

    trains: ClassVar[str] = "all"
    is_capturable: bool = True
    """True if an update can be captured as a CUDA graph. Then no Python branch may depend on a
    tensor value."""

    def __init__(self, wrapped: WrappedModel, config: G, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.memory = FeedbackMemory(
            correct=config.correct_memory, incorrect=config.incorrect_memory
        )
        normaliser = self.make_normaliser()
        if normaliser is not None:
            wrapped.normaliser = normaliser
            self.statistics = "running"  # The normaliser adapts the running statistics.
            self.is_capturable = False  # The normaliser stores values between calls.
        self.trained_model = self.make_trained_model()
        """The model that is trained. It differs from `wrapped` if a teacher serves."""
        self.parameters = self._find_trainable(self.trained_model.model)
        self.trained_model.train_only(self.parameters)
        self.trained_model.low_memory = config.memory == "low"
        self.trained_model.micro_batch = config.micro_batch
        self.optimiser = self.make_optimiser()

    def make_normaliser(self) -> Normaliser | None:
        """Return a replacement for batch statistics in BatchNorm layers, or None.

        By default the settings make it.
        """
        return self.config.make_normaliser(self.model)

    def make_trained_model(self) -> WrappedModel:
        """Return the model to train. By default it is the model that serves."""
        return self.wrapped

    @abstractmethod
    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the parameters to train. Parameters that the user froze stay frozen."""

    @abstractmethod
    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return a new optimiser of `self.parameters`."""

    def make_sgd(
        self, *, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
    ) -> torch.optim.Optimizer:
        """Return stochastic gradient descent, fused if the execution path has it."""
        return torch.optim.SGD(
            self.parameters,
            lr=self.config.lr,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov and momentum > 0,
            fused=self.trained_model.execution.fused,
        )

    def make_adam(self, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
        """Return Adam with the default betas, fused if the execution path has it."""
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
        """Return the weighted terms of the loss by name. Terms without rows are left out.

        If `is_capturable`, the terms depend only on the arguments and the weights, and no decision
        depends on a tensor value: a GPU replays the captured computation instead of calling this.
        """

    def observe(self, inputs: Tensor) -> None:
        """Update the running statistics with the batch if the normaliser follows the stream."""
        normaliser = self.wrapped.normaliser
        if normaliser is not None and normaliser.follows_stream:
            with normaliser.observing():
                self.wrapped.observe(inputs, momentum=1.0)  # The normaliser has its own rate.

    @torch.enable_grad()
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Add the answers to the memories, then make `epochs` updates on the mixed batch."""
        self.memory.add(feedback)
        mixed = self.memory.mix_with(unlabelled)
        self._match_optimiser_layout()
        work = f"updates on {len(mixed.inputs)} samples with {self.config.passes} passes"
        with explain_out_of_memory(work, _OUT_OF_MEMORY_REMEDY):
            epochs = [self.update(mixed, 0)]
            for epoch in range(1, self.config.epochs):
                self.between_updates()
                epochs.append(self.update(mixed, epoch))
        self.version += 1
        return stack_losses(epochs, like=unlabelled)

    def update(self, mixed: MixedBatch, epoch: int) -> dict[str, Tensor]:
        """Make one update of the optimiser. Return the terms of the loss."""
        if not len(mixed.inputs):
            return {}
        random_key = RandomKey((self.seed, "adapt", self.version, epoch))
        if not self.is_capturable:
            return self.make_update(*mixed, random_key=random_key)
        return self.trained_model.run_or_replay(
            "update", self.make_update, mixed, random_key, step=self.version
        )

    def make_update(self, *mixed: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Compute the gradient and make a step of the optimiser. A GPU replays this as a graph."""
        terms = self.compute_gradients(MixedBatch(*mixed), random_key)
        if terms:
            self.optimiser.step()
        return {name: term.detach() for name, term in terms.items()}

    def compute_gradients(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Store the gradient of the objective in the parameters. Return the terms of the loss.

        If there are no terms, the caller makes no update.
        """
        normaliser = self.wrapped.normaliser
        with nullcontext() if normaliser is None else normaliser.updating(random_key):
            return self.backward(lambda: self.objective(mixed, random_key))

    def backward(self, objective: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Compute the terms of an objective and store the gradient of their sum."""
        counts, normaliser = self.wrapped.counts, self.wrapped.normaliser
        n_before = counts.forwards_with_gradient
        self.optimiser.zero_grad(set_to_none=True)
        with nullcontext() if normaliser is None else normaliser.recording():
            terms = objective()
        n_forwards = counts.forwards_with_gradient - n_before
        if terms:
            with self.trained_model.execution.tf32_mode():
                torch.stack(list(terms.values())).sum().backward()
            counts.backwards += n_forwards
        return terms

    def forget(self, sample_ids: Iterable[int]) -> None:
        """Remove answered samples from both memories."""
        self.memory.remove(sample_ids)

    def reset(self) -> None:
        """Restore the source weights, empty the memories and renew the optimiser."""
        super().reset()
        if self.trained_model is not self.wrapped:
            self.source_weights.restore(self.trained_model.model)
        self.memory.clear()
        self._renew_optimiser()

    def state_dict(self) -> State:
        """Return the state, with memories, optimiser and trained model."""
        optimiser_state = self.optimiser.state_dict()["state"]
        is_separate = self.trained_model is not self.wrapped
        return super().state_dict() | {
            "memory": self.memory.state_dict(),
            "optimiser": {str(number): values for number, values in optimiser_state.items()},
            "trained_model": named_tensors(self.trained_model.model) if is_separate else {},
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        if self.trained_model is not self.wrapped:
            SavedWeights(state["trained_model"]).restore(self.trained_model.model)
        self.memory.load_state_dict(state["memory"], device=self.wrapped.device)
        self._renew_optimiser()
        saved = {int(number): values for number, values in state["optimiser"].items()}
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": saved})

    def close(self) -> None:
        """Restore the model, and the trained model if it is another one."""
        self.trained_model.close()
        super().close()

    def _find_trainable(self, model: nn.Module) -> list[nn.Parameter]:
        # If all parameters are frozen, the model was loaded for inference. Ignore the flags then.
        all_frozen = not any(parameter.requires_grad for parameter in model.parameters())
        chosen = [p for p in self.select_parameters(model) if p.requires_grad or all_frozen]
        if not chosen:
            raise ModelError(
                f"{type(self).__name__} finds nothing to train in {type(model).__name__}; it "
                f"trains {self.trains}, and all of these parameters are frozen or missing. "
                "Unfreeze them, or use another method."
            )
        return chosen

    def _renew_optimiser(self) -> None:
        self.optimiser = self.make_optimiser()
        self.trained_model.graphs.clear()  # Captured graphs hold the state of the old optimiser.

    def _match_optimiser_layout(self) -> None:
        """Give loaded optimiser state the memory layout of the parameters."""
        for parameter, values in self.optimiser.state.items():
            for name, value in values.items():
                has_shape = torch.is_tensor(value) and value.shape == parameter.shape
                if has_shape and value.stride() != parameter.stride():
                    values[name] = torch.empty_like(parameter).copy_(value)


def stack_losses(updates: list[dict[str, Tensor]], *, like: Tensor) -> Losses:
    """Return the terms of all updates, (updates,) each. A term that an update lacks is NaN."""
    names = dict.fromkeys(name for terms in updates for name in terms)
    absent = like.new_full((), torch.nan, dtype=torch.float32)
    return Losses(
        {name: torch.stack([terms.get(name, absent) for terms in updates]) for name in names}
    )


PUBLISHED_BASELINE: Mapping[str, Any] = {
    "selection": "last",
    "correct_memory": 3,
    "incorrect_memory": 3,
    "judged_among": "alike",
    "feedback_softmax": "double",
}
"""Settings with which the code published with BiTTA trains its baselines on answers."""


@dataclass(frozen=True, kw_only=True)
class UnsupervisedConfig(GradientConfig):
    """Settings of every unsupervised method that can also learn from answers."""

    feedback_weight: float = 1.0
    """Weight of the loss on answered samples."""
    feedback_softmax: Literal["single", "double"] = "single"
    """Number of softmaxes in the loss on answered samples. The code published with BiTTA applies
    two."""
    judged_among: Literal["all", "judged", "alike"] = "all"
    """Samples in the same forward pass as an answered sample, which determine its batch statistics:
    all samples of the step, the answered ones, or those with the same verdict."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.feedback_weight >= 0, "feedback_weight", self.feedback_weight, "0 or more")


U = TypeVar("U", bound=UnsupervisedConfig)


class UnsupervisedAdapter(GradientAdapter[U]):
    """Method with a loss on unlabelled samples. A second loss on answered samples is added to it.

    The unlabelled samples have a forward pass of their own, so that the method's loss does not
    depend on the answers.
    """

    training_statistics: Statistics = "batch"
    """Statistics that normalise answered samples in an update."""

    def __init__(self, wrapped: WrappedModel, config: U, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.learns_from_feedback = config.feedback_weight > 0

    @abstractmethod
    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Return the terms of the method's own loss on unlabelled samples."""

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Return the terms of the method's own loss and of the loss on answers."""
        *_, unlabelled = mixed.split(mixed.inputs)
        own_terms = self.unsupervised_terms(unlabelled, random_key) if len(unlabelled) else {}
        return own_terms | self.feedback_terms(mixed)

    def feedback_terms(self, mixed: MixedBatch) -> dict[str, Tensor]:
        """Return cross-entropy on correct and complementary loss on incorrect samples."""
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
        """Return the logits of the samples judged correct and of those judged incorrect."""
        if self.config.judged_among == "alike":
            correct, incorrect, _ = mixed.split(mixed.inputs)
            return self.training_logits(correct), self.training_logits(incorrect)
        n_rows = len(mixed.inputs) if self.config.judged_among == "all" else mixed.n_judged
        correct, incorrect, _ = mixed.split(self.training_logits(mixed.inputs[:n_rows]))
        return correct, incorrect

    def training_logits(self, inputs: Tensor) -> Tensor:
        """Return the logits of any number of rows. Running statistics do not change."""
        if not len(inputs):
            return inputs.new_zeros((0, 2))
        return self.trained_model(inputs, statistics=self.training_statistics)
