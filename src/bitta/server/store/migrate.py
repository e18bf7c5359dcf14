"""Bring a database to the schema of this version of bitta.

Alembic is imported only where something is to be migrated: a server that restarts after a crash
has no time for it.
"""

from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, String, Table, inspect, select
from sqlalchemy.exc import DBAPIError

from bitta.server.store.connect import Place
from bitta.server.store.errors import NewerSchema, StoreError, StoreUnavailable
from bitta.server.store.lock import disown, own
from bitta.server.store.tables import metadata
from bitta.server.store.trouble import reason
from bitta.version import __version__

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0001"
"""The newest of `migrations`."""
VERSION_TABLE = "bitta_schema"
"""Not alembic's own name for it: another program in the same database may use that."""


def migrate(place: Place, *, alone: bool) -> None:
    """Make or upgrade the tables; refuse those of a newer version and of another program.

    Whoever does not own the folder takes it for as long as an upgrade needs.
    """
    try:
        if _is_current(place):
            return
        lock = None if alone else own(place.folder)
        try:
            with place.writer.begin() as connection:
                _upgrade(connection, place.name)
        finally:
            if lock is not None:
                disown(lock)
    except DBAPIError as error:
        raise StoreUnavailable(
            f"the database {place.name} cannot be opened: {reason(error)}"
        ) from error


def _is_current(place: Place) -> bool:
    with place.reader.begin() as connection:
        schema = _schema(connection)
        if schema is None:
            return False
        if schema == HEAD:
            return True
        if schema in _known():
            return False
    raise NewerSchema(
        f"the database {place.name} has the schema {schema!r}, which bitta {__version__} does not "
        "know, as a newer version made it; install that version, or give another database"
    )


def _upgrade(connection: Connection, name: str) -> None:
    if _schema(connection) is None:
        foreign = set(inspect(connection).get_table_names()) & metadata.tables.keys()
        if foreign:
            raise StoreError(
                f"the database {name} holds tables of another program "
                f"({', '.join(sorted(foreign))}); give another database"
            )
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL statement_timeout TO 0")  # tables may be large
    from alembic import command  # noqa: PLC0415

    command.upgrade(_config(connection), "head")


def _schema(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    table = Table(VERSION_TABLE, MetaData(), Column("version_num", String))
    found: str | None = connection.execute(select(table.c.version_num)).scalar_one_or_none()
    return found


def _known() -> set[str]:
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return {step.revision for step in ScriptDirectory.from_config(_config()).walk_revisions()}


def _config(connection: Connection | None = None) -> "Config":
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "bitta.server.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
