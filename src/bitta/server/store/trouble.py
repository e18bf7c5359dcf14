"""Errors of a database that say nothing about what was written, only that it cannot be."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnection

from bitta.server.store.errors import StoreBusy, StoreFull, StoreInUse, StoreUnavailable

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DOWN = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
_NO_ROOM = {ENOSPC, EDQUOT, EFBIG}
_KIND = 0xFF
"""The low byte of an extended code of SQLite."""


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One transaction that reads; `StoreUnavailable` where the database is not there."""
    try:
        with engine.begin() as connection:
            yield connection
    except (DBAPIError, NoConnection) as error:
        if (why := trouble(error)) is not None:
            raise why from error
        raise


def trouble(error: BaseException) -> StoreUnavailable | None:
    """Say what is wrong with the database; None where the statement itself is at fault."""
    if isinstance(error, StoreUnavailable):
        return error
    if isinstance(error, StoreInUse | NoConnection):
        return StoreUnavailable(str(error))
    # Errors while a connection is prepared come as the driver's own.
    origin = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(origin, sqlite3.Error):
        return _of_sqlite(origin)
    if type(origin).__module__.partition(".")[0] == "psycopg":
        return _of_postgres(origin)
    return None


def reason(error: BaseException) -> str:
    """What the driver itself says, in a line; for logs and terminals, not for callers."""
    return _first(error.orig if isinstance(error, DBAPIError) else error)


def of_disk(error: OSError, what: str) -> StoreUnavailable:
    """Say that a file could not be written, and whether that is for want of room."""
    kind = StoreFull if error.errno in _NO_ROOM else StoreUnavailable
    return kind(f"{what} cannot be kept ({error.strerror}); try again")


def _of_sqlite(origin: sqlite3.Error) -> StoreUnavailable | None:
    # An error that Python's module itself raises carries no code.
    code: int = getattr(origin, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _KIND
    if code == sqlite3.SQLITE_FULL:
        return _full(origin)
    if code in _BUSY:
        return _busy(origin)
    return _down(origin) if code in _DOWN else None


def _of_postgres(origin: BaseException | None) -> StoreUnavailable | None:
    state = str(getattr(origin, "sqlstate", None) or "")
    if state in ("53100", "53200"):  # disk_full, out_of_memory
        return _full(origin)
    if state in ("55P03", "40P01", "40001", "57014"):  # locked, deadlock, serialization, cancelled
        return _busy(origin)
    # Classes of lost connections, too few resources, shutdown, system errors; a read-only server.
    if state.startswith(("08", "53", "57P", "58")) or state == "25006":
        return _down(origin)
    lost = not state and type(origin).__name__ in ("OperationalError", "ConnectionTimeout")
    # The driver's words would tell callers where the database is, and who uses it.
    return StoreUnavailable("the database cannot be reached; try again") if lost else None


def _full(origin: BaseException | None) -> StoreFull:
    return StoreFull(
        f"the database has no room left ({_first(origin)}); free some space and try again"
    )


def _busy(origin: BaseException | None) -> StoreBusy:
    return StoreBusy(f"another program holds the database ({_first(origin)}); try again")


def _down(origin: BaseException | None) -> StoreUnavailable:
    return StoreUnavailable(f"the database cannot be used ({_first(origin)}); try again")


def _first(origin: BaseException | None) -> str:
    lines = str(origin).strip().splitlines()
    return lines[0] if lines else type(origin).__name__
