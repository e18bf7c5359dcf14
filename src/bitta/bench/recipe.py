"""How a source model is trained, as a frozen dataclass read from TOML."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bitta.bench.toml import read_toml, section
from bitta.bench.training_sets import LOADERS
from bitta.config import Config, build_config, require
from bitta.errors import SettingError, unknown_name_error
from bitta.models import ARCHITECTURES


@dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """How a source model is trained."""

    data: str = "cifar10"
    """Which set: cifar10, cifar100, coloured_digits, tiny-imagenet, pacs or folders."""
    source: str = ""
    """pacs, folders: the domain to train on, less a tenth; that and the others are measured."""
    side: int = 224
    """pacs, folders: pictures are scaled and cut to squares of so many pixels."""
    architecture: str = "resnet8"
    """Which model."""
    start: str = ""
    """Weights of that architecture to go on from, by path; a head for other classes is replaced."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov momentum, or Adam."""
    epochs: int = 0
    """Passes over the training images."""
    iterations: int = 0
    """Steps in all, instead of epochs."""
    batch_size: int = 128
    """Images per step."""
    lr: float = 0.1
    """First step size."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """cosine lowers the step size to 0."""
    momentum: float = 0.9
    """Nesterov momentum of SGD."""
    weight_decay: float = 5e-4
    """Weight decay on all parameters."""
    augment: Literal["none", "shift", "zoom"] = "shift"
    """shift: mirror, and shift by up to an eighth of the side; zoom: mirror, and enlarge a part."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What multiplications run in on the way through the model; weights stay float32."""
    channels_last: bool = False
    """Memory layout that GPUs prefer."""
    seed: int = 0
    """Initial weights, order and augmentation."""

    def __post_init__(self) -> None:
        if self.data not in LOADERS:
            raise unknown_name_error("data", self.data, LOADERS)
        if self.architecture not in ARCHITECTURES:
            raise unknown_name_error("architecture", self.architecture, ARCHITECTURES)
        require(self.epochs >= 0, "epochs", self.epochs, "0 or more")
        require(self.iterations >= 0, "iterations", self.iterations, "0 or more")
        if (self.epochs > 0) == (self.iterations > 0):
            raise SettingError(
                f"epochs is {self.epochs} and iterations is {self.iterations}; give one of them."
            )
        if (self.data in ("pacs", "folders")) != bool(self.source):
            raise SettingError(
                f'source is {self.source!r} and data is {self.data!r}; data = "pacs" or "folders" '
                "needs a source domain, and no other set has one."
            )
        require(self.side >= 8, "side", self.side, "8 or more")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "2 or more")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(0 < self.momentum < 1, "momentum", self.momentum, "above 0 and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")


def read_recipe(path: str | Path) -> Recipe:
    """A recipe from the [pretrain] table of a TOML file."""
    table = read_toml(path)
    for key in table:
        if key != "pretrain":
            raise unknown_name_error("key", key, ["pretrain"])
    return build_config(Recipe, section(table, "pretrain"), preset=None, of="[pretrain]")
