"""Choose the settings of `bitta demo` on digits and seeds that the demo never shows.

python scripts/tune_demo.py --mnist MNIST_FOLDER [--seeds 10 11 12]

Each seed takes its own 6,000 of the 40,000 digits the source model was trained on, coloured as in
the target. One line per setting and seed.
"""

import argparse
from itertools import product

from bitta import Session, Simulated
from bitta.bench.experiment import ModelConfig
from bitta.bench.models import build_source
from bitta.streams import CHANCES, Domain, Stream, coloured_digits, read_mnist

GRID = {"lr": (3e-3, 1e-2), "beta": (0.0, 0.3, 1.0), "dropout": (0.3,)}


def main() -> None:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", required=True, help="folder with the idx files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    arguments = parser.parse_args()
    digits, numerals = read_mnist(arguments.mnist, train=True)
    model = build_source(ModelConfig(weights="embedded:digits-resnet8"))
    for seed in arguments.seeds:
        rows = slice(6000 * (seed % 6), 6000 * (seed % 6 + 1))
        images, clean, _ = coloured_digits(
            digits[rows], numerals[rows], colour_flip=CHANCES["target"], seed=seed
        )
        stream = Stream([Domain("target", images[:5760], clean[:5760])], seed=seed)
        for values in product(*GRID.values()):
            settings = dict(zip(GRID, values, strict=True))
            right = []
            annotator = Simulated(stream.truth, seed=seed)
            with Session(
                model, copy=True, feedback=annotator, seed=seed, epochs=1, **settings
            ) as session:
                for batch in stream.batches():
                    labels = session.step(batch.inputs)[0].labels
                    right.append((labels == batch.truth).float().mean().item())
            print(seed, settings, f"{100 * sum(right) / len(right):.1f} %", flush=True)


if __name__ == "__main__":
    main()
