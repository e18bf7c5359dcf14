"""BiTTA: learn from binary feedback on uncertain samples and from agreement on the others.

Lee et al., ICML 2025, "Test-Time Adaptation with Binary Feedback".
The defaults differ from the paper's text in the same two ways as the published code: the loss
applies a second softmax to π, and updates normalise by the statistics of the mixed batch. Models
collapse if the text is taken literally. The defaults differ from the code, too: the statistics of a
batch are observed before it is served, so that the label served is the label judged. The preset
`reference` follows the code, and the preset `paper` follows the text. See
docs/reference/methods/bitta.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bitta.augment import augment_images
from bitta.config_base import require
from bitta.losses import policy_loss
from bitta.memory import BalancedMemory, MixedBatch
from bitta.methods.base import GradientAdapter, ObserveTime
from bitta.methods.mecta import MectaConfig
from bitta.nn import (
    SamplingSettings,
    Statistics,
    WrappedModel,
    perturbed_weights,
    restore_stochastically,
)
from bitta.seeding import RandomKey
from bitta.types import Feedback, JudgedSamples, Losses, State, softmax


@dataclass(frozen=True, kw_only=True)
class BittaConfig(MectaConfig):
    """Settings of BiTTA. The number k of questions is a setting of the session."""

    lr: float = 1e-4
    """Learning rate η of SGD. The default is the paper's value for CIFAR-10-C and CIFAR-100-C."""
    epochs: int = 3
    """Number E of updates on each batch."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """Weight decay of SGD. The default is the value of the published code on CIFAR."""
    alpha: float = 1.0
    """Weight α of the loss on answers (BFA). With 0 the method learns from agreement only."""
    beta: float = 1.0
    """Weight β of the loss on agreement (ABA). With 0 the method learns from answers only."""
    bn_momentum: float = 0.3
    """Rate at which the running statistics follow each batch."""
    stream_memory: int = 0
    """Number of unlabelled samples to remember, balanced by served label. The method learns from
    them instead of the batch. Use it for streams whose labels come in long runs; 0 turns it off."""
    restore: float = 0.0
    """Probability with which each weight returns to its source value after a batch."""
    second_softmax: bool = True
    """Apply a second softmax to π inside the loss. It bounds the term of incorrect samples."""
    adapt_statistics: Statistics = "batch"
    """Statistics that normalise in updates and in the policy: batch or running."""
    observes: ObserveTime = "before_serving"
    """Time at which the statistics of a batch are observed: before_serving, before_asking or
    after_asking."""
    policy: Literal["dropout", "augmentation", "ensemble", "softmax"] = "dropout"
    """Passes whose mean is π: with dropout, on random views of the images, with noise on the
    weights, or one deterministic pass."""
    perturbation: float = 0.1
    """Noise on the weights of the ensemble, in standard deviations of each tensor. The paper does
    not give a value."""
    agreement: Literal["policy", "threshold"] = "policy"
    """Unlabelled samples to learn from. policy: the most probable label is the same in π and in the
    deterministic pass; threshold: the deterministic confidence is above `threshold`."""
    threshold: float = 0.9
    """Confidence in the deterministic pass above which samples are learned from, with
    agreement="threshold". The paper tries .8 to .99."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {"observes": "before_asking"},
        "paper": {
            "second_softmax": False,
            "adapt_statistics": "running",
            "observes": "after_asking",
            "weight_decay": 0.0,
        },
        "tiny": {"lr": 5e-5, "epochs": 5, "dropout": 0.1, "restore": 0.01, "weight_decay": 0.0},
        "large": {"selection": "random", "dropout": 0.1, "weight_decay": 0.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        for name in ("bn_momentum", "restore"):
            value = getattr(self, name)
            require(0 <= value <= 1, name, value, "0 to 1")
        for name in ("alpha", "beta", "weight_decay", "perturbation"):
            value = getattr(self, name)
            require(value >= 0, name, value, "0 or more")
        require(0 <= self.threshold < 1, "threshold", self.threshold, "at least 0 and below 1")
        require(self.stream_memory >= 0, "stream_memory", self.stream_memory, "0 or more")
        self._check_combinations()

    def _check_combinations(self) -> None:
        # Backward repeats the forward pass of a micro batch. By then the noise has been removed.
        is_possible = self.policy != "ensemble" or not self.micro_batch
        allowed = "0 with policy='ensemble'; to save memory, set memory='low'"
        require(is_possible, "micro_batch", self.micro_batch, allowed)
        uses_batch = self.mecta == "off" or self.adapt_statistics == "batch"
        require(uses_batch, "mecta", self.mecta, "'off' with adapt_statistics='running'")
        # MECTA and the stream memory both update the running statistics.
        is_alone = self.mecta == "off" or not self.stream_memory
        require(is_alone, "mecta", self.mecta, "'off' with a stream_memory")


class Bitta(GradientAdapter[BittaConfig]):
    """Learns from binary feedback and from agreement, both guided by one policy π."""

    Config = BittaConfig
    paper: ClassVar[str] = "Lee et al., ICML 2025"
    n_queries: ClassVar[int] = 3

    def __init__(self, wrapped: WrappedModel, config: BittaConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self._sampling = self.sampling_settings(config.adapt_statistics)
        if self._sampling.rate:
            _ = self.wrapped.sites  # Raises an error now if the model has no dropout sites.
        # A stream memory is used for long runs of one class. With the batch statistics of such a
        # run, the policy would disagree with correct labels.
        self.policy_statistics = "running" if config.stream_memory else config.adapt_statistics
        self.stream_memory = BalancedMemory(config.stream_memory) if config.stream_memory else None
        """Unlabelled samples to learn from instead of the batch, with their served labels."""
        self.observes = config.observes
        self.learns_from_feedback = config.alpha > 0
        if config.policy in ("augmentation", "ensemble"):
            # Colour changes are drawn on the host. Noisy weights have new addresses in each pass.
            self.is_capturable = False

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return all parameters."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with Nesterov momentum."""
        config = self.config
        return self.make_sgd(
            momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
        )

    def observe(self, inputs: Tensor) -> None:
        """Update the running statistics with the batch."""
        if self.wrapped.normaliser is not None:
            super().observe(inputs)
        elif self.stream_memory is None:  # otherwise `adapt` updates them with its samples
            self.wrapped.observe(inputs, momentum=self.config.bn_momentum)

    def sampling_settings(self, statistics: Statistics) -> SamplingSettings:
        """Return the settings of the passes; without dropout for the other policies."""
        settings = super().sampling_settings(statistics)
        return settings if self.config.policy == "dropout" else replace(settings, rate=0.0)

    def sampled_probs(
        self, inputs: Tensor, sampling: SamplingSettings, random_key: RandomKey
    ) -> Tensor:
        """Eq. 4: return π, the mean of N random softmaxes, (batch, classes)."""
        if self.config.policy == "augmentation":
            logits = augmented_passes(self.wrapped, inputs, sampling, random_key)
        elif self.config.policy == "ensemble":
            noise = self.config.perturbation
            logits = perturbed_passes(self.wrapped, inputs, sampling, random_key, size=noise)
        else:
            return super().sampled_probs(inputs, sampling, random_key)
        return softmax(logits).mean(0)

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Algorithm 1, lines 14-29: remember the answers, make E updates, restore some weights."""
        if self.stream_memory is not None:
            unlabelled = self._replace_by_stream_memory(self.stream_memory, unlabelled)
        losses = super().adapt(unlabelled, feedback)
        if self.config.restore:
            restore_stochastically(
                self.model,
                self.source_weights.on_device(self.wrapped.device),
                rate=self.config.restore,
                key=(self.seed, "restore", self.version),
            )
        return losses

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Eq. 11: return the terms of α (correct - incorrect) + β agreement."""
        if self.config.beta:
            # Run the whole mixed batch, so that both passes have the same batch statistics.
            probs, deterministic = self._sampled_and_deterministic_probs(mixed.inputs, random_key)
            return self._feedback_term(mixed, probs) | self._agreement_term(
                mixed, probs, deterministic
            )
        if not (self.config.alpha and mixed.n_judged):
            return {}
        probs = self.sampled_probs(mixed.inputs, self._sampling, random_key)
        return self._feedback_term(mixed, probs)

    def _feedback_term(self, mixed: MixedBatch, probs: Tensor) -> dict[str, Tensor]:
        correct, incorrect, _ = mixed.split(probs)
        second_softmax = self.config.second_softmax
        terms = []
        if len(correct):
            terms.append(policy_loss(correct, mixed.correct, second_softmax=second_softmax))
        if len(incorrect):
            terms.append(-policy_loss(incorrect, mixed.incorrect, second_softmax=second_softmax))
        if not terms or not self.config.alpha:
            return {}
        return {"feedback": self.config.alpha * torch.stack(terms).sum()}

    def _agreement_term(
        self, mixed: MixedBatch, probs: Tensor, deterministic: Tensor
    ) -> dict[str, Tensor]:
        *_, probs = mixed.split(probs)
        *_, deterministic = mixed.split(deterministic)
        if not len(probs):
            return {}
        labels = deterministic.argmax(-1)
        agrees = probs.argmax(-1) == labels
        if self.config.agreement == "threshold":
            agrees = deterministic.amax(-1) > self.config.threshold
        second_softmax = self.config.second_softmax
        loss = policy_loss(probs, labels, second_softmax=second_softmax, where=agrees)
        return {"agreement": self.config.beta * loss}

    def _sampled_and_deterministic_probs(
        self, inputs: Tensor, random_key: RandomKey
    ) -> tuple[Tensor, Tensor]:
        """Return π, and without gradient the softmax of one deterministic pass."""
        sampling = self._sampling
        has_normaliser = self.wrapped.normaliser is not None
        if not has_normaliser and self.config.policy in ("dropout", "softmax"):
            sampled, deterministic = self.wrapped.sample_with_deterministic(
                inputs, sampling, random_key
            )
            return softmax(sampled).mean(0), softmax(deterministic)
        # Run two separate passes. Random views and noisy weights share nothing with a deterministic
        # pass. With MECTA, the test for a shared prefix would change the statistics.
        with torch.no_grad():
            deterministic = softmax(self.wrapped(inputs, statistics=sampling.statistics))
        return self.sampled_probs(inputs, sampling, random_key), deterministic

    def _replace_by_stream_memory(self, memory: BalancedMemory, unlabelled: Tensor) -> Tensor:
        """Add new samples to the stream memory. Observe and return all its samples."""
        memory.add(JudgedSamples(unlabelled, self.predict(unlabelled).labels))
        if len(memory):
            self.wrapped.observe(memory.inputs, momentum=self.config.bn_momentum)
        return memory.inputs

    def reset(self) -> None:
        """Also empty the stream memory."""
        super().reset()
        if self.stream_memory is not None:
            self.stream_memory.clear()

    def state_dict(self) -> State:
        """Return the state, with the stream memory."""
        state = super().state_dict()
        if self.stream_memory is not None:
            state["stream_memory"] = self.stream_memory.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        if self.stream_memory is not None:
            self.stream_memory.load_state_dict(state["stream_memory"], device=self.wrapped.device)


def augmented_passes(
    wrapped: WrappedModel, inputs: Tensor, sampling: SamplingSettings, random_key: RandomKey
) -> Tensor:
    """Return the logits of N random views of each image, (passes, batch, classes)."""

    def run_pass(number: int) -> Tensor:
        views = augment_images(inputs, random_key, "augmentation", number)
        return wrapped(views, statistics=sampling.statistics)

    return _stack_passes(wrapped, run_pass, sampling.passes)


def perturbed_passes(
    wrapped: WrappedModel,
    inputs: Tensor,
    sampling: SamplingSettings,
    random_key: RandomKey,
    *,
    size: float,
) -> Tensor:
    """Return the logits of N models with noise on their weights, (passes, batch, classes)."""

    def run_pass(number: int) -> Tensor:
        with perturbed_weights(wrapped.model, size=size, random_key=random_key, number=number):
            return wrapped(inputs, statistics=sampling.statistics)

    return _stack_passes(wrapped, run_pass, sampling.passes)


def _stack_passes(
    wrapped: WrappedModel, run_pass: Callable[[int], Tensor], n_passes: int
) -> Tensor:
    """Run pass by pass. In low-memory mode backward repeats each pass."""
    if wrapped.low_memory and torch.is_grad_enabled():
        run_pass = partial(checkpoint, run_pass, use_reentrant=False, preserve_rng_state=False)
    return torch.stack([run_pass(number) for number in range(n_passes)])
