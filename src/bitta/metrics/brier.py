"""How far probabilities are from the truth."""

import torch
import torch.nn.functional as F
from torch import Tensor

WORST = 2.0
"""All probability on a wrong class."""


@torch.no_grad()
def brier_sum(probs: Tensor, truth: Tensor) -> float:
    """Sum over samples of Σ (p - one-hot)², 0 to 2 each; what is no number counts as the worst."""
    wanted = F.one_hot(truth.to(probs.device), probs.shape[-1])
    squares = (probs.double() - wanted).square().sum(-1)
    return float(squares.nan_to_num(WORST, posinf=WORST).sum())
