"""Statistics of the source, over images that a model was trained on."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bitta.bench.device import device_named
from bitta.bench.experiment import ModelConfig
from bitta.bench.models import build_source, check_fit
from bitta.bench.training_sets import FOLDER_NAMES, LOADERS
from bitta.config import Config, require
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
    embedded_pack,
    set_folder,
)

BATCH = 64
"""Images at a time, as EATA's authors take them."""


@dataclass(frozen=True, kw_only=True)
class ImagesConfig(Config):
    """Which images statistics are taken of; never augmented."""

    data: str = ""
    """Which set; empty for the one that the model's card names."""
    path: str = ""
    """Where its files lie, if not where "bitta data get" puts them."""
    domain: str = ""
    """pacs, folders: the domain that the model was trained on; empty for what its card says."""
    side: int = 0
    """pacs, folders: side of the pictures in pixels; 0 for what the model's card says."""
    n: int = 10_000
    """At most so many images, chosen at random."""
    fisher_samples: int = 2000
    """So many of them are looked at for the Fisher information, as EATA's authors do."""

    def __post_init__(self) -> None:
        if self.data and self.data not in SETS:
            raise unknown_name_error("set", self.data, SETS)
        require(self.n >= 1, "n", self.n, "1 or more")
        require(self.fisher_samples >= 0, "fisher_samples", self.fisher_samples, "0 or more")
        require(self.side == 0 or self.side >= 8, "side", self.side, "8 or more")


def make_statistics(
    model: ModelConfig,
    images: ImagesConfig,
    *,
    out: Path,
    device: str = "cpu",
    on_batch: Callable[[int, int], None] = lambda *_: None,
) -> SourceStatistics:
    """Look at images of the source and write what is known of them then.

    `on_batch` is told how many batches are done, of how many.
    """
    place = device_named(device)
    if out.is_dir():
        raise InputError(f"{str(out)!r} is a folder; name the file to write.")
    check_writable(out.parent)
    network_model, card = build_source(model)
    domain = _source_images(images, card)
    logits = model.logits or None
    check_fit(
        network_model,
        as_floats(domain.images[torch.arange(len(domain.labels))[:2]]),
        domain.labels,
        logits=logits,
    )
    # In full precision: they are made once, and compared with for as long as the model serves.
    wrapped = WrappedModel(network_model.to(place), logits=logits, precision="float32")
    with closing(wrapped):
        found = SourceStatistics.compute(
            wrapped, _batches(domain, images.n, on_batch), fisher_samples=images.fisher_samples
        )
    found.save(out)
    return found


def _batches(domain: Domain, n: int, on_batch: Callable[[int, int], None]) -> Iterator[Tensor]:
    order = torch.randperm(len(domain.labels), generator=generator(0, "source statistics"))
    parts = order[:n].split(BATCH)
    for done, rows in enumerate(parts, start=1):
        yield as_floats(domain.images[rows])
        on_batch(done, len(parts))


def _source_images(images: ImagesConfig, card: ModelCard | None) -> Domain:
    trained = card.recipe if card else {}
    data = images.data or str(trained.get("data", ""))
    if data not in SETS:
        raise SettingError(
            f"the model does not say which images it was trained on; name a set: {', '.join(SETS)}."
        )
    if data in EMBEDDED:
        return EMBEDDED[data]()
    known = trained if trained.get("data") == data else {}
    domain = images.domain or str(known.get("source", ""))
    if (data in ("pacs", "folders")) != bool(domain):
        raise SettingError(
            f"domain is {domain!r} and set is {data!r}; pacs and folders need the domain that the "
            "model was trained on, and no other set has one."
        )
    if data == "folders" and not images.path:
        raise SettingError("set is 'folders'; give the folder that holds the domains.")
    name = FOLDER_NAMES.get(data, data)
    folder = Path(images.path) if data == "folders" else set_folder(name, images.path)
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
"""Images that ship with bitta: like the source's, though no model was trained on them."""
SETS = (*LOADERS, *EMBEDDED)
