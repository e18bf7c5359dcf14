"""bitta keys: create, list and revoke the API keys of a feedback server."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bitta.cli.arguments import add_store_arguments, open_store
from bitta.errors import InputError

if TYPE_CHECKING:
    from bitta.server.store import Store

_ROLES = {
    "client": "predicts, and answers about its own predictions",
    "annotator": "receives questions and answers them",
    "operator": "may do everything",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="create | list | revoke")
    create = actions.add_parser("create", help="create a key and show its token once")
    roles = "; ".join(f"{role}: {meaning}" for role, meaning in _ROLES.items())
    create.add_argument("--role", required=True, choices=tuple(_ROLES), help=roles)
    create.add_argument("--name", required=True, help="name of the owner")
    list_ = actions.add_parser("list", help="list the keys, without their tokens")
    revoke = actions.add_parser(
        "revoke", help="revoke a key; a running server notices within seconds"
    )
    revoke.add_argument("id", metavar="ID", help='id from "bitta keys list"')
    for action in (create, list_, revoke):
        add_store_arguments(action)


def main(arguments: argparse.Namespace) -> int:
    """Run an action on the database of a server, which may be running."""
    with open_store(arguments, create=arguments.action == "create") as store:
        if arguments.action == "create":
            return _create(store, arguments.role, arguments.name)
        if arguments.action == "revoke":
            return _revoke(store, arguments.id)
        return _list(store)


def _create(store: "Store", role: str, name: str) -> int:
    key = store.keys.create(role, name)  # type: ignore[arg-type] # argparse has checked it
    print(key.token)
    print(f"key {key.record.id} of {name}, {role}; the token is not shown again.")
    return 0


def _revoke(store: "Store", key_id: str) -> int:
    if not store.keys.revoke(key_id):
        raise InputError(f'there is no valid key {key_id!r}; run "bitta keys list" for the list.')
    print(f"revoked {key_id}.")
    return 0


def _list(store: "Store") -> int:
    keys = store.keys.list()
    rows = [("id", "role", "created", "revoked", "name")] + [
        (key.id, key.role, _format_time(key.created_at), _format_time(key.revoked_at), key.name)
        for key in keys
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
    return 0


def _format_time(microseconds: int | None) -> str:
    if microseconds is None:
        return "-"
    return f"{datetime.fromtimestamp(microseconds / 1e6, UTC):%Y-%m-%d %H:%M}"
