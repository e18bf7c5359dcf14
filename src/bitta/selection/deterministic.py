"""Ask where what was served looks uncertain, without any stochastic pass."""

import torch
from torch import Tensor

from bitta.selection.candidates import Candidates


def entropy(candidates: Candidates) -> Tensor:
    """Highest entropy of the probabilities served."""
    probs = candidates.prediction.probs
    return -torch.xlogy(probs, probs).sum(-1)


def confidence(candidates: Candidates) -> Tensor:
    """Lowest probability of the label served."""
    return 1 - candidates.prediction.confidence


def energy(candidates: Candidates) -> Tensor:
    """Lowest negative energy, log Σ exp(logit): the input is far from what the model knows."""
    return -candidates.logits().logsumexp(-1)


def last(candidates: Candidates) -> Tensor:
    """The last of the batch, as the published code asks for its baselines."""
    labels = candidates.prediction.labels
    return torch.arange(len(labels), device=labels.device, dtype=torch.float32)
