"""Connections to the database, ownership of the data folder, and upgrades of the schema.

Alembic is imported only for an upgrade, so that a server restarts fast after a crash.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    inspect,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from bitta.errors import SettingError
from bitta.server.store.errors import (
    NewerSchema,
    StoreError,
    StoreInUse,
    StoreUnavailable,
    driver_message,
    translate_database_error,
)
from bitta.server.store.schema import metadata
from bitta.version import __version__

if TYPE_CHECKING:
    from alembic.config import Config

SCHEMA_VERSION = "0001"
"""Revision of the newest file in `migrations/versions`."""
SCHEMA_VERSION_TABLE = "bitta_schema"
"""Differs from alembic's default name, which another program in the database may use."""
OWNER_LOCK_TIMEOUT = "3s"
"""Time for PostgreSQL to notice that the previous owner was killed."""
_POSTGRES_TIMEOUT_MS = 30_000
"""Timeout of a statement, and of sent data that the database machine does not acknowledge."""


@dataclass
class Database:
    """Connections to a database, and the data folder that belongs to it."""

    folder: Path
    writer: Engine
    """Pool of a single connection, which writes."""
    reader: Engine
    """Pool of connections that can only read."""
    _folder_lock: int | None = None

    @classmethod
    def connect(
        cls, url: str | None, data_dir: Path, *, exclusive: bool, busy_seconds: float
    ) -> Self:
        """Connect to the database.

        If `exclusive`, lock the folder and the database against other servers.
        """
        folder_lock = lock_folder(data_dir) if exclusive else None
        try:
            _make_folder(data_dir)
            address = _parse_address(url, data_dir)
            if address.get_backend_name() == "sqlite":
                # For SQLite the lock of the folder is enough.
                writer = _sqlite_engine(address, can_write=True, busy_seconds=busy_seconds)
                reader = _sqlite_engine(address, can_write=False, busy_seconds=busy_seconds)
            else:
                writer = _postgres_engine(
                    address, can_write=True, exclusive=exclusive, busy_seconds=busy_seconds
                )
                reader = _postgres_engine(
                    address, can_write=False, exclusive=False, busy_seconds=busy_seconds
                )
        except BaseException:
            if folder_lock is not None:
                os.close(folder_lock)
            raise
        return cls(data_dir, writer, reader, folder_lock)

    @property
    def name(self) -> str:
        """Address of the database, without its password."""
        return self.writer.url.render_as_string(hide_password=True)

    def migrate(self) -> None:
        """Create the tables, or upgrade them to the schema of this version of bitta.

        Refuse tables of a newer version and of other programs. A process that does not own the
        folder locks it during the upgrade.
        """
        try:
            if self._has_current_schema():
                return
            folder_lock = lock_folder(self.folder) if self._folder_lock is None else None
            try:
                with self.writer.begin() as connection:
                    _upgrade_schema(connection, self.name)
            finally:
                if folder_lock is not None:
                    os.close(folder_lock)
        except DBAPIError as error:
            raise StoreUnavailable(
                f"the database {self.name} cannot be opened: {driver_message(error)}"
            ) from error

    def close(self) -> None:
        """Close all connections, then unlock the folder."""
        self.reader.dispose()
        self.writer.dispose()
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None

    def _has_current_schema(self) -> bool:
        with self.reader.begin() as connection:
            version = _read_schema_version(connection)
        if version is None or version == SCHEMA_VERSION:
            return version is not None
        if version in _known_schema_versions():
            return False
        raise NewerSchema(
            f"the database {self.name} has the schema {version!r}, which bitta {__version__} does "
            "not know; install the newer version of bitta that made it, or give another database"
        )


@contextmanager
def read_transaction(engine: Engine) -> Iterator[Connection]:
    """Open a transaction. Raise `StoreUnavailable` if the database cannot be used."""
    try:
        with engine.begin() as connection:
            yield connection
    except (DBAPIError, NoFreeConnection) as error:
        if (translated := translate_database_error(error)) is not None:
            raise translated from error
        raise


def is_missing(url: str | None, data_dir: Path) -> bool:
    """Return True if the database is a SQLite file that does not exist."""
    address = _parse_address(url, data_dir)
    return address.get_backend_name() == "sqlite" and not Path(str(address.database)).exists()


