"""Measurements of the self-tuning method: what answers say about the model and the stream.

Each is a small estimator with counts that fade, so that it follows a stream that changes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.nn import Statistics, WrappedModel
from bitta.types import Answer, softmax

EDGES = (0.05, 0.15, 0.3, 0.5, 0.7)
"""Edges of the bins of uncertainty, 1 - π(label)."""
_PRIOR_ACCURACY = (0.9, 0.75, 0.65, 0.55, 0.45, 0.35)
"""Share of labels that are right in each bin, before the first answers."""
N_BINS = len(_PRIOR_ACCURACY)
_PRIOR_ANSWERS = 2.0
"""Number of answers that the prior counts for."""
_USELESS_ACCURACY = 0.6
"""Labels that are right less often than this are not learned from."""
_MEMORY_OF_SAMPLES = 0.8
"""Factor on the numbers of samples in the bins with each window."""
_MEMORY_OF_ANSWERS = 0.98
"""Factor on the counts of a bin with each new answer in it."""
MIN_ODDS, MAX_ODDS = 0.03, 3.0
"""Bounds of the odds of an error."""


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
    n_samples: list[float] = field(default_factory=lambda: [1.0] * len(_PRIOR_ACCURACY))
    """Number of recent samples in each bin."""

    def add_window(self, counts: Sequence[float]) -> None:
        """Count the samples of a window. Older ones fade."""
        self.n_samples = [
            _MEMORY_OF_SAMPLES * old + new for old, new in zip(self.n_samples, counts, strict=True)
        ]

    @property
    def error_rate(self) -> float:
        """Estimated share of labels that are wrong."""
        wrong = (
            n * (1 - right / answers)
            for n, right, answers in zip(self.n_samples, self.n_right, self.n_answers, strict=True)
        )
        return sum(wrong) / sum(self.n_samples)

    @property
    def error_odds(self) -> float:
        """Odds that a label is wrong, within bounds."""
        rate = self.error_rate
        return min(MAX_ODDS, max(MIN_ODDS, rate / max(1e-9, 1 - rate)))

    def add(self, answers: Iterable[Answer]) -> None:
        """Count answers in their bins. Older ones fade."""
        for answer in answers:
            if answer.query.reason == "paired_audit":
                continue
            place = bisect_left(EDGES, answer.query.uncertainty)
            self.n_right[place] = _MEMORY_OF_ANSWERS * self.n_right[place] + answer.correct
            self.n_answers[place] = _MEMORY_OF_ANSWERS * self.n_answers[place] + 1

    def row_weights(self) -> list[float]:
        """Return the weight of an unlabelled sample in each bin, 0 to 1."""
        shares = (right / n for right, n in zip(self.n_right, self.n_answers, strict=True))
        useful = 1 - _USELESS_ACCURACY
        return [max(0.0, (share - _USELESS_ACCURACY) / useful) for share in shares]


_MEMORY_OF_WINDOWS = 0.98
"""Factor on all counts with each window."""
_PRIOR_RIGHT = {"learned": 1.5, "source": 0.9}
_PRIOR_AUDITS = 3.0
"""Prior of the audits of each model: of three answers, 1.5 and .9 find the label right."""
_ACCEPTED_LOSS = 0.02
"""Loss of accuracy that is accepted while learning, as a share of the errors of the model."""
_LARGEST_PULL = 0.1
"""Pull towards the source when the audits clearly favour the source model."""
_MIN_SHARE_DIFFERENT = 0.02
"""Smallest share of samples on which the models differ, for the accepted loss."""
_CLEAR_SCORE = 3.0
"""Standard score at which the audits clearly favour the learned model."""


@dataclass(slots=True)
class SourceComparison:
    """Evidence of recent paired audits: is the learned model better than the source model?"""

    n_right: dict[str, float] = field(default_factory=lambda: dict(_PRIOR_RIGHT))
    """Number of labels that were right, by the model whose label was shown."""
    n_audits: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(_PRIOR_RIGHT, _PRIOR_AUDITS)
    )
    """Number of paired audits, by the model whose label was shown."""
    n_different: float = 0.0
    n_samples: float = 0.0
    """Number of samples on which the models differ, and of all samples, in windows with an answered
    paired audit. Other windows do not tell how many samples differ."""
    error_rate: float = 0.5
    """Estimated share of labels that are wrong."""

    def add(self, answers: Sequence[Answer], *, n_samples: int) -> None:
        """Add the answers of a window. Older ones fade, and with them the evidence."""
        prior = _PRIOR_RIGHT
        for model in prior:
            self.n_right[model] = prior[model] + _MEMORY_OF_WINDOWS * (
                self.n_right[model] - prior[model]
            )
            self.n_audits[model] = _PRIOR_AUDITS + _MEMORY_OF_WINDOWS * (
                self.n_audits[model] - _PRIOR_AUDITS
            )
        self.n_different *= _MEMORY_OF_WINDOWS
        self.n_samples *= _MEMORY_OF_WINDOWS
        audits = [answer for answer in answers if answer.query.reason == "paired_audit"]
        if audits:
            self.n_samples += n_samples
        for answer in audits:
            query = answer.query
            model = "learned" if query.shown_label == query.served_label else "source"
            self.n_right[model] += answer.correct
            self.n_audits[model] += 1
            self.n_different += query.n_represented

    def standard_score(self, accepted: float = 0.0) -> float:
        """Return the difference in accuracy where the models differ, in standard errors.

        `accepted` is a loss that counts as no difference.
        """
        shares = {model: self.n_right[model] / self.n_audits[model] for model in self.n_right}
        variance = sum(
            share * (1 - share) / (self.n_audits[model] + 1) for model, share in shares.items()
        )
        return (shares["learned"] - shares["source"] + accepted) / sqrt(variance)

    @property
    def trust(self) -> float:
        """Weight of the learned model in what is served, 0 to 1.

        It is the probability that learning costs no more accuracy than is accepted. If many labels
        are wrong, more is accepted, because there is more to gain.
        """
        share = min(1.0, self.n_different / self.n_samples) if self.n_samples else 1.0
        accepted = _ACCEPTED_LOSS * self.error_rate / max(_MIN_SHARE_DIFFERENT, share)
        return NormalDist().cdf(self.standard_score(accepted))

    def evidence_factor(self, growth: float, *, at_least: float = 0.0) -> float:
        """Return the factor on the learning rate that follows from the evidence of a benefit.

        It is 1 / `growth` or `at_least` without evidence, `growth` at three standard errors, and
        smaller if learning probably does harm.
        """
        score = self.standard_score()
        evidence = min(1.0, max(0.0, score / _CLEAR_SCORE))
        factor = max(float(growth ** (2 * evidence - 1)), at_least)
        return factor * min(1.0, 2 * NormalDist().cdf(score))

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


_MEMORY_OF_LABELS = 0.95
"""Factor on the counts of labels with each window."""
_RUN_SHARE = 0.5
"""Share of neighbours with equal labels, beyond chance, from which on labels arrive in runs."""
_ONE_LABEL = 0.95
"""Chance of equal labels above which runs cannot be told from a model with one answer."""


@dataclass(slots=True)
class LabelRuns:
    """Detector of runs: do neighbours in the stream have equal labels more often than by chance?"""

    n_pairs: float = 0.0
    n_equal: float = 0.0
    """Number of neighbours, and of those with equal labels."""
    counts: dict[str, float] = field(default_factory=dict)
    """Number of samples by label."""

    def add(self, labels: Sequence[int]) -> None:
        """Count the labels of a window, in the order of the stream. Older ones fade."""
        equal = sum(one == other for one, other in pairwise(labels))
        self.n_pairs = _MEMORY_OF_LABELS * self.n_pairs + max(0, len(labels) - 1)
        self.n_equal = _MEMORY_OF_LABELS * self.n_equal + equal
        self.counts = {label: _MEMORY_OF_LABELS * n for label, n in self.counts.items()}
        for label in map(str, labels):
            self.counts[label] = self.counts.get(label, 0.0) + 1

    @property
    def found(self) -> bool:
        """True if labels arrive in runs. A model that always serves one label has no runs."""
        n = sum(self.counts.values())
        if not n or not self.n_pairs:
            return False
        by_chance = sum((count / n) ** 2 for count in self.counts.values())
        if by_chance > _ONE_LABEL:
            return False
        return (self.n_equal / self.n_pairs - by_chance) / (1 - by_chance) > _RUN_SHARE


_SHIFTS = ((0, 0), (1, 0), (0, 1), (-1, -1))
"""Shifts of the views in pixels, right and down."""


def shift_images(images: Tensor, right: int, down: int) -> Tensor:
    """Shift images by up to one pixel. Edge pixels are repeated."""
    if not right and not down:
        return images
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    height, width = images.shape[-2:]
    return padded[..., 1 - down : 1 - down + height, 1 - right : 1 - right + width]
