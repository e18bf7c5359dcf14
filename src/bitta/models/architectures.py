"""Architectures by name, and models made by a user's own function."""

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bitta.errors import SettingError, unknown_name_error
from bitta.models.resnet import ResNet
from bitta.models.vit import Attention, Encoder, VisionTransformer
from bitta.seeding import generator


@torch.no_grad()
def initialise(model: nn.Module, *, seed: int) -> None:
    """Seeded weights: He-normal convolutions, small uniform dense layers, scaled attention."""
    for place, module in enumerate(model.modules()):
        chance = generator(seed, "initialise", place)
        if isinstance(module, nn.Conv2d):
            _fill_convolution(module, chance)
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=chance)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Attention):
            nn.init.xavier_uniform_(module.in_proj_weight, generator=chance)
            nn.init.zeros_(module.in_proj_bias)
        elif isinstance(module, Encoder):
            nn.init.normal_(module.pos_embedding, std=0.02, generator=chance)
        elif isinstance(module, VisionTransformer):
            nn.init.normal_(module.class_token, std=0.02, generator=chance)


def _fill_convolution(module: nn.Conv2d, chance: torch.Generator) -> None:
    """He-normal before a ReLU; the projection of patches, which alone has a bias, keeps scale."""
    if module.bias is None:
        nn.init.kaiming_normal_(module.weight, mode="fan_out", generator=chance)
        return
    fan_in = module.weight[0].numel()
    nn.init.normal_(module.weight, std=fan_in**-0.5, generator=chance)
    nn.init.zeros_(module.bias)


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
        raise unknown_name_error("architecture", architecture, ARCHITECTURES)
    chosen = ARCHITECTURES[architecture]
    settings = {**chosen.arguments, **arguments}
    try:
        inspect.signature(chosen.kind).bind(**settings)
    except TypeError as error:
        raise SettingError(f"{architecture} cannot be built so ({error}).") from None
    with torch.random.fork_rng(devices=[]):  # torch initialises from global chance
        return chosen.kind(**settings)


def from_factory(text: str, *, of: str) -> nn.Module:
    """What "module:function" returns; `of` is what the setting is called."""
    module, _, function = text.partition(":")
    if not module or not function or module.startswith("."):
        raise SettingError(f'{of} is {text!r}; "module:function" is needed.')
    try:
        # The console script, unlike `python -m`, does not look in the working directory.
        sys.path.insert(0, os.getcwd())
        factory = getattr(importlib.import_module(module), function)
        with suppress(ValueError):  # builtins have no signature
            inspect.signature(factory).bind()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise SettingError(f"{of} {text!r} cannot be loaded ({error}).") from None
    except TypeError as error:
        raise SettingError(f"{of} {text!r} cannot be called ({error}).") from None
    finally:
        sys.path.remove(os.getcwd())
    model = factory()
    if not isinstance(model, nn.Module):
        raise SettingError(f"{of} {text!r} returned a {type(model).__name__}.")
    return model
