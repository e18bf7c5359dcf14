"""bitta methods: list the methods, or the settings of one method."""

import argparse
import json
from importlib.resources import files
from textwrap import fill

from bitta.config_base import describe_settings
from bitta.methods import METHODS, get_method
from bitta.report import text_table

_HEADER = ["name", "paper", "needs", "trains", "forwards", "backwards"]
_WIDTH = 110


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("name", nargs="?", help="show the settings of this method")


def main(arguments: argparse.Namespace) -> int:
    """Print a line per method, or a line per setting of one method."""
    if arguments.name is None:
        _list_methods()
    else:
        _show_method(arguments.name)
    return 0


def _list_methods() -> None:
    costs = json.loads((files("bitta") / "assets" / "passes.json").read_text())
    rows = [_HEADER]
    for name, kind in METHODS.items():
        passes = costs["passes"].get(name)  # None until scripts/count_passes.py has counted them.
        cells = [
            f"{passes[direction]:.1f} / {passes[f'{direction}_asked']:.1f}" if passes else "-"
            for direction in ("forwards", "backwards")
        ]
        rows.append([name, kind.paper or "-", kind.needs or "-", kind.trains, *cells])
    print(text_table(rows, n_text_columns=4))
    explanation = (
        "forwards, backwards: samples that pass through the model per served sample, without "
        f"questions / with three questions per batch ({costs['protocol']})."
    )
    print(f"\n{fill(explanation, _WIDTH)}")
    print('"bitta methods NAME" shows the settings and presets of a method.')


def _show_method(name: str) -> None:
    kind = get_method(name)
    print(f"{name}: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}")
    for setting in describe_settings(kind.Config):
        start = f"  {setting.name:<17} {setting.default!s:<15} "
        print(fill(setting.meaning, _WIDTH, initial_indent=start, subsequent_indent=" " * 36))
    for preset, values in kind.Config.presets.items():
        changed = ", ".join(f"{name} = {value}" for name, value in values.items())
        print(
            fill(
                f"preset {preset}: {changed}",
                _WIDTH,
                initial_indent="  ",
                subsequent_indent=" " * 4,
            )
        )
