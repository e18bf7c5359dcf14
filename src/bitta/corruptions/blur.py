"""Blur: convolutions with the kernel of an optical fault."""

import torch
import torch.nn.functional as F
from torch import Tensor

_DEFOCUS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
_REACH = 8


def defocus_blur(x: Tensor, severity: int, _chance: torch.Generator) -> Tensor:
    """Correlate with a disk whose rim is smoothed."""
    kernel = _disk(*_DEFOCUS[severity - 1]).to(x.device)
    padded = F.pad(x, [_REACH] * 4, mode="reflect").flatten(0, 1).unsqueeze(1)
    return F.conv2d(padded, kernel[None, None]).view(x.shape)


def _disk(radius: float, alias_sigma: float) -> Tensor:
    steps = torch.arange(-_REACH, _REACH + 1, dtype=torch.float32)
    disk = (steps[:, None] ** 2 + steps[None] ** 2 <= radius**2).float()
    window = torch.exp(-torch.tensor([1.0, 0.0, 1.0]) / (2 * alias_sigma**2))
    window = window / window.sum()
    smooth = (window[:, None] * window[None])[None, None]
    return F.conv2d((disk / disk.sum())[None, None], smooth, padding=1)[0, 0]
