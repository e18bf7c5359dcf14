"""Residual networks for small images; normalisation of pixels is part of the model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bitta.errors import unknown
from bitta.seeding import generator

ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "resnet8": {"blocks": (1, 1, 1), "widths": (16, 32, 64)},
    "resnet20": {"blocks": (3, 3, 3), "widths": (16, 32, 64)},
    "resnet18": {"blocks": (2, 2, 2, 2), "widths": (64, 128, 256, 512)},
}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, n_inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(n_inputs, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or n_inputs != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_inputs, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Residual sum, then ReLU."""
        residual: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut: Tensor = self.shortcut(x)
        return (residual + shortcut).relu()


class CifarResNet(nn.Module):
    """ResNet with a 3x3 stem and no pooling before the head; reads RGB in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        *,
        blocks: Sequence[int],
        widths: Sequence[int],
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)
        self.conv1 = _conv3x3(len(mean), widths[0], 1)
        self.bn1 = nn.BatchNorm2d(widths[0])
        n_inputs = widths[0]
        for stage, (n_blocks, width) in enumerate(zip(blocks, widths, strict=True)):
            strides = (1 if stage == 0 else 2, *[1] * (n_blocks - 1))
            chain = [
                BasicBlock(n_inputs if place == 0 else width, width, stride)
                for place, stride in enumerate(strides)
            ]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*chain))
            n_inputs = width
        self.n_stages = len(blocks)
        self.fc = nn.Linear(n_inputs, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, classes) logits."""
        x: Tensor = self.bn1(self.conv1((images - self.mean) / self.std)).relu()
        for stage in range(self.n_stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def build_model(architecture: str, **arguments: Any) -> CifarResNet:
    """A model of a named architecture, its weights not yet meaningful."""
    if architecture not in ARCHITECTURES:
        raise unknown("architecture", architecture, ARCHITECTURES)
    with torch.random.fork_rng(devices=[]):  # torch initialises from global chance
        return CifarResNet(**{**ARCHITECTURES[architecture], **arguments})


@torch.no_grad()
def initialise(model: nn.Module, *, seed: int) -> None:
    """Seeded weights: He-normal convolutions, a small uniform head."""
    for place, module in enumerate(model.modules()):
        chance = generator(seed, "initialise", place)
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", generator=chance)
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=chance)
            nn.init.zeros_(module.bias)


def _conv3x3(n_inputs: int, width: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(n_inputs, width, 3, stride=stride, padding=1, bias=False)
