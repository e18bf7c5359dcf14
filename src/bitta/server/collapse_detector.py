"""Detection of collapse: has learning made the model worse?

The detector checks rules on every window of served images. A broken rule makes the model "suspect".
The model counts as "collapsed" when the same rule is broken in `patience` windows in a row. After
`patience` windows without a broken rule, it is "ok" again. The first `reference_windows` windows
are the reference. The rules:

accuracy    The upper bound of the accuracy on audits is more than `margin` below the best lower
            bound so far. Harder inputs can cause this too, and then a rollback does not help. The
            detector assumes harder inputs if audits show that the source model makes more errors
            than at the time of the best bound, or if a rollback for this rule did not help. Then
            the model is only suspect, and accuracy is measured again from later audits.
entropy     The entropy of the served classes is below `entropy_share` of the reference, although
            the inputs are varied: their variety is at least `variety_share` of the reference, or
            unknown. If enough audits show that accuracy is not below its limit, the inputs belong
            to few classes, and the model is only suspect.
agreement   The policy (the probabilities averaged over stochastic passes) agrees with the served
            class in less than `min_agreement` of the samples, and the reference was above that.
confidence  The mean confidence is below `confidence_share` of the reference. The model is only
            suspect.
distance    The weights are farther than `max_distance` from the source weights. One window is
            enough.
finite      A measured number is not finite. One window is enough.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, log, sqrt
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor

from bitta.config_base import Config, require
from bitta.server.monitoring import AuditSummary

CollapseState: TypeAlias = Literal["ok", "suspect", "collapsed"]


@dataclass(frozen=True, kw_only=True)
class GuardSettings(Config):
    """Settings of the collapse detector.

    A window is a group of served images that are judged together. The server's setting `window` is
    its size.
    """

    patience: int = 3
    """Number of windows in a row with the same rule broken before the model counts as collapsed."""
    reference_windows: int = 8
    """Number of windows at the start. Their means are the reference for all later windows."""
    entropy_share: float = 0.35
    """Share of the reference below which the entropy of the served classes is too low."""
    min_entropy: float = 0.5
    """Reference entropy in nats below which the entropy rule is off (two classes at 80:20 have
    0.50). If one class dominates the inputs, windows with only that class are normal."""
    variety_share: float = 0.5
    """Inputs count as varied if their variety is at least this share of the reference."""
    min_agreement: float = 0.3
    """Smallest allowed agreement of the policy with the served class."""
    confidence_share: float = 0.5
    """Share of the reference below which the mean confidence makes the model suspect."""
    margin: float = 0.10
    """Allowed drop of accuracy below its best lower bound so far; 0.10 is 10 points."""
    min_audits: int = 20
    """Number of audits needed before accuracy is judged."""
    audit_window: int = 100
    """Number of newest audits that are used."""
    audit_seconds: float = 86_400.0
    """Largest age in seconds of an audit that is used."""
    max_distance: float = 1.0
    """Largest allowed distance of the weights from the source, ‖w - w₀‖ / ‖w₀‖. Choose it for your
    model. On the coloured digits, which need large changes, the distance is 0.10 after 90
    windows."""

    def __post_init__(self) -> None:
        for name in ("patience", "reference_windows", "min_audits", "audit_window"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("entropy_share", "variety_share", "confidence_share", "margin",
                     "min_agreement"):  # fmt: skip
            require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "0 to 1")
        require(self.min_entropy >= 0, "min_entropy", self.min_entropy, "0 nats or more")
        for name in ("audit_seconds", "max_distance"):
            require(getattr(self, name) > 0, name, getattr(self, name), "more than 0")
        require(
            self.min_audits <= self.audit_window,
            "min_audits",
            self.min_audits,
            f"at most audit_window, which is {self.audit_window}",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowSummary:
    """Measurements of one window of served images."""

    counts: Sequence[int]
    """Number of samples served with each class."""
    confidence: float
    """Mean confidence."""
    distance: float
    """Distance of the weights from the source, ‖w - w₀‖ / ‖w₀‖."""
    agreement: float | None = None
    """Share of samples for which the policy predicts the served class."""
    variety: float | None = None
    """Variety of the inputs, as computed by `input_variety`."""
    audits: AuditSummary = AuditSummary()  # noqa: RUF009 (frozen)
    """Recent audits."""


@dataclass(frozen=True, slots=True)
class CollapseVerdict:
    """State of the model after a window, and the reasons."""

    state: CollapseState
    reasons: tuple[str, ...] = ()
    n_windows: int = 0
    """Number of windows since the model was last ok. A rollback needs an older snapshot."""


@dataclass(slots=True)
class RunningMean:
    """Mean of the values so far. None is ignored."""

    n: int = 0
    value: float | None = None

    def add(self, value: float | None) -> None:
        """Add a value."""
        if value is None:
            return
        self.n += 1
        before = self.value or 0.0
        self.value = before + (value - before) / self.n


@dataclass(slots=True)
class BestAccuracy:
    """Best lower bound of accuracy, and the source model's error rate at that time."""

    low: float | None = None
    max_source_errors: float = 1.0
    """Upper bound of the source model's error rate."""

    def update(self, audits: AuditSummary) -> None:
        """Keep the values of these audits if their lower bound is better."""
        if self.low is None or audits.interval.low > self.low:
            self.low = audits.interval.low
            self.max_source_errors = audits.source_error_interval.high


