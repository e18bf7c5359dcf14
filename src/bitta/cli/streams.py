"""bitta streams: list the kinds of streams and the folder of the data sets."""

import argparse

from bitta.bench.datasets import DATASET_KINDS
from bitta.bench.streams import StreamConfig
from bitta.config_base import describe_settings
from bitta.streams import ORDERS, data_folder


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--settings", action="store_true", help="list the settings of [stream] instead"
    )


def main(arguments: argparse.Namespace) -> int:
    """Print a line per kind, or a line per setting."""
    if arguments.settings:
        for setting in describe_settings(StreamConfig):
            default = "" if setting.default is None else str(setting.default)
            print(f"{setting.name:<12} {default:<10} {setting.meaning}".rstrip())
        return 0
    for name, kind in DATASET_KINDS.items():
        print(f"{name:<16} {kind.summary}")
    print(f"\norders: {', '.join(ORDERS)}, or any sequence; labels: iid, dirichlet")
    print(f"data sets are read from {str(data_folder())!r}, or from stream.path.")
    print('"bitta streams --settings" lists every setting of [stream].')
    return 0
