"""bitta pretrain: train a source model."""

import argparse
import json
import sys
from pathlib import Path

from bitta.bench.pretrain import (
    EpochRecord,
    TrainingStopped,
    pretrain,
    read_recipe,
    training_checkpoint_path,
)
from bitta.cli.arguments import add_device_argument
from bitta.cli.progress import stop_on_signal
from bitta.statefile import write_atomically


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("recipe", metavar="CONFIG.toml", help="file with a table [pretrain]")
    parser.add_argument(
        "--data",
        default="",
        metavar="DIR",
        help='folder of the data set (default: where "bitta data get" puts it)',
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="weights file to write, .safetensors; a .json log is written beside it",
    )
    add_device_argument(parser)
    parser.add_argument(
        "--half", action="store_true", help="store half precision, in files of at most 12 MB"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoint, if there is one"
    )


def main(arguments: argparse.Namespace) -> int:
    """Train the model and print a line per epoch."""
    recipe, out = read_recipe(arguments.recipe), Path(arguments.out)
    if not arguments.resume and training_checkpoint_path(out).exists():
        print("starting over; use --resume to continue from the existing checkpoint.")
    with stop_on_signal() as should_stop:
        try:
            card, log = pretrain(
                recipe,
                out=out,
                folder=arguments.data,
                device=arguments.device,
                half=arguments.half,
                resume=arguments.resume,
                on_epoch=_print_epoch,
                should_stop=should_stop,
            )
        except TrainingStopped as stopped:
            print(f"{stopped}; run the same command with --resume to continue.", file=sys.stderr)
            return 130
    if log:
        write_atomically(out.with_suffix(".json"), (json.dumps(log, indent=1) + "\n").encode())
    for name, accuracy in card.accuracy.items():
        print(f"{name}: {accuracy:.2f} %")
    print(f"weights: {out}" + (f", {log['seconds']:.0f} s of training" if log else ""))
    return 0


def _print_epoch(epoch: EpochRecord, n_epochs: int) -> None:
    accuracy = "" if epoch.accuracy is None else f"  accuracy {epoch.accuracy:.2f} %"
    print(
        f"epoch {epoch.number}/{n_epochs}  loss {epoch.loss:.3f}{accuracy}  {epoch.seconds:.1f} s",
        flush=True,
    )
