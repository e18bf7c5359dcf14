"""Residual networks, for small images and in the form of torchvision's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from bitta.models.pixel_model import PixelModel


@dataclass(frozen=True, slots=True)
class Form:
    """What differs between published residual networks of one size."""

    shortcut: str
    """What weight files call the way around a block."""
    stride_first: bool
    eps: float

    def norm(self, width: int) -> nn.BatchNorm2d:
        """A normalisation layer."""
        return nn.BatchNorm2d(width, eps=self.eps)

    def projection(self, n_inputs: int, width: int, stride: int) -> nn.Sequential:
        """The way around a block: nothing at all where shapes agree."""
        if stride == 1 and n_inputs == width:
            return nn.Sequential()
        conv = nn.Conv2d(n_inputs, width, 1, stride=stride, bias=False)
        return nn.Sequential(conv, self.norm(width))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, n_inputs: int, width: int, stride: int, *, form: Form) -> None:
        super().__init__()
        self.conv1 = _conv3x3(n_inputs, width, stride)
        self.bn1 = form.norm(width)
        self.conv2 = _conv3x3(width, width, 1)
        self.bn2 = form.norm(width)
        self.add_module(form.shortcut, form.projection(n_inputs, width, stride))
        self.bypass = form.shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum, then ReLU."""
        residual: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut: Tensor = self.get_submodule(self.bypass)(x)
        return (residual + shortcut).relu()


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, around a shortcut; four times as wide outside."""

    expansion: ClassVar[int] = 4

    def __init__(self, n_inputs: int, width: int, stride: int, *, form: Form) -> None:
        super().__init__()
        first, second = (stride, 1) if form.stride_first else (1, stride)
        self.conv1 = nn.Conv2d(n_inputs, width, 1, stride=first, bias=False)
        self.bn1 = form.norm(width)
        self.conv2 = _conv3x3(width, width, second)
        self.bn2 = form.norm(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = form.norm(4 * width)
        self.add_module(form.shortcut, form.projection(n_inputs, 4 * width, stride))
        self.bypass = form.shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum, then ReLU."""
        hidden: Tensor = self.bn1(self.conv1(x)).relu()
        residual: Tensor = self.bn3(self.conv3(self.bn2(self.conv2(hidden)).relu()))
        shortcut: Tensor = self.get_submodule(self.bypass)(x)
        return (residual + shortcut).relu()


class ResNet(PixelModel):
    """Stages of residual blocks, each half as large and twice as wide as the one before.

    `stem` is a 3x3 convolution ("small"), or one of 7x7 with stride and a pooling ("imagenet").
    `stride_first` halves images in the first 1x1 convolution of a stage, as Keras weights do.
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
    ) -> None:
        super().__init__(mean=mean, std=std)
        self.stem = stem
        small = stem == "small"
        shortcut = "shortcut" if small else "downsample"
        form = Form(shortcut=shortcut, stride_first=stride_first, eps=eps)
        kind = BasicBlock if block == "basic" else Bottleneck
        self.conv1 = _conv3x3(len(mean), widths[0], 1) if small else _conv7x7(len(mean), widths[0])
        self.bn1 = form.norm(widths[0])
        n_inputs = widths[0]
        for stage, (n_blocks, width) in enumerate(zip(blocks, widths, strict=True)):
            chain: list[nn.Module] = []
            for place in range(n_blocks):
                stride = 2 if stage > 0 and place == 0 else 1
                chain.append(kind(n_inputs, width, stride, form=form))
                n_inputs = width * kind.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*chain))
        self.n_stages = len(blocks)
        self.fc = nn.Linear(n_inputs, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, classes) logits."""
        x: Tensor = self.bn1(self.conv1(self.normalised(images))).relu()
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
