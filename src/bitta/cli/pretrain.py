"""bitta pretrain: train a source model, or go on from one."""

import argparse
import json
import sys
from pathlib import Path

from bitta.bench.pretrain import Epoch, Paused, checkpoint_path, pretrain
from bitta.bench.recipe import read_recipe
from bitta.cli.signals import stop_on_signal
from bitta.statefile import write_atomically


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("recipe", metavar="CONFIG.toml", help="file with a [pretrain] table")
    parser.add_argument(
        "--data", default="", metavar="DIR", help='(default: where "bitta data get" puts the set)'
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="weights to write, .safetensors; a log goes beside them, .json",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")
    parser.add_argument(
        "--half", action="store_true", help="half precision, in parts of at most 12 MB"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint, if there is one"
    )


def main(arguments: argparse.Namespace) -> int:
    """Train with a line per epoch."""
    recipe, out = read_recipe(arguments.recipe), Path(arguments.out)
    if not arguments.resume and checkpoint_path(out).exists():
        print("starting over; --resume would go on from the checkpoint that is there.")
    with stop_on_signal() as should_stop:
        try:
            card, log = pretrain(
                recipe,
                out=out,
                folder=arguments.data,
                device=arguments.device,
                half=arguments.half,
                resume=arguments.resume,
                on_epoch=_report,
                should_stop=should_stop,
            )
        except Paused as paused:
            print(f"{paused}; the same command with --resume goes on.", file=sys.stderr)
            return 130
    if log:
        write_atomically(out.with_suffix(".json"), (json.dumps(log, indent=1) + "\n").encode())
    for name, accuracy in card.accuracy.items():
        print(f"{name}: {accuracy:.2f} %")
    print(f"weights: {out}" + (f", {log['seconds']:.0f} s of training" if log else ""))
    return 0


def _report(epoch: Epoch, n_epochs: int) -> None:
    accuracy = "" if epoch.accuracy is None else f"  accuracy {epoch.accuracy:.2f} %"
    print(
        f"epoch {epoch.number}/{n_epochs}  loss {epoch.loss:.3f}{accuracy}  {epoch.seconds:.1f} s",
        flush=True,
    )
