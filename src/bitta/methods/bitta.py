"""BiTTA: learn from one bit about uncertain samples and from agreement on the others.

Lee et al., ICML 2025, "Test-Time Adaptation with Binary Feedback".
Departures from the paper's text, which collapses when taken literally: the loss applies a second
softmax to π, and adaptation normalises by the statistics of the mixed batch; both as the published
code does. Departures from that code: the statistics of a batch are taken in before it is served, so
that the label served is the label judged. Presets `reference` (the code) and `paper` (the text,
unstable) undo these choices; docs/reference/methods/bitta.md tells the details.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bitta.augment import augmented
from bitta.config import require
from bitta.losses import policy_loss
from bitta.memory import BalancedMemory, MixedBatch
from bitta.methods.base import ObserveTime
from bitta.methods.mecta import MectaAdapter, MectaConfig
from bitta.nn import (
    SamplingSettings,
    Statistics,
    WrappedModel,
    perturbed_weights,
    restore_stochastically,
)
from bitta.seeding import RandomKey
from bitta.types import Feedback, JudgedSamples, Losses, State, softmax


def augmented_passes(
    wrapped: WrappedModel, inputs: Tensor, how: SamplingSettings, random_key: RandomKey
) -> Tensor:
    """Logits of N random views of each image, (passes, batch, classes)."""

    def one(number: int) -> Tensor:
        views = augmented(inputs, random_key, "augmentation", number)
        return wrapped(views, statistics=how.statistics)

    return _each(wrapped, one, how.passes)


def perturbed_passes(
    wrapped: WrappedModel,
    inputs: Tensor,
    how: SamplingSettings,
    random_key: RandomKey,
    *,
    size: float,
) -> Tensor:
    """Logits of an ensemble of N models with noise on their weights, (passes, batch, classes)."""

    def one(number: int) -> Tensor:
        with perturbed_weights(wrapped.model, size=size, random_key=random_key, number=number):
            return wrapped(inputs, statistics=how.statistics)

    return _each(wrapped, one, how.passes)


def _each(wrapped: WrappedModel, one: Callable[[int], Tensor], passes: int) -> Tensor:
    """Pass by pass; run a second time for its gradient where activations are not kept."""
    if wrapped.low_memory and torch.is_grad_enabled():
        one = partial(checkpoint, one, use_reentrant=False, preserve_rng_state=False)
    return torch.stack([one(number) for number in range(passes)])


@dataclass(frozen=True, kw_only=True)
class BittaConfig(MectaConfig):
    """Settings of BiTTA; the number k of questions belongs to the session."""

    lr: float = 1e-4
    """Step size η of SGD; the paper's for CIFAR-10-C and CIFAR-100-C."""
    epochs: int = 3
    """Number E of steps on each batch."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """Weight decay of SGD, as the published code ran on CIFAR."""
    alpha: float = 1.0
    """Weight α of the answers (BFA); 0 leaves agreement alone to teach."""
    beta: float = 1.0
    """Weight β of agreement (ABA); 0 leaves the answers alone to teach."""
    bn_momentum: float = 0.3
    """How fast the running statistics follow each batch."""
    stream_memory: int = 0
    """For streams whose labels come in runs: so many samples of the stream, balanced by the label
    served, are learned from in place of the batch, and running statistics follow them; 0: none."""
    restore: float = 0.0
    """Probability with which each weight goes back to its source value after a batch."""
    second_softmax: bool = True
    """Apply softmax again to π inside the loss, which bounds the incorrect term."""
    adapt_statistics: Statistics = "batch"
    """What normalises while adapting and in the policy."""
    observes: ObserveTime = "before_serving"
    """When a batch's statistics are taken in: before_serving, before_asking or after_asking."""
    policy: Literal["dropout", "augmentation", "ensemble", "softmax"] = "dropout"
    """What π is the mean of: passes with dropout, random views of the images, models with noise on
    their weights, or one deterministic pass."""
    perturbation: float = 0.1
    """Noise of an ensemble's weights, in standard deviations of each tensor; the paper has none."""
    agreement: Literal["policy", "threshold"] = "policy"
    """Which unlabelled samples teach: those whose label π shares, or those whose confidence is
    above `threshold`."""
    threshold: float = 0.9
    """Confidence of the deterministic pass; the paper tries .8 to .99."""

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
        self._check_together()

    def _check_together(self) -> None:
        # A part is run again for its gradient when the noise is no longer on the weights.
        whole = self.policy != "ensemble" or not self.micro_batch
        allowed = "0 with policy='ensemble', where memory='low' saves memory"
        require(whole, "micro_batch", self.micro_batch, allowed)
        moves = self.mecta == "off" or self.adapt_statistics == "batch"
        require(moves, "mecta", self.mecta, "'off' with adapt_statistics='running'")
        own = self.mecta == "off" or not self.stream_memory
        require(own, "mecta", self.mecta, "'off' with a stream_memory, which moves statistics")


