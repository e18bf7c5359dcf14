"""Small classifiers of every norm family, and source statistics for them."""

from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from bitta.errors import unknown_name_error
from bitta.methods import get_method
from bitta.methods.base import Adapter
from bitta.nn import WrappedModel
from bitta.seeding import generator
from bitta.source_statistics import SourceStatistics

Norm: TypeAlias = Literal["batch", "layer", "group"]
NORMS: tuple[Norm, ...] = ("batch", "layer", "group")
N_CLASSES = 5


class _ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the channels, (n, channels, height, width)."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class _Block(nn.Module):
    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = _norm(norm, width)

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.norm(self.conv(x))
        return x + residual.relu()


class _ToyClassifier(nn.Module):
    def __init__(self, norm: Norm, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.norm = _norm(norm, width)
        self.stage1 = nn.Sequential(_Block(width, norm))
        self.stage2 = nn.Sequential(_Block(width, norm))
        self.head = nn.Linear(width, N_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stage2(self.stage1(self.norm(self.stem(images)).relu()))
        logits: Tensor = self.head(features.mean((2, 3)))
        return logits


def toy_classifier(norm: Norm = "batch", *, width: int = 8, seed: int = 0) -> nn.Module:
    """Return a classifier of (n, 3, 8, 8) images into five classes, with random weights."""
    if norm not in NORMS:
        raise unknown_name_error("norm", norm, NORMS)
    with torch.random.fork_rng(devices=[]):
        model = _ToyClassifier(norm, width)
    rng = generator(seed, "toy")
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                bound = (6 / module.weight[0].numel()) ** 0.5
                module.weight.uniform_(-bound, bound, generator=rng)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return model.eval()


def _norm(norm: Norm, width: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(width)
    return _ChannelNorm(width) if norm == "layer" else nn.GroupNorm(2, width)


def needed_settings(
    method: str | type[Adapter[Any]], norm: Norm, folder: str | Path
) -> dict[str, Any]:
    """Return the settings that a method requires on the toy model. Write files to `folder`."""
    adapter_class = get_method(method) if isinstance(method, str) else method
    if "source statistics" not in adapter_class.needs:
        return {}
    return {"source_statistics": toy_statistics(norm, folder)}


def toy_statistics(norm: Norm, folder: str | Path) -> str:
    """Return the path of source statistics of `toy_classifier(norm)` over random images."""
    path = Path(folder) / f"toy-{norm}.safetensors"
    if not path.exists():
        images = torch.rand(64, 3, 8, 8, generator=generator(7, "toy statistics"))
        with closing(WrappedModel(toy_classifier(norm), eager=True)) as wrapped:
            SourceStatistics.compute(wrapped, images.split(16)).save(path)
    return str(path)
