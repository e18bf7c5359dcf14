"""bitta keys: make, list and revoke the API keys of a feedback server."""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bitta.errors import InputError

if TYPE_CHECKING:
    from bitta.server.store import Store

_ROLES = {
    "client": "predicts, and answers about its own predictions",
    "annotator": "is asked, and answers",
    "operator": "may do everything",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="create | list | revoke")
    create = actions.add_parser("create", help="make a key; it is shown this once")
    roles = "; ".join(f"{role}: {meaning}" for role, meaning in _ROLES.items())
    create.add_argument("--role", required=True, choices=tuple(_ROLES), help=roles)
    create.add_argument("--name", required=True, help="whose it is")
    listed = actions.add_parser("list", help="show keys, without what cannot be shown again")
    revoke = actions.add_parser("revoke", help="end a key; a running server knows within seconds")
    revoke.add_argument("id", metavar="ID", help='as "bitta keys list" shows it')
    for action in (create, listed, revoke):
        action.add_argument(
            "--data-dir", default="bitta-data", metavar="DIR", help="the server's data folder"
        )
        action.add_argument(
            "--database", metavar="URL", help="the server's database (default: in the data folder)"
        )


def main(arguments: argparse.Namespace) -> int:
    """Works beside a server that runs: only the database is opened."""
    with _opened(arguments) as store:
        if arguments.action == "create":
            return _create(store, arguments.role, arguments.name)
        if arguments.action == "revoke":
            return _revoke(store, arguments.id)
        return _list(store)


def _opened(arguments: argparse.Namespace) -> "Store":
    try:
        from bitta.server.store import Store  # noqa: PLC0415 (an extra that may not be there)
    except ModuleNotFoundError as error:
        raise InputError(
            f'{error.name} is not installed; run "pip install bitta[serve]" first.'
        ) from None
    make = arguments.action == "create"
    return Store.open(arguments.database, Path(arguments.data_dir), alone=False, make=make)


def _create(store: "Store", role: str, name: str) -> int:
    made = store.keys.create(role, name)  # type: ignore[arg-type] # argparse has checked it
    print(made.token)
    print(f"key {made.record.id} of {name}, {role}; this token is not shown again.")
    return 0


def _revoke(store: "Store", key_id: str) -> int:
    if not store.keys.revoke(key_id):
        raise InputError(f'there is no valid key {key_id!r}; "bitta keys list" shows them.')
    print(f"revoked {key_id}.")
    return 0


def _list(store: "Store") -> int:
    keys = store.keys.list()
    rows = [("id", "role", "created", "revoked", "name")] + [
        (key.id, key.role, _day(key.created_at), _day(key.revoked_at), key.name) for key in keys
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    return 0


def _day(at: int | None) -> str:
    return "-" if at is None else f"{datetime.fromtimestamp(at / 1e6, UTC):%Y-%m-%d %H:%M}"
