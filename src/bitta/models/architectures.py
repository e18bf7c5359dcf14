"""The architectures by name."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bitta.errors import SettingError, unknown
from bitta.models.resnet import ResNet
from bitta.models.vit import VisionTransformer


@dataclass(frozen=True, slots=True)
class Architecture:
    """A kind of model and what makes it this one of its kind."""

    kind: type[nn.Module]
    size: int
    """Side of the images it is meant for, in pixels; a residual network reads others too."""
    summary: str
    arguments: Mapping[str, Any]


_SMALL = {"stem": "small", "block": "basic"}
_IMAGENET = {"stem": "imagenet", "widths": (64, 128, 256, 512)}

ARCHITECTURES: Mapping[str, Architecture] = {
    "resnet8": Architecture(
        ResNet, 32, "3 stages of 1 block",
        {**_SMALL, "blocks": (1, 1, 1), "widths": (16, 32, 64)},
    ),
    "resnet20": Architecture(
        ResNet, 32, "3 stages of 3 blocks",
        {**_SMALL, "blocks": (3, 3, 3), "widths": (16, 32, 64)},
    ),
    "resnet18": Architecture(
        ResNet, 32, "4 stages of 2 blocks",
        {**_SMALL, "blocks": (2, 2, 2, 2), "widths": (64, 128, 256, 512)},
    ),
    "resnet50": Architecture(
        ResNet, 32, "4 stages of 3, 4, 6 and 3 bottlenecks",
        {
            "stem": "small", "block": "bottleneck",
            "blocks": (3, 4, 6, 3), "widths": (64, 128, 256, 512),
        },
    ),
    "imagenet_resnet18": Architecture(
        ResNet, 224, "torchvision's resnet18",
        {**_IMAGENET, "block": "basic", "blocks": (2, 2, 2, 2)},
    ),
    "imagenet_resnet50": Architecture(
        ResNet, 224, "torchvision's resnet50; stride_first=True for Keras weights",
        {**_IMAGENET, "block": "bottleneck", "blocks": (3, 4, 6, 3)},
    ),
    "vit_b_16": Architecture(
        VisionTransformer, 224, "torchvision's vit_b_16",
        {
            "image_size": 224, "patch_size": 16, "width": 768, "depth": 12,
            "n_heads": 12, "mlp_width": 3072,
        },
    ),
    "vit_small": Architecture(
        VisionTransformer, 32, "9 blocks of width 192 over patches of 4 pixels",
        {
            "image_size": 32, "patch_size": 4, "width": 192, "depth": 9,
            "n_heads": 3, "mlp_width": 768,
        },
    ),
}  # fmt: skip


def build_model(architecture: str, **arguments: Any) -> nn.Module:
    """A model of a named architecture, its weights not yet meaningful.

    `n_classes`, `mean` and `std` are always needed; what the name stands for can be changed too.
    """
    if architecture not in ARCHITECTURES:
        raise unknown("architecture", architecture, ARCHITECTURES)
    chosen = ARCHITECTURES[architecture]
    settings = {**chosen.arguments, **arguments}
    try:
        inspect.signature(chosen.kind).bind(**settings)
    except TypeError as error:
        raise SettingError(f"{architecture} cannot be built so ({error}).") from None
    with torch.random.fork_rng(devices=[]):  # torch initialises from global chance
        return chosen.kind(**settings)
