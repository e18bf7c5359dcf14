"""Arguments that several commands share."""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from bitta.errors import InputError, SettingError
from bitta.nn import Precision

if TYPE_CHECKING:  # the packages of the server are optional dependencies
    from bitta.server.store import Store


def add_execution_arguments(parser: argparse.ArgumentParser, *, overrides_help: str) -> None:
    """Add --set, --out and the arguments for device, precision and checkpoints."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="a.b=c",
        help=overrides_help,
    )
    parser.add_argument(
        "--out",
        default="bitta-runs",
        metavar="DIR",
        help="folder for the results (default: bitta-runs)",
    )
    add_device_argument(parser)
    add_precision_arguments(parser)
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="time between checkpoints in seconds (default: 30)",
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument(
        "--device", default="cpu", help="device: cpu, cuda, cuda:1 ... (default: cpu)"
    )


def add_precision_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --eager and --precision."""
    parser.add_argument(
        "--eager",
        action="store_true",
        help="run without CUDA graphs, and with float32 unless --precision says otherwise",
    )
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="auto",
        help="precision of convolutions and matrix products (default: auto, the fastest safe one)",
    )


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --data-dir and --database, which name the store of a server."""
    parser.add_argument(
        "--data-dir",
        default="bitta-data",
        metavar="DIR",
        help="data folder of the server (default: bitta-data)",
    )
    parser.add_argument(
        "--database",
        metavar="URL",
        help="database of the server (default: SQLite in the data folder)",
    )


def open_store(arguments: argparse.Namespace, *, create: bool) -> "Store":
    """Open the store of a server. The server may be running at the same time."""
    try:
        from bitta.server.store import Store  # noqa: PLC0415 (an optional dependency)
    except ModuleNotFoundError as error:
        raise missing_server_package_error(error) from None
    return Store.open(arguments.database, Path(arguments.data_dir), exclusive=False, create=create)


def missing_server_package_error(error: ModuleNotFoundError) -> InputError:
    """Return the error for a missing package of the server."""
    return InputError(f'{error.name} is not installed; run "pip install bitta[serve]" first.')


def parse_input_shape(text: str | None) -> tuple[int, int, int] | None:
    """Return channels, height and width from text such as 3x224x224."""
    if text is None:
        return None
    with suppress(ValueError):
        channels, height, width = (int(part) for part in text.lower().split("x"))
        if min(channels, height, width) > 0:
            return channels, height, width
    raise SettingError(
        f"--input-shape is {text!r}; allowed: channels x height x width, such as 3x224x224."
    )
