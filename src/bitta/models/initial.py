"""Weights to start training from."""

import torch
from torch import nn

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
