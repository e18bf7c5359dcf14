"""Arguments of commands that run experiments: what is changed, where, and on which path."""

import argparse
from typing import get_args

from bitta.nn import Precision


def add_execution(parser: argparse.ArgumentParser, *, overrides: str) -> None:
    """--set (explained by `overrides`), --out, --device, --eager, --precision."""
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help=overrides
    )
    parser.add_argument("--out", default="bitta-runs", metavar="DIR", help="(default: bitta-runs)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 ... (default: cpu)")
    parser.add_argument(
        "--eager", action="store_true", help="the plain path: no CUDA graphs, float32 by default"
    )
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="auto",
        help="of convolutions and matrix products (default: auto, the fastest that is safe)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="how much work a crash may cost (default: 30)",
    )
