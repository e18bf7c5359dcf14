"""Count the passes of each method and write them where "bitta methods" reads them.

    python scripts/count_passes.py [METHOD ...]

Methods that are not named keep their counts.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from bitta.bench.speed import AlternatingAnnotator, fill_memories
from bitta.corruptions import corrupt
from bitta.methods import METHODS, get_method
from bitta.models import load_model, weights_path
from bitta.nn import WrappedModel
from bitta.session import Session
from bitta.source_statistics import SourceStatistics
from bitta.statefile import write_atomically
from bitta.streams import embedded_pack

OUT = Path(__file__).parents[1] / "src" / "bitta" / "assets" / "passes.json"
PROTOCOL = (
    "embedded:cifar10-resnet8 on embedded CIFAR-10 images with gaussian noise of severity 5, "
    "in the fortieth batch of 64, with full memories of answers"
)
WEIGHTS = "embedded:cifar10-resnet8"
BATCH_SIZE, N_BATCHES, N_QUERIES, N_CLASSES = 64, 40, 3, 10


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes per sample, without questions and with three per batch."""

    forwards: float
    backwards: float
    forwards_asked: float
    backwards_asked: float


def main() -> None:
    """Count the passes of the chosen methods. Print and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "methods",
        nargs="*",
        metavar="METHOD",
        choices=[*METHODS, []],
        help="method to count (default: all)",
    )
    chosen = parser.parse_args().methods or list(METHODS)
    table = json.loads(OUT.read_text())["passes"] if OUT.exists() else {}
    for name in chosen:
        table[name] = asdict(count_passes(name))
        print(name, table[name], flush=True)
    ordered = {name: table[name] for name in METHODS if name in table}
    text = json.dumps({"protocol": PROTOCOL, "passes": ordered}, indent=1)
    write_atomically(OUT, (text + "\n").encode())


def count_passes(method: str) -> Passes:
    """Run the batches of a method without questions, then with them."""
    forwards, backwards = run_batches(method, n_queries=0)
    return Passes(forwards, backwards, *run_batches(method, n_queries=N_QUERIES))


def run_batches(method: str, *, n_queries: int) -> tuple[float, float]:
    """Return forward and backward passes per sample of the last batch."""
    with weights_path(WEIGHTS) as path:
        model, _ = load_model(path)
    images = corrupted_images().split(BATCH_SIZE)
    with TemporaryDirectory() as folder:
        settings = source_statistics(method, model, Path(folder))
        with Session(
            model, method, n_queries=n_queries, feedback=AlternatingAnnotator(), **settings
        ) as session:
            if n_queries:
                fill_memories(session, images[0], N_CLASSES)
            counts = session.adapter.wrapped.counts
            for number in range(N_BATCHES):
                before = counts.forwards, counts.backwards
                session.step(images[number % len(images)])
            last = counts.forwards - before[0], counts.backwards - before[1]
    return last[0] / BATCH_SIZE, last[1] / BATCH_SIZE


def corrupted_images() -> Tensor:
    """Return embedded images with noise, as floats."""
    clean = embedded_pack("cifar10").images[: BATCH_SIZE * 20]
    return corrupt(clean, "gaussian_noise", severity=5, seed=0).float() / 255


def source_statistics(method: str, model: torch.nn.Module, folder: Path) -> dict[str, Any]:
    """Make source statistics of clean images, if the method needs them."""
    if "source statistics" not in get_method(method).needs:
        return {}
    path = folder / "statistics.safetensors"
    wrapped = WrappedModel(model)
    clean = embedded_pack("cifar10").images[-512:].float() / 255
    SourceStatistics.compute(wrapped, clean.split(BATCH_SIZE)).save(path)
    wrapped.close()
    return {"source_statistics": str(path)}


if __name__ == "__main__":
    main()
