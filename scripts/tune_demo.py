"""Choose the settings of the demos on images and seeds that the demos do not use.

python scripts/tune_demo.py digits MNIST_FOLDER [--seeds 10 11 12]
python scripts/tune_demo.py corruptions CIFAR_FOLDER [--seeds 10 11 12]

digits: 5,760 of the digits that the source model was trained on, coloured as in the target domain.
Neighbouring seeds use different digits. corruptions: CIFAR-10 test images 2,000 to 3,999. The
script prints a line per seed and setting.
"""

import argparse
from itertools import product

import torch

from bitta import Session, Simulated
from bitta.bench.experiment import ModelConfig
from bitta.bench.models import load_source_model
from bitta.corruptions import corrupt
from bitta.streams import COLOUR_FLIPS, Domain, Stream, coloured_digits, read_cifar10, read_mnist

GRIDS = {
    "digits": {"lr": (3e-3, 1e-2), "beta": (0.0, 0.3, 1.0)},
    "corruptions": {"lr": (1e-4, 3e-4), "bn_momentum": (0.7, 1.0), "dropout": (0.1,)},
}
MODELS = {"digits": "embedded:digits-resnet8", "corruptions": "embedded:cifar10-resnet8"}


def main() -> None:
    """Run every combination of settings with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", choices=list(GRIDS), help="demo to tune")
    parser.add_argument("folder", help="folder of the data set")
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[10, 11, 12],
        help="seeds of the runs (default: 10 11 12)",
    )
    arguments = parser.parse_args()
    model = load_source_model(ModelConfig(weights=MODELS[arguments.demo]))[0]
    grid = GRIDS[arguments.demo]
    for seed in arguments.seeds:
        stream = {"digits": digits, "corruptions": corruptions}[arguments.demo](
            arguments.folder, seed
        )
        for values in product(*grid.values()):
            settings = dict(zip(grid, values, strict=True))
            annotator = Simulated(stream.truth, seed=seed)
            n_correct = 0
            with Session(
                model, copy=True, feedback=annotator, seed=seed, epochs=1, **settings
            ) as session:
                for batch in stream.batches():
                    labels = session.step(batch.inputs)[0].labels
                    n_correct += int((labels == batch.truth).sum())
            print(seed, settings, f"{100 * n_correct / len(stream.truth):.1f} %", flush=True)


def digits(folder: str, seed: int) -> Stream:
    """Colour digits of the source as in the target domain."""
    images, numerals = read_mnist(folder, train=True)
    rows = slice(6000 * (seed % 6), 6000 * (seed % 6) + 5760)
    coloured, clean, _ = coloured_digits(
        images[rows], numerals[rows], colour_flip=COLOUR_FLIPS["target"], seed=seed
    )
    return Stream([Domain("target", coloured, clean)], seed=seed)


def corruptions(folder: str, seed: int) -> Stream:
    """Corrupt test images that are not embedded in the package."""
    test = read_cifar10(folder, train=False)
    domains = []
    names = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
    for index, name in enumerate(names):
        start = 2000 + 1000 * (index % 2)
        rows = torch.arange(start, start + 1000)
        images = corrupt(test.images[rows], name, seed=seed)
        domains.append(Domain(name, images, test.labels[rows]))
    return Stream(domains, seed=seed)


if __name__ == "__main__":
    main()
