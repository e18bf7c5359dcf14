"""A teacher that follows its student: a moving average of weights."""

import torch
from torch import nn


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, *, rate: float) -> None:
    """teacher <- (1 - rate) teacher + rate student, in place; buffers stay as they are."""
    for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
        kept.lerp_(new, rate)
