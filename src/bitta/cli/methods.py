"""bitta methods: list the methods, or the settings of one."""

import argparse
import json
from importlib.resources import files
from textwrap import fill

from bitta.config import describe_settings
from bitta.methods import METHODS, method_named
from bitta.report import text_table

_HEADER = ["name", "paper", "needs", "trains", "forwards", "backwards"]
_WIDTH = 110


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("name", nargs="?", help="show this method's settings")


def main(arguments: argparse.Namespace) -> int:
    """A line per method, or a line per setting."""
    if arguments.name is None:
        _list()
    else:
        _show(arguments.name)
    return 0


def _list() -> None:
    counted = json.loads((files("bitta") / "assets" / "passes.json").read_text())
    rows = [_HEADER]
    for name, kind in METHODS.items():
        passes = counted["passes"][name]
        costs = [
            f"{passes[way]:.1f} / {passes[f'{way}_asked']:.1f}" for way in ("forwards", "backwards")
        ]
        rows.append([name, kind.paper or "-", kind.needs or "-", kind.trains, *costs])
    print(text_table(rows, left=4))
    costs_are = (
        "forwards, backwards: samples through the model per sample served, without questions / "
        f"with three questions a batch ({counted['protocol']})."
    )
    print(f"\n{fill(costs_are, _WIDTH)}")
    print('"bitta methods NAME" shows what it does, its settings and presets.')


def _show(name: str) -> None:
    kind = method_named(name)
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
