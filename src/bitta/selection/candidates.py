"""What a selector sees: predictions, and the stochastic policy if it asks for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from bitta.seeding import Key
from bitta.types import Prediction


@dataclass(frozen=True, slots=True)
class Candidates:
    """A batch of predictions, any of which could be asked about."""

    prediction: Prediction
    policy: Callable[[], Tensor]
    """Computes π, (batch, classes); costs N passes, so only those who need it call it."""
    logits: Callable[[], Tensor]
    """Computes what was served before it was made into probabilities, (batch, classes)."""
    key: Key
    """Where chance, if any, is drawn from."""


Selector: TypeAlias = Callable[[Candidates], Tensor]
"""Gives each candidate an uncertainty, (batch,); the highest are asked about. Changes nothing."""
