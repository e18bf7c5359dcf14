"""Self-tuning: BiTTA's idea with step size, weights of the loss and serving set by the answers.

This method is ours; there is no paper. It has the information that BiTTA has: k questions per
window, one bit each, no source data. Everything that BiTTA needs a setting for follows from three
measurements:

* `SourceComparison`: paired audits say whether learning helps. If they favour the learned model,
  steps become larger. If they do not, more of the source model is served, steps become smaller, and
  the weights return towards the source.
* `AnswerCalibration`: answers say how often a label is right, given its uncertainty. Unlabelled
  samples teach with a weight that follows from it.
* `ViewCheck`: shifted and mirrored views are used if they keep the labels of confident samples.

See docs/reference/methods/self_tuning.md.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.benefit import PairedScores
from bitta.config_base import require
from bitta.losses import policy_loss
from bitta.memory import MixedBatch
from bitta.methods.base import GradientAdapter, GradientConfig
from bitta.nn import Statistics, WrappedModel, batch_norms
from bitta.seeding import RandomKey
from bitta.types import Answer, Feedback, Losses, State, move_to_device, softmax

_MIN_BATCH = 16
"""Number of rows from which on their own statistics are used to serve them."""
_MIN_PROBABILITY = 1e-4
"""Smallest probability in a logarithm of the loss."""


@dataclass(frozen=True, kw_only=True)
class SelfTuningConfig(GradientConfig):
    """Settings of the self-tuning method. None has to be set; each switches one part."""

    lr: float = 3e-4
    """Learning rate of SGD before the audits favour one of the models."""
    lr_growth: float = 10.0
    """Factor on the learning rate when the audits clearly favour the learned model."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    feedback_weight: float = 0.3
    """Weight of the loss on answers."""
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
        require(self.views in (1, 2, 4), "views", self.views, "1, 2 or 4")


