"""Connections: one engine that writes, one that only reads, and whoever may hold them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from bitta.errors import SettingError
from bitta.server.store.errors import StoreInUse
from bitta.server.store.ids import now
from bitta.server.store.lock import disown, make_folder, own

__all__ = ["Clock", "Place", "is_new", "now"]

Clock = Callable[[], int]
_OWNER_WAITS = "3s"
"""For the connection of a process that was just killed to be noticed by PostgreSQL."""
_LONGEST = 30_000
"""Milliseconds that PostgreSQL may take for a statement, and that what was sent to it may stay
unacknowledged by its machine."""


@dataclass
class Place:
    """A database and a data folder in use."""

    folder: Path
    writer: Engine
    reader: Engine
    _lock: int | None = field(default=None)

    @classmethod
    def take(cls, url: str | None, data_dir: Path, *, alone: bool, busy_seconds: float) -> Self:
        """Connect; as the owner, nobody else may have the folder or the database."""
        lock = own(data_dir) if alone else None
        try:
            make_folder(data_dir)
            address = _address(url, data_dir)
            make = _sqlite if address.get_backend_name() == "sqlite" else _postgres
            writer = make(address, writes=True, alone=alone, busy_seconds=busy_seconds)
            reader = make(address, writes=False, alone=False, busy_seconds=busy_seconds)
        except BaseException:
            if lock is not None:
                disown(lock)
            raise
        return cls(data_dir, writer, reader, lock)

    @property
    def name(self) -> str:
        """The database's address, without its password."""
        return self.writer.url.render_as_string(hide_password=True)

    def leave(self) -> None:
        """Close every connection, then let the folder go."""
        self.reader.dispose()
        self.writer.dispose()
        if self._lock is not None:
            disown(self._lock)
            self._lock = None


def is_new(url: str | None, data_dir: Path) -> bool:
    """Whether a file would be made for the database; of a server's nobody knows before."""
    address = _address(url, data_dir)
    return address.get_backend_name() == "sqlite" and not Path(str(address.database)).exists()


def _address(url: str | None, data_dir: Path) -> URL:
    if url is None:
        return URL.create("sqlite", database=str(data_dir / "bitta.db"))
    form = "give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
    try:
        address = make_url(url)
    except ArgumentError:
        # The address may hold a password, so it is not repeated.
        raise SettingError(f"the database address cannot be read; {form}") from None
    match address.get_backend_name():
        case "sqlite":
            if address.database in (None, "", ":memory:") or "uri" in address.query:
                raise SettingError(f"a database in memory would not outlive the process; {form}")
            return address.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return address.set(drivername="postgresql+psycopg")
        case other:
            raise SettingError(f"databases of the kind {other!r} are not supported; {form}")


def _sqlite(address: URL, *, writes: bool, alone: bool, busy_seconds: float) -> Engine:
    del alone  # the folder's lock keeps others out
    engine = create_engine(address, connect_args={"timeout": busy_seconds})

    def connected(connection: Any, _: Any) -> None:
        # The driver would begin transactions late, and commit before some statements.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        if not writes:
            connection.execute("PRAGMA query_only=ON")

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine


def _postgres(address: URL, *, writes: bool, alone: bool, busy_seconds: float) -> Engine:
    try:
        engine = create_engine(
            address,
            pool_pre_ping=True,
            pool_size=1 if writes else 5,
            max_overflow=0 if writes else 10,
            connect_args={"connect_timeout": 10, "tcp_user_timeout": _LONGEST},
        )
    except ModuleNotFoundError as error:
        raise SettingError(
            "PostgreSQL needs the psycopg package; install bitta[postgres]"
        ) from error

    def connected(connection: Any, _: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO on")
            cursor.execute("SET default_transaction_read_only TO off")
            if alone:
                _own_database(cursor)
            cursor.execute(f"SET statement_timeout TO {_LONGEST}")
            # In milliseconds; 0 would be for ever.
            cursor.execute(f"SET lock_timeout TO {max(1, round(busy_seconds * 1000))}")
            if not writes:
                cursor.execute("SET default_transaction_read_only TO on")
        connection.commit()

    event.listen(engine, "connect", connected)
    return engine


def _own_database(cursor: Any) -> None:
    """Let only one process have a connection that writes, wherever its data folder is."""
    from psycopg.errors import LockNotAvailable  # noqa: PLC0415 (only where it is used)

    cursor.execute(f"SET lock_timeout TO '{_OWNER_WAITS}'")
    try:
        cursor.execute("SELECT pg_advisory_lock(hashtext('bitta ' || current_schema()))")
    except LockNotAvailable:
        raise StoreInUse(
            "the database belongs to a bitta server that runs; stop it, or give another database"
        ) from None
