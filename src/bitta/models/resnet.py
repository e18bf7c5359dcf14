"""Residual networks for small images, and those of torchvision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import require
from bitta.models.pixel_model import PixelModel

Norm: TypeAlias = Literal["batch", "group", "none"]
"""Normalisation layers: BatchNorm, GroupNorm with groups of 8 channels, or none."""
_GROUP_CHANNELS = 8


@dataclass(frozen=True, slots=True)
class ResNetVariant:
    """Differences between published residual networks of the same size."""

    shortcut: str
    """Name of the shortcut module in weights files."""
    stride_first: bool
    eps: float
    norm_kind: Norm

    def norm(self, width: int) -> nn.Module:
        """Return a normalisation layer."""
        if self.norm_kind == "none":
            return nn.Identity()
        if self.norm_kind == "group":
            return nn.GroupNorm(max(1, width // _GROUP_CHANNELS), width, eps=self.eps)
        return nn.BatchNorm2d(width, eps=self.eps)

    def projection(self, n_inputs: int, width: int, stride: int) -> nn.Sequential:
        """Return the shortcut of a block. It is empty if the shapes are equal."""
        if stride == 1 and n_inputs == width:
            return nn.Sequential()
        conv = nn.Conv2d(n_inputs, width, 1, stride=stride, bias=False)
        return nn.Sequential(conv, self.norm(width))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, n_inputs: int, width: int, stride: int, *, variant: ResNetVariant) -> None:
        super().__init__()
        self.conv1 = _conv3x3(n_inputs, width, stride)
        self.bn1 = variant.norm(width)
        self.conv2 = _conv3x3(width, width, 1)
        self.bn2 = variant.norm(width)
        self.add_module(variant.shortcut, variant.projection(n_inputs, width, stride))
        self.shortcut_name = variant.shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut and apply ReLU."""
        residual: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut: Tensor = self.get_submodule(self.shortcut_name)(x)
        return (residual + shortcut).relu()


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution with a shortcut. The output is four times as wide."""

    expansion: ClassVar[int] = 4

    def __init__(self, n_inputs: int, width: int, stride: int, *, variant: ResNetVariant) -> None:
        super().__init__()
        first, second = (stride, 1) if variant.stride_first else (1, stride)
        self.conv1 = nn.Conv2d(n_inputs, width, 1, stride=first, bias=False)
        self.bn1 = variant.norm(width)
        self.conv2 = _conv3x3(width, width, second)
        self.bn2 = variant.norm(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = variant.norm(4 * width)
        self.add_module(variant.shortcut, variant.projection(n_inputs, 4 * width, stride))
        self.shortcut_name = variant.shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut and apply ReLU."""
        hidden: Tensor = self.bn1(self.conv1(x)).relu()
        residual: Tensor = self.bn3(self.conv3(self.bn2(self.conv2(hidden)).relu()))
        shortcut: Tensor = self.get_submodule(self.shortcut_name)(x)
        return (residual + shortcut).relu()


class ResNet(PixelModel):
    """Residual network. Each stage after the first halves the resolution.

    `stem` is a 3x3 convolution ("small"), or a 7x7 convolution with stride and pooling
    ("imagenet"). `stride_first` puts the stride of a bottleneck into its first 1x1 convolution, as
    Keras weights need. The normalisation layers keep the names `bn1` and `bn2` with every `norm`.
    """

    def __init__(
        self,
        *,
        block: Literal["basic", "bottleneck"] = "basic",
        blocks: Sequence[int],
        widths: Sequence[int],
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        stem: Literal["small", "imagenet"] = "small",
        stride_first: bool = False,
        eps: float = 1e-5,
        norm: Norm = "batch",
    ) -> None:
        super().__init__(mean=mean, std=std)
        require(norm in get_args(Norm), "norm", norm, ", ".join(get_args(Norm)))
        self.stem = stem
        is_small = stem == "small"
        shortcut = "shortcut" if is_small else "downsample"
        variant = ResNetVariant(
            shortcut=shortcut, stride_first=stride_first, eps=eps, norm_kind=norm
        )
        block_class = BasicBlock if block == "basic" else Bottleneck
        self.conv1 = (
            _conv3x3(len(mean), widths[0], 1) if is_small else _conv7x7(len(mean), widths[0])
        )
        self.bn1 = variant.norm(widths[0])
        n_inputs = widths[0]
        for stage, (n_blocks, width) in enumerate(zip(blocks, widths, strict=True)):
            chain: list[nn.Module] = []
            for index in range(n_blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                chain.append(block_class(n_inputs, width, stride, variant=variant))
                n_inputs = width * block_class.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*chain))
        self.n_stages = len(blocks)
        self.fc = nn.Linear(n_inputs, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        x: Tensor = self.bn1(self.conv1(self.normalise(images))).relu()
        if self.stem == "imagenet":
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in range(self.n_stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _conv3x3(n_inputs: int, width: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(n_inputs, width, 3, stride=stride, padding=1, bias=False)


def _conv7x7(n_inputs: int, width: int) -> nn.Conv2d:
    return nn.Conv2d(n_inputs, width, 7, stride=2, padding=3, bias=False)
