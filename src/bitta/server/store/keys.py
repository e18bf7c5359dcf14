"""API keys: random tokens of 256 bits. The store keeps only their hashes."""

import hmac
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias, get_args

from sqlalchemy import Connection, Engine, insert, select, update

from bitta.records import Role
from bitta.server.store.connection import read_transaction
from bitta.server.store.records import (
    Clock,
    KeyRecord,
    NewKey,
    check_choice,
    check_line,
    new_id,
)
from bitta.server.store.schema import keys

PREFIX = "bitta_"
_SECRET_BYTES = 32
_CACHE_MICROSECONDS = 1_000_000
"""Time for which a key that another process revoked may still be accepted."""
_Submit: TypeAlias = Callable[[Callable[[Connection], Any]], Future[Any]]
_ValidKeys: TypeAlias = list[tuple[bytes, KeyRecord]]
"""Token hash and record of each valid key."""


class ApiKeys:
    """API keys of the store: create, list, revoke, verify."""

    def __init__(self, reader: Engine, submit: _Submit, clock: Clock) -> None:
        self._reader = reader
        self._submit = submit
        self._clock = clock
        self._lock = threading.Lock()
        self._valid_keys: _ValidKeys = []
        self._read_at: int | None = None

    def create(self, role: Role, name: str) -> NewKey:
        """Create a key. Its token cannot be read again."""
        check_choice("role", role, get_args(Role))
        check_line("name", name)
        token = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        at = self._clock()
        record = KeyRecord(new_id(at), role, name, at, None)
        self._submit(partial(_insert_key, record=record, token_hash=_hash(token).hex())).result()
        self._clear_cache()
        return NewKey(token, record)

    def list(self) -> list[KeyRecord]:
        """Return all keys, including revoked ones, oldest first."""
        with read_transaction(self._reader) as connection:
            found = select(*_COLUMNS).order_by(keys.c.created_at, keys.c.id)
            return [KeyRecord(**row) for row in connection.execute(found).mappings()]

    def names(self) -> dict[str, str]:
        """Return the names of all keys by id, including revoked ones."""
        return {key.id: key.name for key in self.list()}

    def revoke(self, key_id: str) -> bool:
        """Revoke a key. Return False if no valid key has this id."""
        change = partial(_revoke_key, key_id=key_id, at=self._clock())
        is_revoked = bool(self._submit(change).result())
        self._clear_cache()
        return is_revoked

    def verify(self, token: str) -> KeyRecord | None:
        """Return the valid key of a token, or None.

        The duration does not depend on how similar the token is to a valid one.
        """
        token_hash = _hash(token)
        found = None
        for valid_hash, record in self._cached_keys():
            if hmac.compare_digest(token_hash, valid_hash):
                found = record
        return found

    def _cached_keys(self) -> _ValidKeys:
        with self._lock:
            at = self._clock()
            if self._read_at is None or not 0 <= at - self._read_at < _CACHE_MICROSECONDS:
                self._valid_keys = self._read_keys()
                self._read_at = at
            return self._valid_keys

    def _read_keys(self) -> _ValidKeys:
        valid = select(*_COLUMNS, keys.c.token_hash).where(keys.c.revoked_at.is_(None))
        with read_transaction(self._reader) as connection:
            rows = [dict(row) for row in connection.execute(valid).mappings()]
        return [(bytes.fromhex(row.pop("token_hash")), KeyRecord(**row)) for row in rows]

    def _clear_cache(self) -> None:
        with self._lock:
            self._read_at = None


_COLUMNS = [column for column in keys.c if column.name != "token_hash"]


def _hash(token: str) -> bytes:
    # A fast hash is enough: nobody can try 2^256 tokens.
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _insert_key(connection: Connection, *, record: KeyRecord, token_hash: str) -> None:
    connection.execute(
        insert(keys).values(
            id=record.id,
            role=record.role,
            name=record.name,
            token_hash=token_hash,
            created_at=record.created_at,
        )
    )


def _revoke_key(connection: Connection, *, key_id: str, at: int) -> bool:
    is_valid = (keys.c.id == key_id) & keys.c.revoked_at.is_(None)
    return connection.execute(update(keys).where(is_valid).values(revoked_at=at)).rowcount > 0
