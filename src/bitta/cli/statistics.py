"""bitta statistics: take statistics of training images, for methods that need the source."""

import argparse
from pathlib import Path

from bitta.bench.experiment import ModelConfig
from bitta.bench.source_statistics import SETS, ImagesConfig, make_statistics
from bitta.cli.display import progress
from bitta.config import build_config


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--weights", metavar="FILE", help="weights with a card, or embedded:NAME")
    model.add_argument("--factory", metavar="MODULE:FUNCTION", help="returns the model")
    parser.add_argument("--logits", metavar="NAME", help="attribute of its output, if an object")
    parser.add_argument(
        "--set",
        dest="data",
        metavar="SET",
        help=f"{', '.join(SETS)} (default: what the weights were trained on)",
    )
    parser.add_argument(
        "--data", dest="path", metavar="DIR", help='(default: where "bitta data get" puts the set)'
    )
    parser.add_argument("--domain", metavar="NAME", help="pacs, folders: the one trained on")
    parser.add_argument("--side", type=int, metavar="N", help="pacs, folders: of the pictures")
    parser.add_argument("--n", type=int, metavar="N", help="images at most (default: 10000)")
    parser.add_argument(
        "--fisher-samples",
        type=int,
        metavar="N",
        help="images for the Fisher information (default: 2000)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write, .safetensors")


def main(arguments: argparse.Namespace) -> int:
    """Look at the images, write the file, say what is in it."""
    model = build_config(ModelConfig, _given(arguments, _MODEL), preset=None, of="the model")
    images = build_config(ImagesConfig, _given(arguments, _IMAGES), preset=None, of="the images")
    out = Path(arguments.out)
    with progress() as shown:
        found = make_statistics(
            model,
            images,
            out=out,
            device=arguments.device,
            on_batch=lambda done, total: shown.update("statistics", done, total, ""),
        )
    n_classes, n_features = found.prototypes.shape
    print(f"{found.n} images, {n_classes} classes, {n_features} features")
    never = [str(label) for label in range(n_classes) if not found.prototypes[label].any()]
    if never:
        print(f"never predicted, so without a prototype: class {', '.join(never)}; raise --n")
    print(f'statistics: {out}; a method takes them as source_statistics = "{out}"')
    return 0


_MODEL = ("weights", "factory", "logits")
_IMAGES = ("data", "path", "domain", "side", "n", "fisher_samples")


def _given(arguments: argparse.Namespace, names: tuple[str, ...]) -> dict[str, object]:
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
