"""bitta statistics: compute source statistics, which OWTTT needs and EATA can use."""

import argparse
from pathlib import Path

from bitta.bench.experiment import ModelConfig
from bitta.bench.make_source_statistics import SETS, SourceImagesConfig, make_statistics
from bitta.cli.arguments import add_device_argument
from bitta.cli.progress import show_progress
from bitta.config_base import build_config


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--weights", metavar="FILE", help="weights file, or embedded:NAME")
    model.add_argument(
        "--factory", metavar="MODULE:FUNCTION", help="function that returns the model"
    )
    parser.add_argument(
        "--logits",
        metavar="NAME",
        help="attribute of the output that holds the logits, if the output is an object",
    )
    parser.add_argument(
        "--set",
        dest="data",
        metavar="SET",
        help=f"training set: {', '.join(SETS)} (default: the set in the model card)",
    )
    parser.add_argument(
        "--data",
        dest="path",
        metavar="DIR",
        help='folder of the training set (default: where "bitta data get" puts it)',
    )
    parser.add_argument(
        "--domain", metavar="NAME", help="pacs, folders: domain of the training images"
    )
    parser.add_argument(
        "--side", type=int, metavar="N", help="pacs, folders: side of the images in pixels"
    )
    parser.add_argument(
        "--n", type=int, metavar="N", help="maximum number of images (default: 10000)"
    )
    parser.add_argument(
        "--fisher-samples",
        type=int,
        metavar="N",
        help="number of images for the Fisher information (default: 2000)",
    )
    add_device_argument(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write, .safetensors")


def main(arguments: argparse.Namespace) -> int:
    """Compute the statistics, write the file and print a summary."""
    model = build_config(
        ModelConfig, _collect(arguments, _MODEL_OPTIONS), preset=None, of="the model"
    )
    images = build_config(
        SourceImagesConfig, _collect(arguments, _IMAGE_OPTIONS), preset=None, of="the images"
    )
    out = Path(arguments.out)
    with show_progress() as display:
        statistics = make_statistics(
            model,
            images,
            out=out,
            device=arguments.device,
            on_batch=lambda done, total: display.update("statistics", done, total, ""),
        )
    n_classes, n_features = statistics.prototypes.shape
    print(f"{statistics.n} images, {n_classes} classes, {n_features} features")
    unpredicted = [
        str(label) for label in range(n_classes) if not statistics.prototypes[label].any()
    ]
    if unpredicted:
        print(f"no prototype for class {', '.join(unpredicted)}: never predicted; raise --n")
    print(f'statistics: {out}; use them in a method with source_statistics = "{out}"')
    return 0


_MODEL_OPTIONS = ("weights", "factory", "logits")
_IMAGE_OPTIONS = ("data", "path", "domain", "side", "n", "fisher_samples")


def _collect(arguments: argparse.Namespace, names: tuple[str, ...]) -> dict[str, object]:
    """Return the given options by name."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}
