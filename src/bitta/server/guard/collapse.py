"""Has learning made the model worse? One look per window, a verdict with its reasons.

A rule must be broken for `patience` windows in a row before it counts, and as many windows must
pass in order before a suspicion is dropped. The rules:

accuracy    the upper bound of accuracy on audits lies more than `margin` under the best lower
            bound that was seen. If at the same time the source weights are known to err more than
            they did then, it is the inputs that have changed: going back would not help. The same
            is concluded where going back for this reason has not helped. Then the model is only
            suspect, and accuracy is measured anew from audits taken after that.
entropy     the entropy of served classes is below `entropy_share` of the reference, though the
            inputs are varied: their variety is at least `variety_share` of the reference (or
            unknown). While enough audits say that accuracy is not below its floor, the classes
            really are few, and the model is only suspect.
agreement   the policy agrees with what is served in less than `least_agreement` of the samples,
            and agreed in more of them in the reference.
distance    the weights are farther than `max_distance` from the source (at once).
finite      a number is not finite (at once).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Any, Literal, TypeAlias

from bitta.server.guard.audits import Audited
from bitta.server.guard.reference import Accuracy, Reference
from bitta.server.guard.settings import GuardConfig

Standing: TypeAlias = Literal["ok", "suspect", "collapsed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What is known of one window of served images."""

    counts: Sequence[int]
    """How often each class was served."""
    confidence: float
    """Mean over the window."""
    distance: float
    """‖w - w₀‖ / ‖w₀‖ over the weights that learn."""
    agreement: float | None = None
    """Share of samples in which the policy gives the class that was served."""
    variety: float | None = None
    """How different the inputs are: the standard deviation of each pixel over the window, averaged
    over pixels. It does not depend on the model."""
    audits: Audited = Audited()  # noqa: RUF009 (frozen)
    """What recent ones say."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state, why, and for how many windows something has been wrong without a break."""

    state: Standing
    reasons: tuple[str, ...] = ()
    windows: int = 0
    """A snapshot to go back to should be older than this."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """A rule that is broken; `grave` if it leads to collapse once it has been for long enough."""

    rule: str
    reason: str
    grave: bool = True
    at_once: bool = False


class CollapseDetector:
    """Compares each window with what was normal.

    >>> detector = CollapseDetector(GuardConfig(reference_windows=1, patience=2))
    >>> varied, single = [16, 16, 16, 16], [64, 0, 0, 0]
    >>> for counts in (varied, single, single):
    ...     verdict = detector.observe(Window(counts=counts, confidence=0.9, distance=0.1))
    ...     print(verdict.state, *verdict.reasons)
    ok
    suspect entropy of served classes is 0.00 nats, 0 % of the reference 1.39 (limit 35 %)
    collapsed entropy of served classes is 0.00 nats, 0 % of the reference 1.39 (limit 35 %)
    """

    def __init__(self, config: GuardConfig | None = None) -> None:
        self.config = config or GuardConfig()
        self.reference = Reference(self.config.reference_windows)
        self._streaks: dict[str, int] = {}
        self._calm = self.config.patience
        self._troubled = 0
        self._stale = 0
        """Audits taken before the inputs changed."""
        self._accused = False
        """The last collapse was one of accuracy."""
        self._gone_back = False
        """For accuracy, to learned weights, and it is not yet known whether that helped."""

    def observe(self, window: Window) -> Verdict:
        """Judge the next window."""
        broken = self._not_finite(window)
        if not broken:
            findings = (
                self._distance(window),
                self._accuracy(window.audits),
                self._entropy(window),
                self._agreement(window),
                self._confidence(window),
            )
            broken = [finding for finding in findings if finding]
            self._remember(window, broken)
        return self._verdict(broken)

    def rolled_back(self, *, to_source: bool) -> None:
        """Count again from here; what the source weights do with today's inputs is the new normal.

        After going back to learned weights the reference stays, so that a snapshot that had
        already collapsed is found out and an older one can be taken. Audits are those of the new
        lineage from here on.
        """
        self._stale = 0
        self._streaks = {}
        self._calm = self.config.patience
        self._troubled = 0
        self._gone_back = self._accused and not to_source
        self._accused = False
        if to_source:
            self.reference = Reference(self.config.reference_windows)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings."""
        return {
            "reference": self.reference.state_dict(),
            "streaks": dict(self._streaks),
            "calm": self._calm,
            "troubled": self._troubled,
            "stale": self._stale,
            "accused": self._accused,
            "gone_back": self._gone_back,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self.reference = Reference.of(state["reference"], self.config.reference_windows)
        self._streaks = dict(state["streaks"])
        self._calm = state["calm"]
        self._troubled = state["troubled"]
        self._stale = state["stale"]
        self._accused = state["accused"]
        self._gone_back = state["gone_back"]

    def _verdict(self, broken: Sequence[_Finding]) -> Verdict:
        patience = self.config.patience
        grave = [of for of in broken if of.grave]
        self._streaks = {of.rule: self._streaks.get(of.rule, 0) + 1 for of in grave}
        self._calm = 0 if broken else self._calm + 1
        doubt = self._calm < patience
        self._troubled = self._troubled + 1 if doubt else 0
        reasons = tuple(of.reason for of in broken)
        proven = [of.rule for of in grave if of.at_once or self._streaks[of.rule] >= patience]
        if proven:
            self._accused = "accuracy" in proven
            return Verdict("collapsed", reasons, self._troubled)
        if not reasons and doubt:
            reasons = (f"in order again for {self._calm} of {patience} windows",)
        return Verdict("suspect" if doubt else "ok", reasons, self._troubled)

    def _remember(self, window: Window, broken: Sequence[_Finding]) -> None:
        if not self.reference.complete:
            self.reference.add(
                entropy=entropy(window.counts),
                agreement=window.agreement,
                confidence=window.confidence,
                variety=window.variety,
            )
        if any(of.rule == "inputs" for of in broken):
            self.reference.accuracy = Accuracy()
            if not self._gone_back:  # since then all are of the inputs as they are now
                self._stale = window.audits.total or 0
            self._gone_back = False
        elif self._enough(window.audits):
            self.reference.accuracy.raise_to(window.audits)
            self._gone_back = False

    def _not_finite(self, window: Window) -> list[_Finding]:
        """Weights that hold NaN show in these two."""
        return [
            _Finding(name, f"{name} is {value}, not a finite number", at_once=True)
            for name, value in (("confidence", window.confidence), ("distance", window.distance))
            if not isfinite(value)
        ]

    def _distance(self, window: Window) -> _Finding | None:
        limit = self.config.max_distance
        if window.distance <= limit:
            return None
        reason = f"distance from the source weights is {window.distance:.3f} (limit {limit:g})"
        return _Finding("distance", reason, at_once=True)

    def _accuracy(self, audits: Audited) -> _Finding | None:
        floor = self._floor(audits)
        if floor is None or audits.interval.high >= floor:
            return None
        said = (
            f"accuracy on {audits.n} audits is {_percent(audits.accuracy or 0.0)} "
            f"({_percent(audits.interval.low)} to {_percent(audits.interval.high)}), "
            f"below {_percent(floor)}"
        )
        if self._gone_back:
            why = "; going back has not helped: the inputs have changed"
            return _Finding("inputs", said + why, grave=False)
        known, before = audits.source_errors.low, self.reference.accuracy.source_errors
        if audits.compared >= self.config.min_audits and known > before:
            why = (
                f"; the source weights err on {_percent(known)} or more, it was {_percent(before)} "
                "at most: the inputs have changed"
            )
            return _Finding("inputs", said + why, grave=False)
        return _Finding("accuracy", said)

    def _floor(self, audits: Audited) -> float | None:
        """Under which accuracy's upper bound may not fall; None while too little is known."""
        if self.reference.accuracy.low is None or not self._enough(audits):
            return None
        return self.reference.accuracy.low - self.config.margin

    def _enough(self, audits: Audited) -> bool:
        """Whether there are enough, and none among them from before the inputs changed."""
        fresh = audits.n if audits.total is None else audits.total - self._stale
        return self.config.min_audits <= audits.n <= fresh

    def _entropy(self, window: Window) -> _Finding | None:
        usual = self.reference.entropy.value
        if not self.reference.complete or usual is None or usual < self.config.least_entropy:
            return None
        now, share = entropy(window.counts), self.config.entropy_share
        if now >= share * usual or not self._varied(window):
            return None
        reason = (
            f"entropy of served classes is {now:.2f} nats, {_percent(now / usual)} of the "
            f"reference {usual:.2f} (limit {_percent(share)})"
        )
        floor = self._floor(window.audits)
        if floor is not None and window.audits.interval.low >= floor:
            low = _percent(window.audits.interval.low)
            return _Finding("entropy", f"{reason}; but audits say accuracy is {low} or more",
                            grave=False)  # fmt: skip
        return _Finding("entropy", reason)

    def _varied(self, window: Window) -> bool:
        usual = self.reference.variety.value
        if window.variety is None or usual is None:
            return True
        return window.variety >= self.config.variety_share * usual

    def _agreement(self, window: Window) -> _Finding | None:
        usual, least = self.reference.agreement.value, self.config.least_agreement
        if not self.reference.complete or usual is None or window.agreement is None:
            return None
        if window.agreement >= least or usual < least:
            return None
        return _Finding(
            "agreement",
            f"agreement of policy and service is {_percent(window.agreement)}, in the reference "
            f"{_percent(usual)} (limit {_percent(least)})",
        )

    def _confidence(self, window: Window) -> _Finding | None:
        usual, share = self.reference.confidence.value, self.config.confidence_share
        if not self.reference.complete or usual is None or window.confidence >= share * usual:
            return None
        reason = (
            f"mean confidence is {_percent(window.confidence)}, in the reference {_percent(usual)}"
        )
        return _Finding("confidence", reason, grave=False)


def entropy(counts: Sequence[int]) -> float:
    """Of a histogram, in nats; 0 of an empty one."""
    n = sum(counts)
    return sum(count / n * log(n / count) for count in counts if count)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
