"""bitta models: list weights files, show one, or import a checkpoint."""

import argparse
import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from bitta.config_base import require
from bitta.errors import InputError
from bitta.models import (
    ARCHITECTURES,
    ModelCard,
    WeightsEntry,
    check_weights_path,
    describe_weights,
    import_checkpoint,
    list_weights,
    read_card,
    save_model,
    weights_path,
)
from bitta.statefile import check_writable

_SOURCE_WIDTH = 48
_CLASSES_SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--folder", metavar="DIR", help="folder with weights files (default: weights)"
    )
    actions = parser.add_subparsers(dest="action", metavar="show | import")
    show = actions.add_parser("show", help="print the model card of a weights file")
    show.add_argument("file", metavar="FILE", help="weights file, one part of it, or embedded:NAME")
    _configure_import(actions.add_parser("import", help="convert a checkpoint to a weights file"))


def main(arguments: argparse.Namespace) -> int:
    """List weights files, print one model card, or import a checkpoint."""
    if arguments.action == "show":
        return _show(arguments.file)
    if arguments.action == "import":
        return _import(arguments)
    if arguments.folder is not None and not Path(arguments.folder).is_dir():
        raise InputError(f"there is no folder {arguments.folder!r}; give an existing one.")
    entries = list_weights(arguments.folder or "weights")
    rows: list[tuple[str, ...]] = [
        ("name", "architecture", "classes", "accuracy", "size", "source")
    ]
    rows += [_table_row(entry) for entry in entries if entry.card is not None]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    for entry in entries:
        if entry.card is None:
            print(f"\nnot usable: {entry.problem}")
    print('\n"bitta models show NAME" shows one of them; model.weights = "NAME" uses it in a run.')
    return 0


def _table_row(entry: WeightsEntry) -> tuple[str, ...]:
    card = entry.card
    assert card is not None
    first = next(iter(card.accuracy.items()), None)
    accuracy = "-" if first is None else f"{first[1]:.1f} % {first[0]}"
    source = card.source or "-"
    if len(source) > _SOURCE_WIDTH:
        source = source[: _SOURCE_WIDTH - 3].rstrip() + "..."
    return (
        entry.name,
        card.architecture,
        str(len(card.classes)),
        accuracy,
        _format_size(entry),
        source,
    )


def _show(name: str) -> int:
    with weights_path(name) as path:
        card = read_card(path)
        entry = describe_weights(path, name=name)
    print(f"{name}: {card.architecture}, {_format_size(entry)}")
    for field, text in _card_lines(card):
        print(f"  {field:<14} {text}")
    return 0


def _card_lines(card: ModelCard) -> list[tuple[str, str]]:
    """Return the fields of a card that are not empty."""
    first_classes = ", ".join(card.classes[:_CLASSES_SHOWN])
    n_more = len(card.classes) - _CLASSES_SHOWN
    lines = [
        ("input", " x ".join(map(str, card.input_shape))),
        ("preprocessing", _format_pairs(card.preprocessing)),
        (
            "classes",
            f"{len(card.classes)}: {first_classes}" + (f" and {n_more} more" if n_more > 0 else ""),
        ),
        ("arguments", _format_pairs(card.arguments)),
        *(("accuracy", f"{percent:.2f} % {name}") for name, percent in card.accuracy.items()),
        ("source", card.source),
        ("recipe", _format_pairs(card.recipe)),
        ("terms", card.terms),
    ]
    return [(field, text) for field, text in lines if text]


def _configure_import(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="checkpoint: a state dict of torch.save, or safetensors")
    add("--architecture", required=True, metavar="NAME", help=f"one of {', '.join(ARCHITECTURES)}")
    add(
        "--classes",
        required=True,
        metavar="FILE|N",
        help="file with a class name per line or a JSON list, or the number of classes",
    )
    add("--mean", required=True, nargs="+", type=float, metavar="X",
        help="mean of each channel, for pixels in [0, 1]")  # fmt: skip
    add("--std", required=True, nargs="+", type=float, metavar="X",
        help="standard deviation of each channel, for pixels in [0, 1]")  # fmt: skip
    add("--resize", type=int, metavar="N", help="resize the shorter side to N before the crop")
    add("--crop", type=int, metavar="N", help="side of the square that is cut from the centre")
    add("--size", type=int, metavar="N", help="side of the images if there is no crop")
    add("--source", default="", help="training data, a text for the model card")
    add("--terms", default="", help="terms of use, a text for the model card")
    add("--half", action="store_true", help="store the weights in half precision")
    add("--part-bytes", type=int, metavar="N", help="split into files of at most N bytes")
    add("--out", required=True, metavar="FILE", help="weights file to write, .safetensors")


def _import(arguments: argparse.Namespace) -> int:
    check_weights_path(Path(arguments.out))
    for name in ("mean", "std"):
        values = getattr(arguments, name)
        is_valid = all(isfinite(value) and 0 <= value <= 1 for value in values)
        require(is_valid, f"--{name}", values, "0 to 1, for pixels in [0, 1]")
    require(all(arguments.std), "--std", arguments.std, "above 0")
    if Path(arguments.out).resolve() == Path(arguments.file).resolve():
        raise InputError("--out is the checkpoint itself; give another file name.")
    check_writable(Path(arguments.out).parent)
    sides = {"resize": arguments.resize, "crop": arguments.crop}
    imported = import_checkpoint(
        arguments.file,
        arguments.architecture,
        classes=_read_class_names(arguments.classes),
        mean=arguments.mean,
        std=arguments.std,
        size=arguments.size,
        preprocessing={name: side for name, side in sides.items() if side is not None},
        source=arguments.source,
        terms=arguments.terms,
    )
    for note in imported.notes:
        print(f"note: {note}.")
    written = save_model(
        arguments.out,
        imported.model,
        imported.card,
        half=arguments.half,
        part_bytes=arguments.part_bytes,
    )
    print(f"weights: {', '.join(map(str, written))}")
    return 0


def _read_class_names(text: str) -> list[str]:
    """Return class names from a file, or the numbers from 0 as names."""
    if text.isdecimal() and int(text) > 0:
        return [str(number) for number in range(int(text))]
    try:
        content = Path(text).read_text(encoding="utf-8")
        names = json.loads(content) if text.endswith(".json") else content.split("\n")
    except (OSError, ValueError) as error:
        raise InputError(
            f"--classes is {text!r}, which is neither a number nor a readable file ({error}); give "
            "a file with a name per line, a JSON list, or the number of classes."
        ) from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"--classes {text!r} does not hold a list of names; give a list of strings."
        )
    return [name.strip() for name in names if name.strip()]


def _format_size(entry: WeightsEntry) -> str:
    if not entry.n_files:
        return "log only"
    size = f"{entry.n_bytes / 1e6:.1f} MB"
    return size if entry.n_files == 1 else f"{size} in {entry.n_files} parts"


def _format_pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
