"""Compute source statistics from the images that a model was trained on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bitta.bench.experiment import ModelConfig
from bitta.bench.models import check_fit, device_named, load_source_model
from bitta.bench.training_sets import FOLDER_NAMES, LOADERS
from bitta.config_base import Config, require
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.models import ModelCard
from bitta.nn import WrappedModel
from bitta.seeding import generator
from bitta.source_statistics import SourceStatistics
from bitta.statefile import check_writable
from bitta.streams import (
    COLOUR_FLIPS,
    Domain,
    as_floats,
    coloured_digits,
    data_set_folder,
    embedded_pack,
)

BATCH = 64
"""Batch size, as in EATA's code."""


@dataclass(frozen=True, kw_only=True)
class SourceImagesConfig(Config):
    """Images from which statistics are made, without augmentation."""

    data: str = ""
    """Name of the set; empty for the one in the model card."""
    path: str = ""
    """Folder of the set, if not where "bitta data get" puts it."""
    domain: str = ""
    """pacs, folders: domain that the model was trained on; empty for the one in its card."""
    side: int = 0
    """pacs, folders: side of the images in pixels; 0 for the value in the model card."""
    n: int = 10_000
    """Largest number of images, chosen at random."""
    fisher_samples: int = 2000
    """Number of images for the Fisher information. The default is that of EATA's code."""

    def __post_init__(self) -> None:
        if self.data and self.data not in SETS:
            raise unknown_name_error("data set", self.data, SETS)
        require(self.n >= 1, "n", self.n, "1 or more")
        require(self.fisher_samples >= 0, "fisher_samples", self.fisher_samples, "0 or more")
        require(self.side == 0 or self.side >= 8, "side", self.side, "8 or more, or 0")


def make_statistics(
    model: ModelConfig,
    images: SourceImagesConfig,
    *,
    out: Path,
    device: str = "cpu",
    on_batch: Callable[[int, int], None] = lambda *_: None,
) -> SourceStatistics:
    """Pass training images through the source model and write the statistics to a file.

    `on_batch` is called with the batches done and the total number of batches.
    """
    target_device = device_named(device)
    if out.is_dir():
        raise InputError(f"{str(out)!r} is a folder; name the file to write.")
    check_writable(out.parent)
    source_model, card = load_source_model(model)
    domain = _read_source_images(images, card)
    logits = model.logits or None
    check_fit(
        source_model,
        as_floats(domain.images[torch.arange(len(domain.labels))[:2]]),
        domain.labels,
        logits=logits,
    )
    # Use full precision: the statistics are computed once and used in every later run.
    wrapped = WrappedModel(source_model.to(target_device), logits=logits, precision="float32")
    with closing(wrapped):
        statistics = SourceStatistics.compute(
            wrapped, _read_batches(domain, images.n, on_batch), fisher_samples=images.fisher_samples
        )
    statistics.save(out)
    return statistics


def _read_batches(domain: Domain, n: int, on_batch: Callable[[int, int], None]) -> Iterator[Tensor]:
    order = torch.randperm(len(domain.labels), generator=generator(0, "source statistics"))
    parts = order[:n].split(BATCH)
    for done, rows in enumerate(parts, start=1):
        yield as_floats(domain.images[rows])
        on_batch(done, len(parts))


def _read_source_images(images: SourceImagesConfig, card: ModelCard | None) -> Domain:
    recipe = card.recipe if card else {}
    data = images.data or str(recipe.get("data", ""))
    if data not in SETS:
        raise SettingError(
            f"the model card does not name the training images; give a set: {', '.join(SETS)}."
        )
    if data in EMBEDDED:
        return EMBEDDED[data]()
    known = recipe if recipe.get("data") == data else {}
    domain = images.domain or str(known.get("source", ""))
    if (data in ("pacs", "folders")) != bool(domain):
        raise SettingError(
            f"domain is {domain!r} and set is {data!r}; pacs and folders need the domain that the "
            "model was trained on, and no other set has one."
        )
    if data == "folders" and not images.path:
        raise SettingError("set is 'folders'; give the folder that holds the domains.")
    name = FOLDER_NAMES.get(data, data)
    folder = Path(images.path) if data == "folders" else data_set_folder(name, images.path)
    side = images.side or int(known.get("side", 224))
    return LOADERS[data](folder, domain, side).train


def _cifar10_pack() -> Domain:
    pack = embedded_pack("cifar10")
    return Domain("cifar10", pack.images, pack.labels, pack.classes)


def _digits_pack() -> Domain:
    pack = embedded_pack("digits")
    images, _, noisy = coloured_digits(
        pack.images, pack.labels, colour_flip=COLOUR_FLIPS["source_1"], seed=0
    )
    return Domain("source_1", images, noisy)


EMBEDDED: Mapping[str, Callable[[], Domain]] = {
    "embedded:cifar10": _cifar10_pack,
    "embedded:digits": _digits_pack,
}
"""Images that ship with bitta. They resemble training images, but no model has seen them."""
SETS = (*LOADERS, *EMBEDDED)
