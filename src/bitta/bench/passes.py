"""What a method costs, counted: samples through the model for each sample served."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from bitta.bench.filled import Alternating, fill_memories
from bitta.corruptions import corrupt
from bitta.methods import get_method
from bitta.models import load_model, weights_path
from bitta.nn import WrappedModel
from bitta.session import Session
from bitta.source_statistics import SourceStatistics
from bitta.streams import embedded_pack

PROTOCOL = (
    "embedded:cifar10-resnet8 on embedded CIFAR-10 images with gaussian noise of severity 5, "
    "batches of 64, the fortieth counted, memories of answers full"
)
_WEIGHTS = "embedded:cifar10-resnet8"
_BATCH, _N_BATCHES, _N_QUERIES, _N_CLASSES = 64, 40, 3, 10


@dataclass(frozen=True)
class Passes:
    """Forwards and backwards per sample, without questions and with three in a batch."""

    forwards: float
    backwards: float
    forwards_asked: float
    backwards_asked: float


def count_passes(method: str) -> Passes:
    """Run a few batches and look at the counters."""
    forwards, backwards = _counted(method, n_queries=0)
    return Passes(forwards, backwards, *_counted(method, n_queries=_N_QUERIES))


def _counted(method: str, *, n_queries: int) -> tuple[float, float]:
    with weights_path(_WEIGHTS) as path:
        model, _ = load_model(path)
    images = _images().split(_BATCH)
    with TemporaryDirectory() as folder:
        settings = _statistics(method, model, Path(folder))
        with Session(
            model, method, n_queries=n_queries, feedback=Alternating(), **settings
        ) as session:
            if n_queries:
                fill_memories(session, images[0], _N_CLASSES)
            counts = session.adapter.wrapped.counts
            for number in range(_N_BATCHES):
                before = counts.forwards, counts.backwards
                session.step(images[number % len(images)])
            done = counts.forwards - before[0], counts.backwards - before[1]
    return done[0] / _BATCH, done[1] / _BATCH


def _images() -> Tensor:
    clean = embedded_pack("cifar10").images[: _BATCH * 20]
    return corrupt(clean, "gaussian_noise", severity=5, seed=0).float() / 255


def _statistics(method: str, model: torch.nn.Module, folder: Path) -> dict[str, Any]:
    """Source statistics, for a method that needs some: of clean images."""
    if "source statistics" not in get_method(method).needs:
        return {}
    path = folder / "statistics.safetensors"
    wrapped = WrappedModel(model)
    clean = embedded_pack("cifar10").images[-512:].float() / 255
    SourceStatistics.compute(wrapped, clean.split(_BATCH)).save(path)
    wrapped.close()
    return {"source_statistics": str(path)}
