"""Augmentation of a batch at a time, on whatever device it is on."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.seeding import Key, generator

Augmentation = Callable[[Tensor, Key], Tensor]


def shifted(images: Tensor, key: Key) -> Tensor:
    """Mirror half of the images; shift each by up to an eighth of its side, black coming in."""
    n, _, height, width = images.shape
    reach = max(1, height // 8)
    chance = generator(*key)
    draws = torch.randint(0, 2 * reach + 1, (2, n), generator=chance).to(images.device)
    padded = F.pad(_mirrored(images, chance), [reach] * 4)
    ys = draws[0, :, None] + torch.arange(height, device=images.device)
    xs = draws[1, :, None] + torch.arange(width, device=images.device)
    samples = torch.arange(n, device=images.device)[:, None, None, None]
    channels = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
    return padded[samples, channels, ys[:, None, :, None], xs[:, None, None, :]]


def zoomed(images: Tensor, key: Key) -> Tensor:
    """Mirror half of the images; enlarge a random part of each, 60 to 100 % of its area."""
    chance = generator(*key)
    n = len(images)
    share = (0.6 + 0.4 * torch.rand(n, generator=chance)).sqrt()
    shift = (2 * torch.rand(2, n, generator=chance) - 1) * (1 - share)
    maps = torch.zeros(n, 2, 3)
    maps[:, 0, 0] = maps[:, 1, 1] = share
    maps[:, 0, 2], maps[:, 1, 2] = shift
    pixels = _mirrored(images, chance).float()
    grid = F.affine_grid(maps.to(images.device), list(images.shape), align_corners=False)
    sampled = F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False)
    return sampled.round_().to(torch.uint8)


def _mirrored(images: Tensor, chance: torch.Generator) -> Tensor:
    mirror = (torch.rand(len(images), generator=chance) < 0.5).to(images.device)
    return torch.where(mirror[:, None, None, None], images.flip(-1), images)


AUGMENTATIONS: Mapping[str, Augmentation] = {
    "none": lambda images, _key: images,
    "shift": shifted,
    "zoom": zoomed,
}
