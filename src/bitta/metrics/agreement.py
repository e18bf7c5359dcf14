"""Is the stochastic policy of one mind with what is served, and what is that worth?"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Agreement:
    """Samples on which the policy was computed, and on how many it agreed."""

    n_measured: int = 0
    n_agreeing: int = 0
    n_agreeing_correct: int = 0
    n_correct: int = 0
    """Of those measured."""

    @classmethod
    def of(cls, labels: Tensor, correct: Tensor, policy: Tensor | None) -> Self:
        """Of one batch; none where nobody asked for the policy, (batch, classes)."""
        if policy is None:
            return cls()
        agreeing = (policy.argmax(-1) == labels).cpu()
        correct = correct.cpu()
        return cls(
            len(labels), int(agreeing.sum()), int((agreeing & correct).sum()), int(correct.sum())
        )

    @property
    def rate(self) -> float | None:
        """Percent of samples on which both agree."""
        return _percent(self.n_agreeing, self.n_measured)

    @property
    def accuracy_agreeing(self) -> float | None:
        """Percent right where both agree."""
        return _percent(self.n_agreeing_correct, self.n_agreeing)

    @property
    def accuracy_disagreeing(self) -> float | None:
        """Percent right where they do not."""
        right = self.n_correct - self.n_agreeing_correct
        return _percent(right, self.n_measured - self.n_agreeing)


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