def lock_folder(folder: Path) -> int:
    """Lock a data folder for this process, and return the open lock file.

    Closing the file unlocks the folder. The operating system closes it when the process ends.
    """
    _make_folder(folder)
    try:
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _folder_error(folder, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(file, 20).decode("ascii", "replace").strip()
        os.close(file)
        raise StoreInUse(
            f"the data folder {folder} belongs to a running bitta server"
            f"{f' (process {owner})' if owner else ''}; stop it, or give another folder"
        ) from None
    with suppress(OSError):  # the disk may be full; the process id is only informative
        os.truncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file


def _make_folder(folder: Path) -> None:
    """Make a data folder that other users of the machine cannot read."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _folder_error(folder, error) from error


def _folder_error(folder: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"the data folder {folder} cannot be used ({error.strerror}); give a writable folder"
    )


def _parse_address(url: str | None, data_dir: Path) -> URL:
    if url is None:
        return URL.create("sqlite", database=str(data_dir / "bitta.db"))
    allowed = "give sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
    try:
        address = make_url(url)
    except ArgumentError:
        # The message does not repeat the address: it may hold a password.
        raise SettingError(f"the database address cannot be parsed; {allowed}") from None
    match address.get_backend_name():
        case "sqlite":
            if address.database in (None, "", ":memory:") or "uri" in address.query:
                raise SettingError(f"a database in memory is lost when the server stops; {allowed}")
            return address.set(drivername="sqlite")
        case "postgresql" | "postgres":
            return address.set(drivername="postgresql+psycopg")
        case other:
            raise SettingError(f"databases of the kind {other!r} are not supported; {allowed}")


def _sqlite_engine(address: URL, *, can_write: bool, busy_seconds: float) -> Engine:
    engine = create_engine(address, connect_args={"timeout": busy_seconds})

    def configure(connection: Any, _: Any) -> None:
        # By default the driver begins transactions late and commits before some statements.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        if not can_write:
            connection.execute("PRAGMA query_only=ON")

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if can_write else "BEGIN")

    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", begin)
    return engine


def _postgres_engine(
    address: URL, *, can_write: bool, exclusive: bool, busy_seconds: float
) -> Engine:
    try:
        engine = create_engine(
            address,
            pool_pre_ping=True,
            pool_size=1 if can_write else 5,
            max_overflow=0 if can_write else 10,
            connect_args={"connect_timeout": 10, "tcp_user_timeout": _POSTGRES_TIMEOUT_MS},
        )
    except ModuleNotFoundError as error:
        raise SettingError(
            "PostgreSQL needs the psycopg package; install bitta[postgres]"
        ) from error

    def configure(connection: Any, _: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO on")
            cursor.execute("SET default_transaction_read_only TO off")
            if exclusive:
                _lock_postgres_schema(cursor)
            cursor.execute(f"SET statement_timeout TO {_POSTGRES_TIMEOUT_MS}")
            # The unit is milliseconds. 0 would mean no limit.
            cursor.execute(f"SET lock_timeout TO {max(1, round(busy_seconds * 1000))}")
            if not can_write:
                cursor.execute("SET default_transaction_read_only TO on")
        connection.commit()

    event.listen(engine, "connect", configure)
    return engine


def _lock_postgres_schema(cursor: Any) -> None:
    """Allow one writing process per database schema, even if data folders differ."""
    from psycopg.errors import LockNotAvailable  # noqa: PLC0415 (an optional dependency)

    cursor.execute(f"SET lock_timeout TO '{OWNER_LOCK_TIMEOUT}'")
    try:
        cursor.execute("SELECT pg_advisory_lock(hashtext('bitta ' || current_schema()))")
    except LockNotAvailable:
        raise StoreInUse(
            "the database belongs to a running bitta server; stop it, or give another database"
        ) from None


def _upgrade_schema(connection: Connection, database_name: str) -> None:
    if _read_schema_version(connection) is None:
        foreign = set(inspect(connection).get_table_names()) & metadata.tables.keys()
        if foreign:
            raise StoreError(
                f"the database {database_name} holds tables of another program "
                f"({', '.join(sorted(foreign))}); give another database"
            )
    if connection.dialect.name == "postgresql":
        # The upgrade of a large table can take long.
        connection.exec_driver_sql("SET LOCAL statement_timeout TO 0")
    from alembic import command  # noqa: PLC0415 (slow to import)

    command.upgrade(_alembic_config(connection), "head")


def _read_schema_version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(SCHEMA_VERSION_TABLE):
        return None
    table = Table(SCHEMA_VERSION_TABLE, MetaData(), Column("version_num", String))
    version: str | None = connection.execute(select(table.c.version_num)).scalar_one_or_none()
    return version


def _known_schema_versions() -> set[str]:
    from alembic.script import ScriptDirectory  # noqa: PLC0415 (slow to import)

    scripts = ScriptDirectory.from_config(_alembic_config())
    return {script.revision for script in scripts.walk_revisions()}


def _alembic_config(connection: Connection | None = None) -> "Config":
    from alembic.config import Config  # noqa: PLC0415 (slow to import)

    config = Config()
    config.set_main_option("script_location", "bitta.server.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