class Bitta(MectaAdapter[BittaConfig]):
    """Binary-feedback-guided and agreement-based adaptation on one policy, π."""

    Config = BittaConfig
    paper: ClassVar[str] = "Lee et al., ICML 2025"
    n_queries: ClassVar[int] = 3

    def __init__(self, wrapped: WrappedModel, config: BittaConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self._learns_by = self.sampling(config.adapt_statistics)
        if self._learns_by.rate:
            _ = self.wrapped.sites  # a model without any is refused now, not in mid-stream
        # By the statistics of a run of one class it would doubt what is right.
        self.policy_statistics = "running" if config.stream_memory else config.adapt_statistics
        self.stream = BalancedMemory(config.stream_memory) if config.stream_memory else None
        """What is learned from in place of the batch, by the label it was served with."""
        self.observes = config.observes
        self.learns_from_feedback = config.alpha > 0
        if config.policy in ("augmentation", "ensemble"):
            self.is_capturable = False  # what is drawn goes through the host

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """All of them."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """SGD with Nesterov momentum, if any."""
        config = self.config
        return self.make_sgd(
            momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
        )

    def observe(self, inputs: Tensor) -> None:
        """Let the running statistics follow the stream."""
        if self.mecta is not None:
            return super().observe(inputs)
        if self.stream is not None:
            return None  # they follow what is remembered of it, when that is learned from
        return self.wrapped.observe(inputs, momentum=self.config.bn_momentum)

    def sampling(self, statistics: Statistics) -> SamplingSettings:
        """Without dropout where something else makes passes differ, or do_nothing does."""
        how = super().sampling(statistics)
        return how if self.config.policy == "dropout" else replace(how, rate=0.0)

    def sampled_probs(self, inputs: Tensor, how: SamplingSettings, random_key: RandomKey) -> Tensor:
        """Eq. 4: π, the mean of N softmaxes that differ by chance."""
        config = self.config
        if config.policy == "augmentation":
            return softmax(augmented_passes(self.wrapped, inputs, how, random_key)).mean(0)
        if config.policy == "ensemble":
            size = config.perturbation
            return softmax(perturbed_passes(self.wrapped, inputs, how, random_key, size=size)).mean(
                0
            )
        return super().sampled_probs(inputs, how, random_key)

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Eq. 11: α (correct - incorrect) + β agreement."""
        if self.config.beta:
            # Over the whole mixed batch, whose statistics the deterministic label shares.
            probs, plain = self._sampled_and_plain_probs(mixed.inputs, random_key)
            return self._feedback_term(mixed, probs) | self._agreement_term(mixed, probs, plain)
        if not (self.config.alpha and mixed.n_judged):
            return {}
        probs = self.sampled_probs(mixed.inputs, self._learns_by, random_key)
        return self._feedback_term(mixed, probs)

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Algorithm 1, lines 14-29."""
        if self.stream is not None:
            unlabelled = self._remembered(self.stream, unlabelled)
        losses = super().adapt(unlabelled, feedback)
        if self.config.restore:
            restore_stochastically(
                self.model,
                self.source_weights.near(self.wrapped.device),
                rate=self.config.restore,
                key=(self.seed, "restore", self.version),
            )
        return losses

    def reset(self) -> None:
        """An empty memory of the stream, too."""
        super().reset()
        if self.stream is not None:
            self.stream.clear()

    def state_dict(self) -> State:
        """The memory of the stream, if any, beside the rest."""
        stream = {} if self.stream is None else {"stream": self.stream.state_dict()}
        return super().state_dict() | stream

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        if self.stream is not None:
            self.stream.load_state_dict(state["stream"], device=self.wrapped.device)

    def _remembered(self, stream: BalancedMemory, unlabelled: Tensor) -> Tensor:
        """What stands for the stream, with the new samples; running statistics follow it."""
        stream.add(JudgedSamples(unlabelled, self.predict(unlabelled).labels))
        if len(stream):
            self.wrapped.observe(stream.inputs, momentum=self.config.bn_momentum)
        return stream.inputs

    def _sampled_and_plain_probs(
        self, inputs: Tensor, random_key: RandomKey
    ) -> tuple[Tensor, Tensor]:
        """π, and without gradient the softmax of one deterministic pass."""
        how = self._learns_by
        if self.mecta is None and self.config.policy in ("dropout", "softmax"):
            sampled, plain = self.wrapped.sample_with_plain(inputs, how, random_key)
            return softmax(sampled).mean(0), softmax(plain)
        # Apart: with MECTA, trying whether they can share a part would move statistics.
        with torch.no_grad():
            plain = softmax(self.wrapped(inputs, statistics=how.statistics))
        return self.sampled_probs(inputs, how, random_key), plain

    def _feedback_term(self, mixed: MixedBatch, probs: Tensor) -> dict[str, Tensor]:
        correct, incorrect, _ = mixed.split(probs)
        double = self.config.second_softmax
        terms = []
        if len(correct):
            terms.append(policy_loss(correct, mixed.correct, second_softmax=double))
        if len(incorrect):
            terms.append(-policy_loss(incorrect, mixed.incorrect, second_softmax=double))
        if not terms or not self.config.alpha:
            return {}
        return {"feedback": self.config.alpha * torch.stack(terms).sum()}

    def _agreement_term(self, mixed: MixedBatch, probs: Tensor, plain: Tensor) -> dict[str, Tensor]:
        *_, probs = mixed.split(probs)
        *_, plain = mixed.split(plain)
        if not len(probs):
            return {}
        labels = plain.argmax(-1)
        agreeing = probs.argmax(-1) == labels
        if self.config.agreement == "threshold":
            agreeing = plain.amax(-1) > self.config.threshold
        double = self.config.second_softmax
        loss = policy_loss(probs, labels, second_softmax=double, where=agreeing)
        return {"agreement": self.config.beta * loss}
