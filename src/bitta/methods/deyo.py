"""DeYO: trust a prediction that is sure and that falls with the shape of the object.

Lee et al., ICLR 2024, https://openreview.net/forum?id=9w3iw8wDuE
Departures from the authors' code: the label served comes from a forward of its own, before the
update (the same label); which layers are the top is found by structure instead of by names; pixels
are shuffled for each image by itself, and the occluded window is the central half of any image. The
code published with BiTTA does not have this method: preset `reference` lets it learn from answers
as the other baselines do there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config import require
from bitta.errors import InputError
from bitta.losses import entropy
from bitta.methods.base import PUBLISHED_BASELINE, UnsupervisedAdapter, UnsupervisedConfig
from bitta.nn import Statistics, norm_parameters_below_top
from bitta.seeding import RandomKey
from bitta.types import softmax


@dataclass(frozen=True, kw_only=True)
class DeyoConfig(UnsupervisedConfig):
    """Settings of DeYO."""

    lr: float = 2.5e-4
    """Step size of SGD; the authors' for ResNet-50 on ImageNet, who have 1e-3 for a ViT at batch
    size 64."""
    momentum: float = 0.9
    """Momentum of SGD, without Nesterov."""
    entropy_margin: float = 0.5
    """τ_Ent in units of ln C: the entropy below which a prediction is sure."""
    plpd_margin: float = 0.3
    """τ_PLPD: how far the label's probability must fall when the object is destroyed; .3 on
    ImageNet-C with BatchNorm, .2 in the authors' wild settings."""
    weight_margin: float = 0.4
    """Ent₀ in units of ln C, from which the weight of a sample counts."""
    destroy: Literal["patch", "occlusion", "pixel"] = "patch"
    """How the object is destroyed: patches shuffled, its middle covered, or pixels shuffled."""
    patches: int = 4
    """Patches along each side of an image."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {**PUBLISHED_BASELINE}}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(self.entropy_margin > 0, "entropy_margin", self.entropy_margin, "above 0")
        require(-1 <= self.plpd_margin < 1, "plpd_margin", self.plpd_margin, "-1 up to below 1")
        require(self.weight_margin >= 0, "weight_margin", self.weight_margin, "0 or more")
        require(self.patches >= 1, "patches", self.patches, "1 or more")


class Deyo(UnsupervisedAdapter[DeyoConfig]):
    """Weighted entropy of samples chosen by entropy and by what destroying the object does."""

    Config = DeyoConfig
    paper: ClassVar[str] = "Lee et al., ICLR 2024"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
    trains: ClassVar[str] = "norm layers below the top"
    is_capturable: bool = False

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Scale and shift, but not in the last stage."""
        return norm_parameters_below_top(model)

    def make_optimiser(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    def unsupervised_terms(self, inputs: Tensor, random_key: RandomKey) -> dict[str, Tensor]:
        """Mean of (exp(Ent₀ - H) + exp(PLPD)) H over the samples that pass both filters."""
        _require_images(inputs)
        logits = self.trained_model(inputs, statistics="batch")
        each, nats = entropy(logits), log(logits.shape[-1])
        sure = each.detach() < self.config.entropy_margin * nats
        if not sure.any():
            return {}
        each, fall = each[sure], self.plpd(inputs[sure], logits.detach()[sure], random_key)
        shaped = fall > self.config.plpd_margin
        if not shaped.any():
            return {}
        weights = (self.config.weight_margin * nats - each.detach()).exp() + fall.exp()
        return {"entropy": (weights * each)[shaped].mean()}

    @torch.no_grad()
    def plpd(self, inputs: Tensor, logits: Tensor, random_key: RandomKey) -> Tensor:
        """p(ŷ | x) - p(ŷ | x'): the pseudo-label's fall when the object is destroyed, (batch,)."""
        drawn = random_key.at("destroy", device=inputs.device)
        destroyed = destroyed_by(self.config.destroy, inputs, drawn, patches=self.config.patches)
        before, label = softmax(logits).max(-1, keepdim=True)
        after = softmax(self.trained_model(destroyed, statistics="batch")).gather(-1, label)
        return (before - after).squeeze(-1)


def destroyed_by(way: str, images: Tensor, drawn: torch.Generator, *, patches: int = 4) -> Tensor:
    """Images without their object's shape, (batch, channels, height, width)."""
    height, width = images.shape[2:]
    if way == "pixel":
        return _shuffled(images, (height, width), drawn)
    if way == "occlusion":
        covered, middle = images.clone(), (..., _middle_of(height), _middle_of(width))
        covered[middle] = images.mean((2, 3), keepdim=True)
        return covered
    fitting = [max(1, side // patches) * patches for side in (height, width)]
    cut = _shuffled(_resized(images, fitting), (patches, patches), drawn)
    return _resized(cut, [height, width])


def _shuffled(images: Tensor, grid: tuple[int, int], drawn: torch.Generator) -> Tensor:
    """The tiles of a grid in another order, for each image its own."""
    rows, columns = grid
    n, _, height, width = images.shape
    cut = images.unflatten(3, (columns, width // columns)).unflatten(2, (rows, height // rows))
    tiles = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (batch, tiles, channels, ...)
    order = torch.rand(n, rows * columns, generator=drawn, device=images.device).argsort(1)
    tiles = tiles[torch.arange(n, device=images.device).unsqueeze(1), order]
    together: Tensor = tiles.unflatten(1, (rows, columns)).permute(0, 3, 1, 4, 2, 5)
    return together.reshape(images.shape)


def _resized(images: Tensor, size: list[int]) -> Tensor:
    if list(images.shape[2:]) == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def _middle_of(side: int) -> slice:
    """The central half; of 224 pixels the authors' 56 to 168."""
    return slice(side // 4, side // 4 + side // 2)


def _require_images(inputs: Tensor) -> None:
    if inputs.dim() != 4:
        raise InputError(
            f"DeYO destroys the object in images and needs inputs (batch, channels, height, width);"
            f" these are {tuple(inputs.shape)}, for which another method will do."
        )
