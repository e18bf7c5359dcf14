"""bitta data: fetch sets, and corrupt them."""

import argparse

from bitta.cli import data_get, data_make

_ACTIONS = {"get": data_get, "make-corrupted": data_make}


def configure(parser: argparse.ArgumentParser) -> None:
    """One parser per action; an action is a module with the same two functions as this one."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, module in _ACTIONS.items():
        summary = (module.__doc__ or "").partition(": ")[2].strip().rstrip(".")
        action = actions.add_parser(name, help=summary, description=module.__doc__)
        module.configure(action)
        action.set_defaults(act=module.main)


def main(arguments: argparse.Namespace) -> int:
    """Run the action."""
    return int(arguments.act(arguments))
