"""Pixel normalisation as part of the model, so that every model reads the same images."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bitta.errors import SettingError


class PixelModel(nn.Module):
    """Reads images with channels in [0, 1]; mean and deviation are settings, never weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(deviation > 0 for deviation in std):
            raise SettingError(
                f"mean is {tuple(mean)} and std is {tuple(std)}; a number per channel is needed in "
                "both, in std above 0."
            )
        self.register_buffer("mean", _per_channel(mean), persistent=False)
        self.register_buffer("std", _per_channel(std), persistent=False)

    def normalised(self, images: Tensor) -> Tensor:
        """Images with the mean taken off and divided by the deviation, per channel."""
        return (images - self.mean) / self.std


def _per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.get_default_dtype()).view(1, -1, 1, 1)
