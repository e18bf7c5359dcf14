"""bitta methods: list the methods, or the settings of one."""

import argparse

from bitta.config import settings_of
from bitta.methods import METHODS, method_named


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("name", nargs="?", help="show this method's settings")


def main(arguments: argparse.Namespace) -> int:
    """A line per method, or a line per setting."""
    if arguments.name is None:
        for name, kind in METHODS.items():
            learns = f"asks {kind.n_queries}" if kind.learns_from_feedback else "no feedback"
            print(f"{name:<10} {_summary(kind):<76} {learns:<12} {kind.paper}".rstrip())
        print('\n"bitta methods NAME" shows its settings and presets.')
        return 0
    kind = method_named(arguments.name)
    print(f"{arguments.name}: {_summary(kind)}")
    for setting in settings_of(kind.Config):
        print(f"  {setting.name:<17} {setting.default!s:<15} {setting.meaning}")
    for preset, values in kind.Config.presets.items():
        changed = ", ".join(f"{name} = {value}" for name, value in values.items())
        print(f"  preset {preset}: {changed}")
    return 0


def _summary(kind: type) -> str:
    return (kind.__doc__ or "").splitlines()[0].rstrip(".")
