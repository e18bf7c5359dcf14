"""What methods need beyond a model and a stream, for the toy model."""

from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from bitta.adapter import Adapter
from bitta.methods import method_named
from bitta.nn import Network
from bitta.seeding import generator
from bitta.statistics import SourceStatistics
from bitta.testing.models import Norm, toy_classifier


def needed_settings(
    method: str | type[Adapter[Any]], norm: Norm, folder: str | Path
) -> dict[str, Any]:
    """Settings without which a method cannot work on the toy model; files go into a folder."""
    kind = method_named(method) if isinstance(method, str) else method
    if "source statistics" not in kind.needs:
        return {}
    return {"source_statistics": toy_statistics(norm, folder)}


def toy_statistics(norm: Norm, folder: str | Path) -> str:
    """The path of source statistics of `toy_classifier(norm)`, over random images."""
    path = Path(folder) / f"toy-{norm}.safetensors"
    if not path.exists():
        images = torch.rand(64, 3, 8, 8, generator=generator(7, "toy statistics"))
        with closing(Network(toy_classifier(norm), eager=True)) as network:
            SourceStatistics.of(network, images.split(16)).save(path)
    return str(path)
