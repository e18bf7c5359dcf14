"""Architectures by name, and models that are built by a function of the user."""

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
    """Initialise weights from a seed.

    Convolutions are He-normal, dense layers uniform, attention matrices Xavier-uniform.
    """
    for index, module in enumerate(model.modules()):
        rng = generator(seed, "initialise", index)
        if isinstance(module, nn.Conv2d):
            _initialise_convolution(module, rng)
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound, generator=rng)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Attention):
            nn.init.xavier_uniform_(module.in_proj_weight, generator=rng)
            nn.init.zeros_(module.in_proj_bias)
        elif isinstance(module, Encoder):
            nn.init.normal_(module.pos_embedding, std=0.02, generator=rng)
        elif isinstance(module, VisionTransformer):
            nn.init.normal_(module.class_token, std=0.02, generator=rng)


def _initialise_convolution(module: nn.Conv2d, rng: torch.Generator) -> None:
    """Initialise a convolution: He-normal, or with unit gain if it has a bias (patch embedding)."""
    if module.bias is None:
        nn.init.kaiming_normal_(module.weight, mode="fan_out", generator=rng)
        return
    fan_in = module.weight[0].numel()
    nn.init.normal_(module.weight, std=fan_in**-0.5, generator=rng)
    nn.init.zeros_(module.bias)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Model class with the arguments that define an architecture."""

    model_class: type[nn.Module]
    size: int
    """Usual side of the images in pixels. Residual networks accept other sizes."""
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
    """Build a model of a named architecture with random weights.

    `n_classes`, `mean` and `std` are required. `arguments` may also override the arguments of the
    architecture.
    """
    if architecture not in ARCHITECTURES:
        raise unknown_name_error("architecture", architecture, ARCHITECTURES)
    chosen = ARCHITECTURES[architecture]
    settings = {**chosen.arguments, **arguments}
    try:
        inspect.signature(chosen.model_class).bind(**settings)
    except TypeError as error:
        raise SettingError(
            f"{architecture} cannot be built with these arguments ({error}); give n_classes, mean "
            "and std, and leave out unknown arguments."
        ) from None
    with torch.random.fork_rng(devices=[]):  # torch initialises from the global generator
        return chosen.model_class(**settings)


def import_object(text: str, *, of: str) -> Any:
    """Return the object that "module:name" names. `of` is the name of the setting."""
    module, _, name = text.partition(":")
    if not module or not name or module.startswith("."):
        raise SettingError(f'{of} is {text!r}; allowed: "module:name".')
    folder = os.getcwd()
    try:
        # The console script does not import from the working directory, unlike `python -m`.
        sys.path.insert(0, folder)
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise SettingError(
            f"{of} {text!r} cannot be loaded ({error}); check the name and the working directory."
        ) from None
    finally:
        sys.path.remove(folder)  # the module may have changed the working directory


def call_factory(text: str, *, of: str) -> Any:
    """Return what "module:function" returns. `of` is the name of the setting."""
    factory = import_object(text, of=of)
    try:
        with suppress(ValueError):  # builtins have no signature
            inspect.signature(factory).bind()
    except TypeError as error:
        raise SettingError(
            f"{of} {text!r} cannot be called ({error}); give a function without required arguments."
        ) from None
    return factory()


def call_model_factory(text: str, *, of: str) -> nn.Module:
    """Return the model that "module:function" builds. `of` is the name of the setting."""
    model = call_factory(text, of=of)
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"{of} {text!r} returned a {type(model).__name__}; return a torch.nn.Module."
        )
    return model
