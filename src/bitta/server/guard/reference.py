"""What was normal: means over the first windows, and the best accuracy that was sure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from bitta.server.guard.audits import Audited


@dataclass(slots=True)
class Mean:
    """A running mean that takes no None."""

    n: int = 0
    value: float | None = None

    def add(self, value: float | None) -> None:
        """Take one in."""
        if value is None:
            return
        self.n += 1
        before = self.value or 0.0
        self.value = before + (value - before) / self.n


@dataclass(slots=True)
class Accuracy:
    """Accuracy at its best: the lower bound, and how much the source weights then erred at most."""

    low: float | None = None
    source_errors: float = 1.0

    def raise_to(self, audits: Audited) -> None:
        """Keep the better lower bound, together with what was then known of the source weights."""
        if self.low is None or audits.interval.low > self.low:
            self.low = audits.interval.low
            self.source_errors = audits.source_errors.high


class Reference:
    """Means of the first `size` windows; complete once it has seen as many."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.windows = 0
        self.entropy, self.agreement = Mean(), Mean()
        self.confidence, self.variety = Mean(), Mean()
        self.accuracy = Accuracy()

    @property
    def complete(self) -> bool:
        """Whether all its windows have been seen."""
        return self.windows >= self.size

    def add(
        self,
        *,
        entropy: float,
        agreement: float | None,
        confidence: float,
        variety: float | None,
    ) -> None:
        """Take a window in."""
        self.windows += 1
        self.entropy.add(entropy)
        self.agreement.add(agreement)
        self.confidence.add(confidence)
        self.variety.add(variety)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        means = {name: asdict(getattr(self, name)) for name in _MEANS}
        return {"windows": self.windows, **means, "accuracy": asdict(self.accuracy)}

    @classmethod
    def of(cls, state: Mapping[str, Any], size: int) -> Self:
        """From a saved state."""
        made = cls(size)
        made.windows = state["windows"]
        for name in _MEANS:
            setattr(made, name, Mean(**state[name]))
        made.accuracy = Accuracy(**state["accuracy"])
        return made


_MEANS = ("entropy", "agreement", "confidence", "variety")
