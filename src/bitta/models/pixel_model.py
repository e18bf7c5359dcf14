"""Normalisation of pixels inside the model, so that all models take the same images."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bitta.errors import SettingError


class PixelModel(nn.Module):
    """Base class of models that take images in [0, 1]. Mean and std are settings, not weights."""

    mean: Tensor
    std: Tensor

    def __init__(self, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise SettingError(
                f"mean is {tuple(mean)} and std is {tuple(std)}; allowed: one number per channel "
                "in both, above 0 in std."
            )
        self.register_buffer("mean", _to_channel_tensor(mean), persistent=False)
        self.register_buffer("std", _to_channel_tensor(std), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """Subtract the mean and divide by the standard deviation, per channel."""
        return (images - self.mean) / self.std


def _to_channel_tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.get_default_dtype()).view(1, -1, 1, 1)