class SelfTuning(GradientAdapter[SelfTuningConfig]):
    """Learns from answers and agreement, in steps that follow the measured benefit."""

    Config = SelfTuningConfig
    trains: ClassVar[str] = "all"
    n_queries: ClassVar[int] = 3
    audits: ClassVar[int] = 1
    paired_audits: ClassVar[int] = 1
    window: ClassVar[int] = 64

    def __init__(self, wrapped: WrappedModel, config: SelfTuningConfig, *, seed: int = 0) -> None:
        super().__init__(wrapped, config, seed=seed)
        self.policy_statistics = "batch" if batch_norms(wrapped.model) else "running"
        self._sampling = self.sampling_settings(self.policy_statistics)
        if self._sampling.rate:
            _ = self.wrapped.sites  # Raises an error now if the model has no dropout sites.
        self._forget_answers()
        # A captured update reads these tensors, which change in place.
        controls = torch.zeros(2 + len(_PRIOR_ACCURACY), device=wrapped.device)
        self._gradient_scale, self._pull, self._row_weights = controls.tensor_split((1, 2))
        self._edges = torch.tensor(_EDGES, device=wrapped.device)
        self._probs_before = controls
        """Predictions for the mixed batch before the current update, (rows, classes)."""

    def _forget_answers(self) -> None:
        self.calibration = AnswerCalibration()
        self.comparison = SourceComparison()
        self.view_check = ViewCheck()

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return all parameters."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with Nesterov momentum."""
        return self.make_sgd(momentum=self.config.momentum, nesterov=True)

    def observe(self, inputs: Tensor) -> None:
        """Update the running statistics with the batch."""
        self.wrapped.observe(inputs, momentum=self.config.bn_momentum)

    @torch.no_grad()
    def logits(self, inputs: Tensor) -> Tensor:
        """Return the logarithm of the served probabilities, (batch, classes).

        They are the mean over views and statistics, mixed with those of the source model.
        """
        views = self.view_check.make_views(inputs, self.config.views)
        probs = self._mean_over_views(views, "running")
        has_batch_statistics = self.policy_statistics == "batch"
        if self.config.both_statistics and has_batch_statistics and len(inputs) >= _MIN_BATCH:
            probs = (probs + self._mean_over_views(views, "batch")) / 2
        if self.config.source_mixing:
            probs = torch.lerp(softmax(self.source_logits(inputs)), probs, self.comparison.trust)
        return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()

    def _mean_over_views(self, views: Sequence[Tensor], statistics: Statistics) -> Tensor:
        outputs = softmax(self.wrapped(torch.cat(list(views)), statistics=statistics))
        mean: Tensor = outputs.unflatten(0, (len(views), -1)).mean(0)
        return mean

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Take in the answers, then make an update whose size follows from them."""
        self.calibration.add(feedback.answers)
        self.comparison.add(feedback.answers)
        if len(unlabelled) and self.config.views > 1:
            self.view_check.add(self.wrapped, unlabelled, statistics=self.policy_statistics)
        self._set_controls()
        return super().adapt(unlabelled, feedback)

    def _set_controls(self) -> None:
        """Copy the values that follow from the answers into the tensors that an update reads."""
        config, comparison = self.config, self.comparison
        weights = self.calibration.row_weights()
        if not config.calibrated:
            weights = [1.0] * len(weights)
        self._gradient_scale.fill_(comparison.step_factor(config.lr_growth))
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
        logits = self.wrapped(inputs, statistics=self.policy_statistics).float()
        probs = self._probs_before
        divergence = (torch.xlogy(probs, probs) - probs * logits.log_softmax(-1)).sum(-1).mean()
        scale = (self.config.trust_radius / divergence.clamp_min(1e-12)).sqrt().clamp_max(1.0)
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
        return {"feedback": self.config.feedback_weight * torch.stack(terms).sum()}

    def _agreement_term(
        self, mixed: MixedBatch, probs: Tensor, deterministic: Tensor
    ) -> dict[str, Tensor]:
        *_, probs = mixed.split(probs)
        *_, deterministic = mixed.split(deterministic)
        if not len(probs) or not self.config.agreement_weight:
            return {}
        labels = deterministic.argmax(-1)
        agrees = probs.argmax(-1) == labels
        confidence = probs.gather(1, labels.unsqueeze(1)).squeeze(1)
        weights = self._row_weights[torch.bucketize(1 - confidence.detach(), self._edges)]
        losses = -confidence.clamp_min(_MIN_PROBABILITY).log()
        total = torch.where(agrees, weights * losses, 0).sum()
        return {"agreement": self.config.agreement_weight * total / agrees.sum().clamp_min(1)}

    def reset(self) -> None:
        """Also forget what the answers said."""
        super().reset()
        self._forget_answers()

    def state_dict(self) -> State:
        """Return the state, with what the answers said."""
        return super().state_dict() | {
            "calibration": asdict(self.calibration),
            "comparison": asdict(self.comparison),
            "view_check": asdict(self.view_check),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self.calibration = AnswerCalibration(**state["calibration"])
        self.comparison = SourceComparison(PairedScores(**state["comparison"]["scores"]))
        self.view_check = ViewCheck(**state["view_check"])


_EDGES = (0.05, 0.15, 0.3, 0.5, 0.7)
"""Edges of the bins of uncertainty, 1 - π(label)."""
_PRIOR_ACCURACY = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Share of labels that are right in each bin, before the first answers."""
_PRIOR_ANSWERS = 2.0
"""Number of answers that the prior counts for."""
_USELESS_ACCURACY = 0.3
"""Labels that are right less often than this are not learned from."""
_MEMORY_OF_ANSWERS = 0.98
"""Factor on the counts of a bin with each new answer in it."""


@dataclass(slots=True)
class AnswerCalibration:
    """Share of labels that are right, by their uncertainty, estimated from the answers.

    The share does not depend on whether questions are about uncertain or random samples, because it
    is estimated separately for each bin of uncertainty. Paired audits are left out: samples on
    which two models differ are wrong more often than others of the same uncertainty.
    """

    n_right: list[float] = field(
        default_factory=lambda: [_PRIOR_ANSWERS * accuracy for accuracy in _PRIOR_ACCURACY]
    )
    n_answers: list[float] = field(default_factory=lambda: [_PRIOR_ANSWERS] * len(_PRIOR_ACCURACY))

    def add(self, answers: Iterable[Answer]) -> None:
        """Count answers in their bins. Older ones fade."""
        for answer in answers:
            if answer.query.reason == "paired_audit":
                continue
            place = bisect_left(_EDGES, answer.query.uncertainty)
            self.n_right[place] = _MEMORY_OF_ANSWERS * self.n_right[place] + answer.correct
            self.n_answers[place] = _MEMORY_OF_ANSWERS * self.n_answers[place] + 1

    def row_weights(self) -> list[float]:
        """Return the weight of an unlabelled sample in each bin, 0 to 1."""
        shares = (right / n for right, n in zip(self.n_right, self.n_answers, strict=True))
        useful = 1 - _USELESS_ACCURACY
        return [max(0.0, (share - _USELESS_ACCURACY) / useful) for share in shares]


