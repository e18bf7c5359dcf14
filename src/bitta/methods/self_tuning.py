"""Self-tuning: BiTTA's idea with step size, weights of the loss and serving set by the answers.

This method is ours; there is no paper. It has the information that BiTTA has: k questions per
window, one bit each, no source data. Everything that BiTTA needs a setting for follows from four
measurements, see `self_tuning_measurements.py`:

* `SourceComparison`: paired audits say whether learning helps. If they favour the learned model,
  steps become larger. If they do not, more of the source model is served, steps become smaller, and
  the weights return towards the source.
* `AnswerCalibration`: answers say how often a label is right, given its uncertainty. Unlabelled
  samples teach with a weight that follows from it. A model that is nearly always right takes small
  steps.
* `ViewCheck`: shifted and mirrored views are used if they keep the labels of confident samples.
* `LabelRuns`: if labels arrive in runs, BatchNorm statistics come from a balanced memory.

See docs/reference/methods/self_tuning.md.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from bitta.config_base import require
from bitta.losses import policy_loss
from bitta.memory import BalancedMemory, MixedBatch
from bitta.methods.base import GradientAdapter, GradientConfig
from bitta.methods.self_tuning_measurements import (
    EDGES,
    MAX_ODDS,
    N_BINS,
    AnswerCalibration,
    LabelRuns,
    SourceComparison,
    ViewCheck,
)
from bitta.nn import Statistics, WrappedModel, batch_norms
from bitta.seeding import RandomKey
from bitta.types import Feedback, JudgedSamples, Losses, State, move_to_device, softmax

_MIN_BATCH = 16
"""Number of rows from which on their own statistics are used to serve them."""
_MEMORY_MOMENTUM = 0.1
"""Rate at which the running statistics follow the stream memory."""
_MIN_PROBABILITY = 1e-4
"""Smallest probability in a logarithm of the loss."""


@dataclass(frozen=True, kw_only=True)
class SelfTuningConfig(GradientConfig):
    """Settings of the self-tuning method. None has to be set; each switches one part."""

    dropout: float = 0.1
    """Rate of MC-dropout. With 0 the policy is the plain softmax."""
    lr: float = 1e-3
    """Learning rate of SGD at even odds of an error and half of the full evidence of a benefit."""
    lr_growth: float = 10.0
    """Factor on the learning rate when the audits clearly favour the learned model. Without
    evidence the learning rate is divided by it."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    feedback_weight: float = 1.0
    """Weight of the loss on answers if half of the labels or more are wrong. If fewer are, it is
    smaller in proportion."""
    agreement_weight: float = 1.0
    """Weight of the loss on unlabelled samples whose label does not change with dropout."""
    calibrated: bool = True
    """Weigh unlabelled samples by how often such labels were right in the answers."""
    trust_radius: float = 0.01
    """Largest KL divergence between the predictions before and after an update, as the mean over
    the mixed batch. A longer step is shortened. 0 turns this off."""
    source_pull: float = 0.003
    """Share of the way towards the source weights that each update returns."""
    source_mixing: bool = True
    """Serve a mean of the learned model and the source model, weighted by the paired audits."""
    bn_momentum: float = 0.3
    """Rate at which the running statistics follow each batch."""
    both_statistics: bool = True
    """Serve the mean of the outputs with running and with batch statistics."""
    stream_memory: int = 128
    """BatchNorm: number of recent samples, balanced by label, that replace the batch while equal
    labels arrive in runs. 0 turns this off."""
    views: int = 4
    """Number of shifted and mirrored views whose mean is served: 1, 2 or 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(self.lr_growth >= 1, "lr_growth", self.lr_growth, "1 or more")
        for name in ("feedback_weight", "agreement_weight", "trust_radius"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("source_pull", "bn_momentum"):
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        require(self.stream_memory >= 0, "stream_memory", self.stream_memory, "0 or more")
        require(self.views in (1, 2, 4), "views", self.views, "1, 2 or 4")


class SelfTuning(GradientAdapter[SelfTuningConfig]):
    """Learns from answers and agreement, in steps that follow the measured benefit."""

    Config = SelfTuningConfig
    trains: ClassVar[str] = "all"
    n_queries: ClassVar[int] = 3
    audits: ClassVar[int] = 1
    paired_audits: ClassVar[int] = 2
    window: ClassVar[int] = 64

    def __init__(self, wrapped: WrappedModel, config: SelfTuningConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self._has_norms = bool(batch_norms(wrapped.model))
        self._forget_answers()
        self.policy_statistics = self._batch_or_running()
        self._sampling = self.sampling_settings(self.policy_statistics)
        if self._sampling.rate:
            _ = self.wrapped.sites  # Raises an error now if the model has no dropout sites.
        # A captured update reads these tensors, which change in place.
        controls = torch.zeros(4 + N_BINS, device=wrapped.device)
        parts = controls.split((1, 1, 1, 1, N_BINS))
        self._gradient_scale, self._pull, self._radius, self._answer_weight = parts[:4]
        self._row_weights = parts[4]
        self._bin_counts = torch.zeros(N_BINS, device=wrapped.device)
        """Number of unlabelled rows in each bin of uncertainty. An update writes it."""
        self._edges = torch.tensor(EDGES, device=wrapped.device)
        self._probs_before = controls
        """Predictions for the mixed batch before the current update, (rows, classes)."""

    def _forget_answers(self) -> None:
        self.calibration = AnswerCalibration()
        self.comparison = SourceComparison()
        self.view_check = ViewCheck()
        self.label_runs = LabelRuns()
        self.stream_memory = BalancedMemory(self.config.stream_memory)

    @property
    def uses_stream_memory(self) -> bool:
        """True if labels arrive in runs, so that a batch has the statistics of a few classes."""
        return self.config.stream_memory > 0 and self._has_norms and self.label_runs.found

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return all parameters."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with Nesterov momentum."""
        return self.make_sgd(momentum=self.config.momentum, nesterov=True)

    def observe(self, inputs: Tensor) -> None:
        """Update the running statistics with the batch."""
        if not self.uses_stream_memory:  # otherwise `adapt` updates them with the memory
            self.wrapped.observe(inputs, momentum=self.config.bn_momentum)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logarithm of the served probabilities, (batch, classes).

        They are the mean over views and statistics, mixed with those of the source model.
        """
        probs = self._served_probs(inputs, n_views=self.config.views)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()

    def _served_probs(self, inputs: Tensor, *, n_views: int) -> Tensor:
        views = self.view_check.make_views(inputs, n_views)
        probs = self._mean_over_views(views, "running")
        uses_batch = self.config.both_statistics and self.policy_statistics == "batch"
        if uses_batch and len(inputs) >= _MIN_BATCH:
            probs = (probs + self._mean_over_views(views, "batch")) / 2
        if self.config.source_mixing:
            probs = torch.lerp(softmax(self.source_logits(inputs)), probs, self.comparison.trust)
        return probs

    def _mean_over_views(self, views: Sequence[Tensor], statistics: Statistics) -> Tensor:
        outputs = softmax(self.wrapped(torch.cat(list(views)), statistics=statistics))
        mean: Tensor = outputs.unflatten(0, (len(views), -1)).mean(0)
        return mean

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Take in the answers, then make an update whose size follows from them."""
        self.calibration.add(feedback.answers)
        n_samples = len(unlabelled) + len(feedback.answers)
        self.comparison.add(feedback.answers, n_samples=n_samples)
        self.calibration.add_window(self._bin_counts.tolist())
        if len(unlabelled) and self.config.views > 1:
            self.view_check.add(self.wrapped, unlabelled, statistics=self.policy_statistics)
        self._set_controls()
        if len(unlabelled) and self._has_norms and self.config.stream_memory:
            unlabelled = self._replace_runs(unlabelled)
        return super().adapt(unlabelled, feedback)

    @torch.no_grad()
    def _replace_runs(self, unlabelled: Tensor) -> Tensor:
        """Return the samples to learn from: the batch, or the memory if labels arrive in runs."""
        labels = self._served_probs(unlabelled, n_views=1).argmax(-1)
        self.label_runs.add(labels.tolist())
        self.policy_statistics = self._batch_or_running()
        if not self.uses_stream_memory:
            self.stream_memory.clear()
            return unlabelled
        self.stream_memory.add(JudgedSamples(unlabelled, labels))
        self.wrapped.observe(self.stream_memory.inputs, momentum=_MEMORY_MOMENTUM)
        return self.stream_memory.inputs

    def _batch_or_running(self) -> Statistics:
        """Return the statistics of the policy. Those of a run of one class mislead it."""
        return "batch" if self._has_norms and not self.uses_stream_memory else "running"

    def _set_controls(self) -> None:
        """Copy the values that follow from the answers into the tensors that an update reads."""
        config, comparison = self.config, self.comparison
        weights = self.calibration.row_weights()
        if not config.calibrated:
            weights = [1.0] * len(weights)
        error_rate = self.calibration.error_rate
        comparison.error_rate = error_rate
        odds = self.calibration.error_odds
        evidence = comparison.evidence_factor(config.lr_growth, at_least=odds / MAX_ODDS)
        self._gradient_scale.fill_(odds * evidence)
        # The divergence grows with the square of the step.
        share = min(1.0, odds) * min(1.0, odds * evidence)
        self._radius.fill_(config.trust_radius * share**2)
        self._answer_weight.fill_(config.feedback_weight * min(1.0, 2 * error_rate))
        self._pull.fill_(min(1.0, config.source_pull + comparison.extra_pull))
        self._row_weights.copy_(move_to_device(torch.tensor(weights), self.wrapped.device))

    def make_update(self, *mixed: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Make one update, shorten it to the trust radius, and return towards the source."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        terms = super().make_update(*mixed, random_key=random_key)
        if terms:
            with torch.no_grad():
                if self.config.trust_radius:
                    self._limit_change(mixed[0], before)
                self._pull_to_source()
        return terms

    def compute_gradients(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Store the gradient, scaled by the step factor."""
        terms = super().compute_gradients(mixed, random_key)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(self._gradient_scale)
        return terms

    def _limit_change(self, inputs: Tensor, before: Sequence[Tensor]) -> None:
        """Shorten the update if it changed the predictions by more than the trust radius.

        The KL divergence grows with the square of the step. An update that gives no finite numbers
        is undone.
        """
        logits = self.wrapped(inputs, statistics=self._sampling.statistics).float()
        probs = self._probs_before
        divergence = (torch.xlogy(probs, probs) - probs * logits.log_softmax(-1)).sum(-1).mean()
        scale = (self._radius / divergence.clamp_min(1e-12)).sqrt().clamp_max(1.0)
        is_finite = divergence.isfinite()
        scale = torch.where(is_finite, scale, 0.0)
        for parameter, start in zip(self.parameters, before, strict=True):
            shortened = start + scale * (parameter - start)
            parameter.copy_(torch.where(is_finite, shortened, start))
        for values in self.optimiser.state.values():
            momentum = values.get("momentum_buffer")
            if momentum is not None:
                momentum.copy_(torch.where(is_finite, scale * momentum, 0.0))

    def _pull_to_source(self) -> None:
        source = self.source_weights.on_device(self.wrapped.device)
        trained = {id(parameter) for parameter in self.parameters}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in trained:
                parameter.add_(self._pull * (source[name] - parameter))

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Return the loss on answers, -log π or -log(1 - π), and the loss on agreement, -log π."""
        sampled, deterministic = self.wrapped.sample_with_deterministic(
            mixed.inputs, self._sampling, random_key
        )
        probs, deterministic = softmax(sampled).mean(0), softmax(deterministic)
        self._probs_before = deterministic
        return self._feedback_term(mixed, probs) | self._agreement_term(mixed, probs, deterministic)

    def _feedback_term(self, mixed: MixedBatch, probs: Tensor) -> dict[str, Tensor]:
        correct, incorrect, _ = mixed.split(probs)
        terms = []
        if len(correct):
            terms.append(policy_loss(correct, mixed.correct, second_softmax=False))
        if len(incorrect):
            excluded = incorrect.gather(1, mixed.incorrect.unsqueeze(1))
            terms.append(-(1 - excluded).clamp_min(_MIN_PROBABILITY).log().mean())
        if not terms or not self.config.feedback_weight:
            return {}
        return {"feedback": (self._answer_weight * torch.stack(terms)).sum()}

    def _agreement_term(
        self, mixed: MixedBatch, probs: Tensor, deterministic: Tensor
    ) -> dict[str, Tensor]:
        *_, probs = mixed.split(probs)
        *_, deterministic = mixed.split(deterministic)
        labels = deterministic.argmax(-1)
        confidence = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
        bins = torch.bucketize(1 - confidence.detach(), self._edges)
        every_bin = torch.arange(N_BINS, device=bins.device)
        self._bin_counts.copy_((bins.unsqueeze(1) == every_bin).sum(0))
        if not len(probs) or not self.config.agreement_weight:
            return {}
        agrees = probs.argmax(-1) == labels
        losses = -confidence.clamp_min(_MIN_PROBABILITY).log()
        total = torch.where(agrees, self._row_weights[bins] * losses, 0).sum()
        return {"agreement": self.config.agreement_weight * total / agrees.sum().clamp_min(1)}

    def reset(self) -> None:
        """Also forget what the answers said."""
        super().reset()
        self._forget_answers()
        self.policy_statistics = self._batch_or_running()
        self._bin_counts.zero_()

    def state_dict(self) -> State:
        """Return the state, with what the answers said."""
        return super().state_dict() | {
            "calibration": asdict(self.calibration),
            "comparison": asdict(self.comparison),
            "view_check": asdict(self.view_check),
            "label_runs": asdict(self.label_runs),
            "stream_memory": self.stream_memory.state_dict(),
            "bin_counts": self._bin_counts.tolist(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        # The estimators change their counts in place; the caller keeps the state.
        self.calibration = AnswerCalibration(**deepcopy(state["calibration"]))
        self.comparison = SourceComparison(**deepcopy(state["comparison"]))
        self.view_check = ViewCheck(**state["view_check"])
        self.label_runs = LabelRuns(**state["label_runs"])
        self.stream_memory.load_state_dict(state["stream_memory"], device=self.wrapped.device)
        self.policy_statistics = self._batch_or_running()
        self._bin_counts.copy_(torch.tensor(state["bin_counts"]))
