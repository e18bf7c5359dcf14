"""bitta data make-corrupted: corrupt a set and write it in the layout of CIFAR-10-C."""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from bitta.bench.corrupted import SEVERITIES, contact_sheet, make_corrupted
from bitta.bench.streams import listed
from bitta.cli.display import progress
from bitta.corruptions import CORRUPTIONS
from bitta.errors import InputError, SettingError, unknown_name_error
from bitta.streams import Domain, read_cifar10, read_cifar100, read_tiny_imagenet, set_folder

_READERS: Mapping[str, Callable[[Path], Domain]] = {
    "cifar10": partial(read_cifar10, train=False),
    "cifar100": partial(read_cifar100, train=False),
    "tiny-imagenet": partial(read_tiny_imagenet, train=False),
}
_SHEET_IMAGES = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the action."""
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(_READERS)}")
    parser.add_argument("--out", metavar="DIR", help="folder for the arrays")
    parser.add_argument(
        "--severity", default="1,2,3,4,5", metavar="S", help="one or more, such as 5 or 1,3,5"
    )
    parser.add_argument(
        "--corruptions", default="", metavar="NAMES", help="separated by commas (default: all 15)"
    )
    parser.add_argument("--sheet", metavar="FILE.png", help="picture of every corruption")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument(
        "--data", default="", metavar="DIR", help='(default: where "bitta data get" puts the set)'
    )


def main(arguments: argparse.Namespace) -> int:
    """Arrays, a sheet, or both."""
    if arguments.name not in _READERS:
        raise unknown_name_error("set", arguments.name, _READERS)
    if not arguments.out and not arguments.sheet:
        raise SettingError("nothing to make; give --out DIR, --sheet FILE.png or both.")
    severities, names = _severities(arguments.severity), _names(arguments.corruptions)
    clean = _READERS[arguments.name](set_folder(arguments.name, arguments.data))
    if arguments.sheet:
        _sheet(clean, Path(arguments.sheet), arguments.seed)
    if arguments.out:
        _arrays(clean, Path(arguments.out), severities, names, arguments.seed)
    return 0


def _sheet(clean: Domain, path: Path, seed: int) -> None:
    try:
        contact_sheet(clean.images[torch.arange(_SHEET_IMAGES)], path, seed=seed)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written ({error.strerror}).") from None
    print(f"sheet: {path}")


def _arrays(
    clean: Domain, folder: Path, severities: tuple[int, ...], names: tuple[str, ...], seed: int
) -> None:
    done: list[float] = []
    with progress(unit="file") as shown:

        def on_made(name: str, seconds: float) -> None:
            done.append(seconds)
            note = f"{name} {seconds:.1f} s" if seconds else f"{name} was there"
            shown.update("corrupt", len(done), len(names), note)

        try:
            seconds = make_corrupted(
                clean, folder, severities=severities, names=names, seed=seed, on_made=on_made
            )
        except KeyboardInterrupt:
            print("the same command goes on from here.", file=sys.stderr)
            raise
    made, threads = sum(1 for taken in done if taken), torch.get_num_threads()
    levels = f"severit{'y' if len(severities) == 1 else 'ies'} {', '.join(map(str, severities))}"
    if not made:
        print(f"all {len(names)} corruptions were there already")
        return
    print(
        f"{made} corruptions x {len(clean.labels):,} images at {levels} in {seconds:.1f} s on "
        f"{threads} thread{'s' if threads > 1 else ''}, file writing apart"
    )
    print(f"arrays: {folder}")


def _severities(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) in SEVERITIES for part in parts):
        raise SettingError(f"--severity is {text!r}; allowed: 1 to 5, or several such as 1,3,5.")
    return tuple(sorted({int(part) for part in parts}))


def _names(text: str) -> tuple[str, ...]:
    names = listed(text)
    for name in names:
        if name not in CORRUPTIONS:
            raise unknown_name_error("corruption", name, CORRUPTIONS)
    return names or tuple(CORRUPTIONS)