_PRIOR_Z = 0.5
"""Standard score before the first audits: learning probably helps."""
_MEMORY_OF_WINDOWS = 0.98
"""Factor on the scores of paired audits with each window."""
_PRIOR_TRUST = NormalDist().cdf(_PRIOR_Z)
"""Trust before the first audits, .69. Above it the steps grow."""
_LARGEST_PULL = 0.1
"""Pull towards the source when the audits clearly favour the source model."""


@dataclass(slots=True)
class SourceComparison:
    """Evidence of recent paired audits for the learned model, against the source model."""

    scores: PairedScores = field(default_factory=PairedScores)

    def add(self, answers: Iterable[Answer]) -> None:
        """Add the answers of a window. Older ones fade, so that trust returns to its prior."""
        self.scores.fade(_MEMORY_OF_WINDOWS)
        self.scores.add(answers)

    @property
    def trust(self) -> float:
        """Weight of the learned model in what is served, 0 to 1."""
        scores = self.scores
        z = scores.mean / scores.standard_error if scores.n else 0.0
        return NormalDist().cdf(z + _PRIOR_Z)

    def step_factor(self, growth: float) -> float:
        """Return the factor on the learning rate: 1 at the prior trust, `growth` at full trust."""
        trust = self.trust
        if trust <= _PRIOR_TRUST:
            return trust / _PRIOR_TRUST
        return 1 + (growth - 1) * (trust - _PRIOR_TRUST) / (1 - _PRIOR_TRUST)

    @property
    def extra_pull(self) -> float:
        """Pull towards the source weights if the source model is probably better."""
        return _LARGEST_PULL * max(0.0, 1 - 2 * self.trust)


_SURE = 0.9
"""Confidence of the samples that a view must keep."""
_MIN_KEPT = 0.97
"""Share of them whose label it must keep."""
_MIN_SURE = 16.0
"""Number of them that must have been seen."""
_MEMORY_OF_VIEWS = 0.95
"""Factor on the counts with each window."""


@dataclass(slots=True)
class ViewCheck:
    """Check that mirrored and shifted images mean the same to the model.

    A mirrored digit is another sign; a mirrored cat is a cat. The labels of confident samples tell.
    """

    n_sure: float = 0.0
    n_kept_by_mirror: float = 0.0
    n_kept_by_shift: float = 0.0

    def add(self, wrapped: WrappedModel, inputs: Tensor, *, statistics: Statistics) -> None:
        """Count the confident samples whose label stays the same."""
        if inputs.dim() != 4:
            return
        with torch.no_grad():
            confidence, labels = softmax(wrapped(inputs, statistics=statistics)).max(-1)
            is_sure = confidence > _SURE
            counts = [is_sure.sum()]
            for view in (inputs.flip(-1), shift_images(inputs, 1, 0)):
                kept = wrapped(view, statistics=statistics).argmax(-1) == labels
                counts.append((kept & is_sure).sum())
        n_sure, n_mirror, n_shift = torch.stack(counts).tolist()
        self.n_sure = _MEMORY_OF_VIEWS * self.n_sure + n_sure
        self.n_kept_by_mirror = _MEMORY_OF_VIEWS * self.n_kept_by_mirror + n_mirror
        self.n_kept_by_shift = _MEMORY_OF_VIEWS * self.n_kept_by_shift + n_shift

    def make_views(self, inputs: Tensor, n: int) -> list[Tensor]:
        """Return the image itself and up to n - 1 views that keep labels."""
        is_known = self.n_sure >= _MIN_SURE
        can_mirror = is_known and self.n_kept_by_mirror >= _MIN_KEPT * self.n_sure
        can_shift = is_known and self.n_kept_by_shift >= _MIN_KEPT * self.n_sure
        bases = [inputs, inputs.flip(-1)] if can_mirror and n > 1 else [inputs]
        if not can_shift:
            return bases
        return [shift_images(bases[i % len(bases)], *_SHIFTS[i]) for i in range(n)]


_SHIFTS = ((0, 0), (1, 0), (0, 1), (-1, -1))
"""Shifts of the views in pixels, right and down."""


def shift_images(images: Tensor, right: int, down: int) -> Tensor:
    """Shift images by up to one pixel. Edge pixels are repeated."""
    if not right and not down:
        return images
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    height, width = images.shape[-2:]
    return padded[..., 1 - down : 1 - down + height, 1 - right : 1 - right + width]
