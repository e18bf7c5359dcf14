"""bitta models: list weights, show what one file is, bring in a checkpoint from elsewhere."""

import argparse
import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from bitta.config import require
from bitta.errors import InputError
from bitta.models import (
    ARCHITECTURES,
    Entry,
    ModelCard,
    catalogue,
    check_target,
    entry_of,
    import_checkpoint,
    read_card,
    save_model,
    weights_at,
)
from bitta.statefile import check_writable

_SOURCE_WIDTH = 48
_CLASSES_SHOWN = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--folder", metavar="DIR", help="where to look for weights (default: weights)"
    )
    actions = parser.add_subparsers(dest="action", metavar="show | import")
    show = actions.add_parser("show", help="print the card of one file")
    show.add_argument("file", metavar="FILE", help="weights, one of their parts, or embedded:NAME")
    _configure_import(actions.add_parser("import", help="give a checkpoint a card"))


def main(arguments: argparse.Namespace) -> int:
    """A table; or one card; or a checkpoint turned into weights."""
    if arguments.action == "show":
        return _show(arguments.file)
    if arguments.action == "import":
        return _import(arguments)
    if arguments.folder is not None and not Path(arguments.folder).is_dir():
        raise InputError(f"there is no folder {arguments.folder!r}.")
    entries = catalogue(arguments.folder or "weights")
    rows: list[tuple[str, ...]] = [
        ("name", "architecture", "classes", "accuracy", "size", "source")
    ]
    rows += [_row(entry) for entry in entries if entry.card is not None]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    for entry in entries:
        if entry.card is None:
            print(f"\nnot usable: {entry.problem}")
    print('\n"bitta models show NAME" shows one; model.weights = "NAME" uses it.')
    return 0


def _row(entry: Entry) -> tuple[str, ...]:
    card = entry.card
    assert card is not None
    first = next(iter(card.accuracy.items()), None)
    accuracy = "-" if first is None else f"{first[1]:.1f} % {first[0]}"
    source = card.source or "-"
    if len(source) > _SOURCE_WIDTH:
        source = source[: _SOURCE_WIDTH - 3].rstrip() + "..."
    return entry.name, card.architecture, str(len(card.classes)), accuracy, _size(entry), source


def _show(name: str) -> int:
    with weights_at(name) as path:
        card = read_card(path)
        entry = entry_of(path, name=name)
    print(f"{name}: {card.architecture}, {_size(entry)}")
    for what, text in _lines(card):
        print(f"  {what:<14} {text}")
    return 0


def _lines(card: ModelCard) -> list[tuple[str, str]]:
    """What the card says, without what it leaves open."""
    shown = ", ".join(card.classes[:_CLASSES_SHOWN])
    more = len(card.classes) - _CLASSES_SHOWN
    lines = [
        ("input", " x ".join(map(str, card.input_shape))),
        ("preprocessing", _pairs(card.preprocessing)),
        ("classes", f"{len(card.classes)}: {shown}" + (f" and {more} more" if more > 0 else "")),
        ("arguments", _pairs(card.arguments)),
        *(("accuracy", f"{percent:.2f} % {name}") for name, percent in card.accuracy.items()),
        ("source", card.source),
        ("recipe", _pairs(card.recipe)),
        ("terms", card.terms),
    ]
    return [(what, text) for what, text in lines if text]


def _configure_import(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="a state dict of torch.save, or safetensors")
    add("--architecture", required=True, metavar="NAME", help=", ".join(ARCHITECTURES))
    add("--classes", required=True, metavar="FILE|N", help="a name per line, a JSON list, or N")
    add("--mean", required=True, nargs="+", type=float, metavar="X", help="of pixels in [0, 1]")
    add("--std", required=True, nargs="+", type=float, metavar="X", help="of pixels in [0, 1]")
    add("--resize", type=int, metavar="N", help="shorter side of pictures before the crop")
    add("--crop", type=int, metavar="N", help="side of the square cut from their middle")
    add("--size", type=int, metavar="N", help="side of the images, where there is no crop")
    add("--source", default="", help="what it was trained on")
    add("--terms", default="", help="under which terms it may be used")
    add("--half", action="store_true", help="store half precision")
    add("--part-bytes", type=int, metavar="N", help="split into files of at most N bytes")
    add("--out", required=True, metavar="FILE", help="weights to write, .safetensors")


def _import(arguments: argparse.Namespace) -> int:
    check_target(Path(arguments.out))
    for name in ("mean", "std"):
        values = getattr(arguments, name)
        fine = all(isfinite(value) and 0 <= value <= 1 for value in values)
        require(fine, f"--{name}", values, "0 to 1, as of pixels in [0, 1]")
    require(all(arguments.std), "--std", arguments.std, "above 0")
    if Path(arguments.out).resolve() == Path(arguments.file).resolve():
        raise InputError("--out is the checkpoint itself; give another name.")
    check_writable(Path(arguments.out).parent)
    steps = {"resize": arguments.resize, "crop": arguments.crop}
    imported = import_checkpoint(
        arguments.file,
        arguments.architecture,
        classes=_class_names(arguments.classes),
        mean=arguments.mean,
        std=arguments.std,
        size=arguments.size,
        preprocessing={name: side for name, side in steps.items() if side is not None},
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


def _class_names(text: str) -> list[str]:
    """Names from a file, or numbers as names."""
    if text.isdecimal() and int(text) > 0:
        return [str(number) for number in range(int(text))]
    try:
        content = Path(text).read_text(encoding="utf-8")
        names = json.loads(content) if text.endswith(".json") else content.split("\n")
    except (OSError, ValueError) as error:
        raise InputError(f"--classes {text!r} is no number and no list ({error}).") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"--classes {text!r} holds something else than a list of names.")
    return [name.strip() for name in names if name.strip()]


def _size(entry: Entry) -> str:
    if not entry.n_files:
        return "log only"
    size = f"{entry.n_bytes / 1e6:.1f} MB"
    return size if entry.n_files == 1 else f"{size} in {entry.n_files} parts"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())
