"""Ask anywhere."""

import torch
from torch import Tensor

from bitta.seeding import generator
from bitta.selection.candidates import Candidates


def random(candidates: Candidates) -> Tensor:
    """Uniform numbers: every prediction is as likely to be asked about."""
    labels = candidates.prediction.labels
    chance = generator(*candidates.key, device=labels.device)
    return torch.rand(len(labels), generator=chance, device=labels.device)