_MEANS = ("entropy", "agreement", "confidence", "variety")


class ReferenceStatistics:
    """Means over the first `size` windows, which later windows are compared with."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.n_windows = 0
        self.entropy, self.agreement = RunningMean(), RunningMean()
        self.confidence, self.variety = RunningMean(), RunningMean()
        self.accuracy = BestAccuracy()

    @property
    def is_complete(self) -> bool:
        """True after `size` windows."""
        return self.n_windows >= self.size

    def add(self, window: WindowSummary) -> None:
        """Add a window to the means."""
        self.n_windows += 1
        self.entropy.add(entropy(window.counts))
        self.agreement.add(window.agreement)
        self.confidence.add(window.confidence)
        self.variety.add(window.variety)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers."""
        means = {name: asdict(getattr(self, name)) for name in _MEANS}
        return {"n_windows": self.n_windows, **means, "accuracy": asdict(self.accuracy)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], size: int) -> Self:
        """Build the statistics from a saved state."""
        reference = cls(size)
        reference.n_windows = state["n_windows"]
        for name in _MEANS:
            setattr(reference, name, RunningMean(**state[name]))
        reference.accuracy = BestAccuracy(**state["accuracy"])
        return reference


@dataclass(frozen=True, slots=True)
class _BrokenRule:
    """A rule that a window breaks."""

    rule: str
    reason: str
    can_collapse: bool = True
    """True if the model counts as collapsed when the rule stays broken, not only as suspect."""
    needs_patience: bool = True
    """True if the rule must be broken in `patience` windows in a row; False if one is enough."""


