"""bitta pretrain: train a source model."""

import argparse

from bitta.bench.pretrain import pretrain, read_recipe


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="CONFIG.toml", help="file with a [pretrain] table")
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="folder of the set's own files"
    )
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="weights to write, safetensors"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")


def main(arguments: argparse.Namespace) -> int:
    """Train with a line per epoch."""
    recipe = read_recipe(arguments.recipe)

    def report(epoch: int, loss: float, accuracy: float) -> None:
        print(
            f"epoch {epoch}/{recipe.epochs}  loss {loss:.3f}  accuracy {accuracy:.2f} %", flush=True
        )

    card = pretrain(
        recipe, folder=arguments.data, out=arguments.out, device=arguments.device, on_epoch=report
    )
    for name, accuracy in card.accuracy.items():
        print(f"{name}: {accuracy:.2f} %")
    print(f"weights: {arguments.out}")
    return 0
