"""DeYO: learn from predictions that are certain and that depend on the shape of the object.

Lee et al., ICLR 2024, https://openreview.net/forum?id=9w3iw8wDuE
Departures from the authors' code: the served label comes from a separate forward pass before the
update. It is the same label. The top layers are found by structure instead of by name. Pixels are
shuffled separately for each image, and the occluded window is the central half of an image of any
size. The code published with BiTTA does not have this method; preset `reference` makes it learn
from answers as the baselines in that code do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import require
from bitta.errors import InputError
from bitta.losses import entropy
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, norm_parameters_below_top
from bitta.seeding import RandomKey
from bitta.types import softmax

Destruction: TypeAlias = Literal["patch", "occlusion", "pixel"]


@dataclass(frozen=True, kw_only=True)
class DeyoConfig(UnsupervisedConfig):
    """Settings of DeYO."""

    lr: float = 2.5e-4
    """Learning rate of SGD. The default is the authors' value for ResNet-50 on ImageNet. They use
    1e-3 for a ViT with batches of 64."""
    momentum: float = 0.9
    """Momentum of SGD, without Nesterov."""
    entropy_margin: float = 0.5
    """Limit τ_Ent of the entropy of a certain prediction, in units of ln C."""
    plpd_margin: float = 0.3
    """Limit τ_PLPD: destroying the object must lower the label's probability by more than this.
    The authors use .3 on ImageNet-C with BatchNorm, .2 in their wild settings."""
    weight_margin: float = 0.4
    """Constant Ent₀ in the weight of a sample, in units of ln C."""
    destroy: Destruction = "patch"
    """Way to destroy the object: shuffle patches, cover the middle, or shuffle pixels."""
    patches: int = 4
    """Number of patches along each side of an image."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {**PUBLISHED_BASELINE}}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(self.entropy_margin > 0, "entropy_margin", self.entropy_margin, "above 0")
        require(-1 <= self.plpd_margin < 1, "plpd_margin", self.plpd_margin, "-1 up to below 1")
        require(self.weight_margin >= 0, "weight_margin", self.weight_margin, "0 or more")
        require(self.patches >= 1, "patches", self.patches, "1 or more")


class Deyo(UnsupervisedAdapter[DeyoConfig]):
    """Minimises the entropy of samples selected by entropy and by the effect of destruction."""

    Config = DeyoConfig
    paper: ClassVar[str] = "Lee et al., ICLR 2024"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers below the top"
    is_capturable: bool = False

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return scale and shift of the normalisation layers, without the last stage."""
        return norm_parameters_below_top(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Return the mean of (exp(Ent₀ - H) + exp(PLPD)) H over samples that pass both filters."""
        _require_images(inputs)
        logits = self.trained_model(inputs, statistics="batch")
        entropies, max_entropy = entropy(logits), log(logits.shape[-1])
        is_certain = entropies.detach() < self.config.entropy_margin * max_entropy
        if not is_certain.any():
            return {}
        entropies = entropies[is_certain]
        difference = self.plpd(inputs[is_certain], logits.detach()[is_certain], random_key)
        uses_shape = difference > self.config.plpd_margin
        if not uses_shape.any():
            return {}
        margin = self.config.weight_margin * max_entropy
        weights = (margin - entropies.detach()).exp() + difference.exp()
        return {"entropy": (weights * entropies)[uses_shape].mean()}

    @torch.no_grad()
    def plpd(self, inputs: Tensor, logits: Tensor, random_key: RandomKey) -> Tensor:
        """Return p(ŷ | x) - p(ŷ | x'), the pseudo-label probability difference, (batch,)."""
        rng = random_key.at("destroy", device=inputs.device)
        destroyed = destroy_object(inputs, self.config.destroy, rng, patches=self.config.patches)
        before, label = softmax(logits).max(-1, keepdim=True)
        after = softmax(self.trained_model(destroyed, statistics="batch")).gather(-1, label)
        return (before - after).squeeze(-1)


def destroy_object(
    images: Tensor, destruction: Destruction, rng: torch.Generator, *, patches: int = 4
) -> Tensor:
    """Return images without the shape of their object, (batch, channels, height, width)."""
    height, width = images.shape[2:]
    if destruction == "pixel":
        return _shuffle_tiles(images, (height, width), rng)
    if destruction == "occlusion":
        covered, middle = images.clone(), (..., _central_half(height), _central_half(width))
        covered[middle] = images.mean((2, 3), keepdim=True)
        return covered
    divisible = [max(1, side // patches) * patches for side in (height, width)]
    shuffled = _shuffle_tiles(_resize(images, divisible), (patches, patches), rng)
    return _resize(shuffled, [height, width])


def _shuffle_tiles(images: Tensor, grid: tuple[int, int], rng: torch.Generator) -> Tensor:
    """Shuffle the tiles of a grid, in another order for each image."""
    rows, columns = grid
    n, _, height, width = images.shape
    cut = images.unflatten(3, (columns, width // columns)).unflatten(2, (rows, height // rows))
    tiles = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (batch, tiles, channels, ...)
    order = torch.rand(n, rows * columns, generator=rng, device=images.device).argsort(1)
    tiles = tiles[torch.arange(n, device=images.device).unsqueeze(1), order]
    joined: Tensor = tiles.unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5)
    return joined.reshape(images.shape)


def _resize(images: Tensor, size: list[int]) -> Tensor:
    if list(images.shape[2:]) == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def _central_half(side: int) -> slice:
    """Return the central half of a side. For 224 pixels it is the authors' 56 to 168."""
    return slice(side // 4, side // 4 + side // 2)


def _require_images(inputs: Tensor) -> None:
    if inputs.dim() != 4:
        raise InputError(
            f"DeYO needs images (batch, channels, height, width); the inputs are "
            f"{tuple(inputs.shape)}. Use another method for them."
        )