class CollapseDetector:
    """Detector of collapse. It compares each window with the reference.

    >>> detector = CollapseDetector(GuardSettings(reference_windows=1, patience=2))
    >>> varied, single = [16, 16, 16, 16], [64, 0, 0, 0]
    >>> for counts in (varied, single, single):
    ...     verdict = detector.observe(WindowSummary(counts=counts, confidence=0.9, distance=0.1))
    ...     print(verdict.state, *verdict.reasons)
    ok
    suspect few classes are served: entropy 0.00 nats, 0 % of the reference 1.39 (limit 35 %)
    collapsed few classes are served: entropy 0.00 nats, 0 % of the reference 1.39 (limit 35 %)
    """

    def __init__(self, settings: GuardSettings | None = None) -> None:
        self.settings = settings or GuardSettings()
        self.reference = ReferenceStatistics(self.settings.reference_windows)
        self._streaks: dict[str, int] = {}
        """Number of windows in a row in which each rule that can lead to collapse was broken."""
        self._n_unbroken_windows = self.settings.patience
        """Number of windows in a row without a broken rule."""
        self._n_windows_not_ok = 0
        """Number of windows in a row in which the model was suspect or collapsed."""
        self._n_stale_audits = 0
        """Number of audits of the lineage from before the inputs changed."""
        self._collapsed_by_accuracy = False
        """True if the rule on accuracy caused the last collapse."""
        self._rolled_back_for_accuracy = False
        """True after a rollback to learned weights that the rule on accuracy caused. Stays True
        until audits show the effect."""

    def observe(self, window: WindowSummary) -> CollapseVerdict:
        """Judge the next window."""
        broken = self._check_finite(window)
        if not broken:
            checks = (
                self._check_distance(window),
                self._check_accuracy(window.audits),
                self._check_entropy(window),
                self._check_agreement(window),
                self._check_confidence(window),
            )
            broken = [rule for rule in checks if rule]
            self._update_reference(window, broken)
        return self._make_verdict(broken)

    def reset_after_rollback(self, *, to_source: bool) -> None:
        """Restart the counts after a rollback. Later audits belong to the new lineage.

        After a rollback to the source weights a new reference is measured on the current inputs.
        After a rollback to learned weights the reference stays. If these weights have collapsed
        too, the detector notices it, and the next rollback uses an older snapshot.
        """
        self._n_stale_audits = 0
        self._streaks = {}
        self._n_unbroken_windows = self.settings.patience
        self._n_windows_not_ok = 0
        self._rolled_back_for_accuracy = self._collapsed_by_accuracy and not to_source
        self._collapsed_by_accuracy = False
        if to_source:
            self.reference = ReferenceStatistics(self.settings.reference_windows)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers and strings."""
        return {
            "reference": self.reference.state_dict(),
            "streaks": dict(self._streaks),
            "n_unbroken_windows": self._n_unbroken_windows,
            "n_windows_not_ok": self._n_windows_not_ok,
            "n_stale_audits": self._n_stale_audits,
            "collapsed_by_accuracy": self._collapsed_by_accuracy,
            "rolled_back_for_accuracy": self._rolled_back_for_accuracy,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        size = self.settings.reference_windows
        self.reference = ReferenceStatistics.from_state(state["reference"], size)
        self._streaks = dict(state["streaks"])
        self._n_unbroken_windows = state["n_unbroken_windows"]
        self._n_windows_not_ok = state["n_windows_not_ok"]
        self._n_stale_audits = state["n_stale_audits"]
        self._collapsed_by_accuracy = state["collapsed_by_accuracy"]
        self._rolled_back_for_accuracy = state["rolled_back_for_accuracy"]

    def _make_verdict(self, broken: Sequence[_BrokenRule]) -> CollapseVerdict:
        patience = self.settings.patience
        serious = [rule for rule in broken if rule.can_collapse]
        self._streaks = {rule.rule: self._streaks.get(rule.rule, 0) + 1 for rule in serious}
        self._n_unbroken_windows = 0 if broken else self._n_unbroken_windows + 1
        is_suspect = self._n_unbroken_windows < patience
        self._n_windows_not_ok = self._n_windows_not_ok + 1 if is_suspect else 0
        reasons = tuple(rule.reason for rule in broken)
        causes = [
            rule.rule
            for rule in serious
            if not rule.needs_patience or self._streaks[rule.rule] >= patience
        ]
        if causes:
            self._collapsed_by_accuracy = "accuracy" in causes
            return CollapseVerdict("collapsed", reasons, self._n_windows_not_ok)
        if not reasons and is_suspect:
            reasons = (f"no rule broken for {self._n_unbroken_windows} of {patience} windows",)
        state: CollapseState = "suspect" if is_suspect else "ok"
        return CollapseVerdict(state, reasons, self._n_windows_not_ok)

    def _update_reference(self, window: WindowSummary, broken: Sequence[_BrokenRule]) -> None:
        if not self.reference.is_complete:
            self.reference.add(window)
        if any(rule.rule == "inputs" for rule in broken):
            self.reference.accuracy = BestAccuracy()
            # After a rollback for accuracy, all audits of the lineage are of the changed inputs.
            if not self._rolled_back_for_accuracy:
                self._n_stale_audits = window.audits.n_in_lineage or 0
            self._rolled_back_for_accuracy = False
        elif self._has_enough_audits(window.audits):
            self.reference.accuracy.update(window.audits)
            self._rolled_back_for_accuracy = False

    def _check_finite(self, window: WindowSummary) -> list[_BrokenRule]:
        """Check the two numbers that become NaN when a weight does."""
        return [
            _BrokenRule(name, f"{name} is {value}, not a finite number", needs_patience=False)
            for name, value in (("confidence", window.confidence), ("distance", window.distance))
            if not isfinite(value)
        ]

    def _check_distance(self, window: WindowSummary) -> _BrokenRule | None:
        limit = self.settings.max_distance
        if window.distance <= limit:
            return None
        reason = f"distance from the source weights is {window.distance:.3f} (limit {limit:g})"
        return _BrokenRule("distance", reason, needs_patience=False)

    def _check_accuracy(self, audits: AuditSummary) -> _BrokenRule | None:
        limit = self._accuracy_limit(audits)
        if limit is None or audits.interval.high >= limit:
            return None
        reason = (
            f"accuracy on {audits.n} audits is {_percent(audits.accuracy or 0.0)} "
            f"({_percent(audits.interval.low)} to {_percent(audits.interval.high)}), "
            f"below {_percent(limit)}"
        )
        if self._rolled_back_for_accuracy:
            reason += "; a rollback has not helped: the inputs have changed"
            return _BrokenRule("inputs", reason, can_collapse=False)
        now = audits.source_error_interval.low
        before = self.reference.accuracy.max_source_errors
        if audits.n_compared >= self.settings.min_audits and now > before:
            reason += (
                f"; the source model is wrong on at least {_percent(now)}, before on at most "
                f"{_percent(before)}: the inputs have changed"
            )
            return _BrokenRule("inputs", reason, can_collapse=False)
        return _BrokenRule("accuracy", reason)

    def _accuracy_limit(self, audits: AuditSummary) -> float | None:
        """Return the smallest allowed upper bound of accuracy; None without enough audits."""
        if self.reference.accuracy.low is None or not self._has_enough_audits(audits):
            return None
        return self.reference.accuracy.low - self.settings.margin

    def _has_enough_audits(self, audits: AuditSummary) -> bool:
        """Return True if there are enough audits and all are from after the inputs changed."""
        if audits.n_in_lineage is None:
            return self.settings.min_audits <= audits.n
        return self.settings.min_audits <= audits.n <= audits.n_in_lineage - self._n_stale_audits

    def _check_entropy(self, window: WindowSummary) -> _BrokenRule | None:
        usual = self.reference.entropy.value
        if not self.reference.is_complete or usual is None or usual < self.settings.min_entropy:
            return None
        now, share = entropy(window.counts), self.settings.entropy_share
        if now >= share * usual or not self._has_varied_inputs(window):
            return None
        reason = (
            f"few classes are served: entropy {now:.2f} nats, {_percent(now / usual)} of the "
            f"reference {usual:.2f} (limit {_percent(share)})"
        )
        limit = self._accuracy_limit(window.audits)
        if limit is not None and window.audits.interval.low >= limit:
            reason += f"; but audits show an accuracy of {_percent(window.audits.interval.low)} "
            return _BrokenRule("entropy", reason + "or more", can_collapse=False)
        return _BrokenRule("entropy", reason)

    def _has_varied_inputs(self, window: WindowSummary) -> bool:
        usual = self.reference.variety.value
        if window.variety is None or usual is None:
            return True
        return window.variety >= self.settings.variety_share * usual

    def _check_agreement(self, window: WindowSummary) -> _BrokenRule | None:
        usual, least = self.reference.agreement.value, self.settings.min_agreement
        if not self.reference.is_complete or usual is None or window.agreement is None:
            return None
        if window.agreement >= least or usual < least:
            return None
        return _BrokenRule(
            "agreement",
            f"the policy (mean of repeated predictions) agrees with {_percent(window.agreement)} "
            f"of the served classes, in the reference with {_percent(usual)} "
            f"(limit {_percent(least)})",
        )

    def _check_confidence(self, window: WindowSummary) -> _BrokenRule | None:
        usual, share = self.reference.confidence.value, self.settings.confidence_share
        if not self.reference.is_complete or usual is None or window.confidence >= share * usual:
            return None
        reason = (
            f"mean confidence is {_percent(window.confidence)}, in the reference {_percent(usual)}"
        )
        return _BrokenRule("confidence", reason, can_collapse=False)


def entropy(counts: Sequence[int]) -> float:
    """Return the entropy of a histogram in nats; 0 for an empty one."""
    n = sum(counts)
    return sum(count / n * log(n / count) for count in counts if count)


def input_variety(inputs: Tensor) -> float:
    """Return the standard deviation over the samples, averaged over all pixels."""
    return float(inputs.float().std(0, correction=0).mean())


@torch.no_grad()
def weight_distance(weights: Iterable[Tensor], source: Iterable[Tensor]) -> float:
    """Return ‖w - w₀‖ / ‖w₀‖ over all tensors together."""
    squared_distance = squared_norm = 0.0
    for now, before in zip(weights, source, strict=True):
        squared_distance += float((now - before).double().square().sum())
        squared_norm += float(before.double().square().sum())
    return sqrt(squared_distance) / max(sqrt(squared_norm), 1e-12)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
