"""Errors of the store, and their translation from errors of the database and the disk."""

# ruff: noqa: N818 (an error is named after what happened)

import sqlite3
from errno import EDQUOT, EFBIG, ENOSPC

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from bitta.errors import BittaError

_SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_UNUSABLE = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
_SQLITE_PRIMARY_CODE = 0xFF
"""Mask of the primary error code in an extended error code."""
_POSTGRES_FULL = ("53100", "53200")
"""disk_full, out_of_memory"""
_POSTGRES_BUSY = ("55P03", "40P01", "40001", "57014")
"""lock_not_available, deadlock_detected, serialization_failure, query_canceled"""
_POSTGRES_UNUSABLE = ("08", "53", "57P", "58", "25006")
"""Prefixes: lost connection, insufficient resources, shutdown, system error, read-only server."""
_DISK_FULL = {ENOSPC, EDQUOT, EFBIG}


class StoreError(BittaError):
    """Base class of the errors of the store."""


class IdempotencyConflict(StoreError):
    """Raised when an idempotency key is used again with another body."""


class UnknownPrediction(StoreError, LookupError):
    """Raised when no prediction has the given id."""


class UnknownFeedback(StoreError, LookupError):
    """Raised when no feedback has the given id."""


class UnknownSnapshot(StoreError, LookupError):
    """Raised when no snapshot has the given id."""


class QuestionExpired(StoreError):
    """Raised when a question has expired or was leased to another annotator."""


class StoreInUse(StoreError):
    """Raised when another running process owns the data folder or the database."""


class NewerSchema(StoreError):
    """Raised when a newer version of bitta has written the database."""


class StoreClosed(StoreError):
    """Raised when the store is used after it was closed."""


class StoreUnavailable(StoreError):
    """Raised when the database cannot be used at the moment. Nothing was stored."""


class StoreBusy(StoreUnavailable):
    """Raised when another program locks the database, or too many changes wait."""


class StoreFull(StoreUnavailable):
    """Raised when the disk or the database is full."""


def translate_database_error(error: BaseException) -> StoreUnavailable | None:
    """Return the store's error if the database cannot be used.

    Return None for other errors, such as a wrong statement.
    """
    if isinstance(error, StoreUnavailable):
        return error
    if isinstance(error, StoreInUse | NoFreeConnection):
        return StoreUnavailable(str(error))
    # While a connection is prepared, SQLAlchemy does not wrap the driver's errors.
    origin = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(origin, sqlite3.Error):
        return _translate_sqlite_error(origin)
    if type(origin).__module__.partition(".")[0] == "psycopg":
        return _translate_postgres_error(origin)
    return None


def driver_message(error: BaseException) -> str:
    """Return the first line of the driver's message. It is for logs and terminals only."""
    origin = error.orig if isinstance(error, DBAPIError) else error
    lines = str(origin).strip().splitlines()
    return lines[0] if lines else type(origin).__name__


def translate_disk_error(error: OSError, file: str) -> StoreUnavailable:
    """Return the store's error for a file that could not be written."""
    error_type = StoreFull if error.errno in _DISK_FULL else StoreUnavailable
    return error_type(f"{file} cannot be written ({error.strerror}); try again")


def _translate_sqlite_error(error: sqlite3.Error) -> StoreUnavailable | None:
    # Errors that Python's own module raises carry no code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _SQLITE_PRIMARY_CODE
    if code == sqlite3.SQLITE_FULL:
        return _full_error(error)
    if code in _SQLITE_BUSY:
        return _busy_error(error)
    return _unusable_error(error) if code in _SQLITE_UNUSABLE else None


def _translate_postgres_error(error: BaseException | None) -> StoreUnavailable | None:
    assert error is not None, "a psycopg error has a driver exception"
    state = str(getattr(error, "sqlstate", None) or "")
    if state in _POSTGRES_FULL:
        return _full_error(error)
    if state in _POSTGRES_BUSY:
        return _busy_error(error)
    if state.startswith(_POSTGRES_UNUSABLE):
        return _unusable_error(error)
    is_lost = not state and type(error).__name__ in ("OperationalError", "ConnectionTimeout")
    # The driver's message is left out: it names the address and the user of the database.
    return StoreUnavailable("the database cannot be reached; try again") if is_lost else None


def _full_error(error: BaseException) -> StoreFull:
    return StoreFull(f"the database is full ({driver_message(error)}); free space and try again")


def _busy_error(error: BaseException) -> StoreBusy:
    return StoreBusy(f"another program locks the database ({driver_message(error)}); try again")


def _unusable_error(error: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"the database cannot be used ({driver_message(error)}); try again")
