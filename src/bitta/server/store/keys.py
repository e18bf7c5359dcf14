"""API keys: random tokens of 256 bits, shown once, kept as hashes."""

import hmac
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from hashlib import sha256
from typing import Any, get_args

from sqlalchemy import Connection, Engine, insert, select, update

from bitta.records import Role
from bitta.server.store import strict
from bitta.server.store.connect import Clock
from bitta.server.store.ids import new_id
from bitta.server.store.records import KeyRecord, NewKey
from bitta.server.store.tables import keys
from bitta.server.store.trouble import reading

PREFIX = "bitta_"
_SECRET_BYTES = 32
_FRESH_MICROSECONDS = 1_000_000
"""How long a key that was revoked elsewhere may still be accepted."""
_Valid = list[tuple[bytes, KeyRecord]]
"""Hashes of tokens, and whose they are."""
_Submit = Callable[[Callable[[Connection], Any]], Future[Any]]


class ApiKeys:
    """Who may do what."""

    def __init__(self, reader: Engine, submit: _Submit, clock: Clock) -> None:
        self._reader = reader
        self._submit = submit
        self._clock = clock
        self._lock = threading.Lock()
        self._valid: _Valid = []
        self._read_at: int | None = None

    def create(self, role: Role, name: str) -> NewKey:
        """Make a key; its token cannot be seen again."""
        strict.one_of("role", role, get_args(Role))
        strict.line("name", name)
        token = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        at = self._clock()
        record = KeyRecord(new_id(at), role, name, at, None)
        self._submit(partial(_insert, record=record, token_hash=_hash(token).hex())).result()
        self._forget()
        return NewKey(token, record)

    def list(self) -> list[KeyRecord]:
        """Name every key, revoked ones included, oldest first."""
        with reading(self._reader) as connection:
            found = select(*_COLUMNS).order_by(keys.c.created_at, keys.c.id)
            return [KeyRecord(**row) for row in connection.execute(found).mappings()]

    def names(self) -> dict[str, str]:
        """Tell whose each key is, by its id, revoked ones included."""
        return {key.id: key.name for key in self.list()}

    def revoke(self, key_id: str) -> bool:
        """End a key; False where there is none that is valid."""
        revoked = bool(self._submit(partial(_revoke, key_id=key_id, at=self._clock())).result())
        self._forget()
        return revoked

    def verify(self, token: str) -> KeyRecord | None:
        """Find the valid key of a token, in a time that does not depend on how near it is."""
        given = _hash(token)
        found = None
        for stored, record in self._current():
            if hmac.compare_digest(given, stored):
                found = record
        return found

    def _current(self) -> _Valid:
        with self._lock:
            at = self._clock()
            if self._read_at is None or not 0 <= at - self._read_at < _FRESH_MICROSECONDS:
                self._valid = self._read()
                self._read_at = at
            return self._valid

    def _read(self) -> _Valid:
        valid = select(*_COLUMNS, keys.c.token_hash).where(keys.c.revoked_at.is_(None))
        with reading(self._reader) as connection:
            rows = [dict(row) for row in connection.execute(valid).mappings()]
        return [(bytes.fromhex(row.pop("token_hash")), KeyRecord(**row)) for row in rows]

    def _forget(self) -> None:
        with self._lock:
            self._read_at = None


_COLUMNS = [column for column in keys.c if column.name != "token_hash"]


def _hash(token: str) -> bytes:
    # Fast is enough: nobody can try 2^256 tokens.
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _insert(connection: Connection, *, record: KeyRecord, token_hash: str) -> None:
    connection.execute(
        insert(keys).values(
            id=record.id,
            role=record.role,
            name=record.name,
            token_hash=token_hash,
            created_at=record.created_at,
        )
    )


def _revoke(connection: Connection, *, key_id: str, at: int) -> bool:
    valid = (keys.c.id == key_id) & keys.c.revoked_at.is_(None)
    return connection.execute(update(keys).where(valid).values(revoked_at=at)).rowcount > 0
