"""Ask where the stochastic policy doubts the label that was served."""

from torch import Tensor

from bitta.selection.candidates import Candidates


def mc_confidence(candidates: Candidates) -> Tensor:
    """1 - π(y*), Eq. 5: y* is the deterministic label, π the MC-dropout mean."""
    labels = candidates.prediction.labels
    confidence = candidates.policy().gather(1, labels.unsqueeze(1)).squeeze(1)
    return 1 - confidence
