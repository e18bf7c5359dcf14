"""Benefit of learning: the difference in accuracy to the source model, measured by paired audits.

A paired audit is a question about a sample drawn at random from those of a window whose served
label differs from the source model's label. It shows one of the two labels, each with probability
1/2. Its score is 2 if the served label is shown and correct, -2 if the source model's label is
shown and correct, and 0 otherwise. The mean score is then the difference in accuracy on the samples
that differ; elsewhere the difference is 0.

The estimate assumes that a missing answer does not depend on which label is right.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import log, sqrt

from bitta.errors import BenefitWarning
from bitta.types import Answer, State

_SCORE_VARIANCE = 2.0
"""Largest variance of a score: both labels are never right at once, so E[score²] is at most 2."""
_N_PRIOR = 2
"""Number of imaginary audits of variance `_SCORE_VARIANCE` that are added. They keep the estimate
of the variance from being too small."""
_NORMAL_QUANTILE = 1.96
"""Half-width of a 95 % interval in standard deviations."""
_MEMORY_OF_WINDOWS = 0.98
"""Factor on the recent scores with each window."""
_MIN_AUDITS = 10
"""Number of recent audits from which on their confidence sequence is used."""
_ERROR_RATE = 0.05
_TUNED_FOR = 30
"""Number of audits for which the confidence sequence is tuned. For others it is wider."""


@dataclass(frozen=True, slots=True)
class Benefit:
    """Accuracy of what was served minus accuracy of the source model, with a 95 % interval."""

    estimate: float
    low: float
    high: float
    n_audits: int
    """Number of answered paired audits."""
    share_different: float
    """Share of the samples whose served label differs from the source model's label."""
    n_samples: int
    """Number of samples that were compared with the source model."""

    def __str__(self) -> str:
        if not self.n_audits and self.share_different:
            return "not measured yet"
        interval = f"{100 * self.low:+.1f} to {100 * self.high:+.1f}"
        audits = "paired audit" if self.n_audits == 1 else "paired audits"
        return f"{100 * self.estimate:+.1f} points ({interval}; {self.n_audits} {audits})"


@dataclass(slots=True)
class PairedScores:
    """Weighted sums of the scores of paired audits. The weight of an audit is the
    number of samples that it represents."""

    n: float = 0
    """Number of audits. It is not whole if older audits have faded."""
    sum_weights: float = 0.0
    sum_squared_weights: float = 0.0
    sum_weighted: float = 0.0
    """Sum of weight x score."""
    sum_squares: float = 0.0
    """Sum of (weight x score)²."""
    sum_cross: float = 0.0
    """Sum of weight² x score."""

    def add(self, answers: Iterable[Answer]) -> None:
        """Add the answers to paired audits. Other answers are ignored."""
        for answer in answers:
            query = answer.query
            if query.reason != "paired_audit":
                continue
            sign = 2.0 if query.shown_label == query.served_label else -2.0
            weight, score = query.n_represented, sign if answer.correct else 0.0
            self.n += 1
            self.sum_weights += weight
            self.sum_squared_weights += weight**2
            self.sum_weighted += weight * score
            self.sum_squares += (weight * score) ** 2
            self.sum_cross += weight**2 * score

    def fade(self, factor: float) -> None:
        """Multiply every sum by `factor`, so that earlier audits count less."""
        self.n *= factor
        self.sum_weights *= factor
        self.sum_squared_weights *= factor
        self.sum_weighted *= factor
        self.sum_squares *= factor
        self.sum_cross *= factor

    @property
    def mean(self) -> float:
        """Weighted mean score: the difference in accuracy on the samples that differ."""
        return self.sum_weighted / self.sum_weights if self.n else 0.0

    @property
    def standard_error(self) -> float:
        """Standard error of the mean, not too small after few audits."""
        if not self.n:
            return sqrt(_SCORE_VARIANCE)
        mean = self.mean
        deviations = self.sum_squares - 2 * mean * self.sum_cross
        variance = deviations / self.sum_squared_weights + mean**2
        variance = (self.n * variance + _N_PRIOR * _SCORE_VARIANCE) / (self.n + _N_PRIOR)
        return sqrt(variance * self.sum_squared_weights) / self.sum_weights

    def sequence_radius(self) -> float:
        """Return the half-width of a confidence sequence: an interval that holds at every time.

        Robbins' normal mixture, with an asymptotic guarantee (Waudby-Smith et al., 2024). Unlike an
        interval for one fixed time, it may be looked at after every audit.
        """
        if not self.n:
            return 2.0
        scaled = self.n * log(1 / _ERROR_RATE) / _TUNED_FOR + 1
        factor = 2 * scaled / (scaled - 1) * log(sqrt(scaled) / _ERROR_RATE)
        return sqrt(factor) * self.standard_error


class BenefitEstimator:
    """Estimate the benefit over all windows of a session."""

    def __init__(self) -> None:
        self._scores = PairedScores()
        self._recent_scores = PairedScores()
        self._n_samples = 0
        self._n_different = 0
        self._has_warned = False

    def add_window(self, *, n_samples: int, n_different: int) -> None:
        """Count the samples of a window, and those whose label differs from the source model's."""
        self._n_samples += n_samples
        self._n_different += n_different
        self._recent_scores.fade(_MEMORY_OF_WINDOWS)

    def add_answers(self, answers: Sequence[Answer]) -> None:
        """Add the answers to paired audits, of any window. Warn once if learning does harm."""
        self._scores.add(answers)
        self._recent_scores.add(answers)
        if self.is_harmful and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"learning lowers the accuracy: difference to the source model {self.estimate()}. "
                "Check that the answers are right, use a smaller lr, or call reset().",
                BenefitWarning,
                stacklevel=5,
            )

    @property
    def is_harmful(self) -> bool:
        """True if the confidence sequence of the recent audits lies below 0.

        It may be looked at after every window: only some 5 % of the sessions in which learning does
        no harm ever get there. The guarantee is approximate, because older audits fade.
        """
        recent = self._recent_scores
        return recent.n >= _MIN_AUDITS and recent.mean + recent.sequence_radius() < 0

    def estimate(self) -> Benefit:
        """Return the estimate over all windows so far."""
        share = self._n_different / max(1, self._n_samples)
        mean = min(1.0, max(-1.0, self._scores.mean))
        radius = _NORMAL_QUANTILE * self._scores.standard_error
        # On the samples that differ, the difference in accuracy is -1 to 1.
        low, high = max(-1.0, mean - radius), min(1.0, mean + radius)
        return Benefit(
            share * mean, share * low, share * high, round(self._scores.n), share, self._n_samples
        )

    def state_dict(self) -> State:
        """Return all sums."""
        return {
            "scores": asdict(self._scores),
            "recent_scores": asdict(self._recent_scores),
            "has_warned": self._has_warned,
            "n_samples": self._n_samples,
            "n_different": self._n_different,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from saved sums."""
        self._scores = PairedScores(**state["scores"])
        self._recent_scores = PairedScores(**state["recent_scores"])
        self._has_warned = state["has_warned"]
        self._n_samples = state["n_samples"]
        self._n_different = state["n_different"]
