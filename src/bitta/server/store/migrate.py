"""Bring a database to the schema of this version of bitta."""

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from bitta.server.store.connect import Place
from bitta.server.store.errors import NewerSchema, StoreError, Unavailable
from bitta.server.store.lock import disown, own
from bitta.server.store.tables import metadata
from bitta.server.store.trouble import trouble
from bitta.version import __version__

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
        why = trouble(error) or error.orig
        raise Unavailable(f"the database {place.name} cannot be opened: {why}") from error


def _is_current(place: Place) -> bool:
    with place.reader.begin() as connection:
        schema = _schema(connection)
        if schema is None:
            return False
        script = ScriptDirectory.from_config(_config())
        if schema == script.get_current_head():
            return True
        known = {step.revision for step in script.walk_revisions()}
        if schema in known:
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
    command.upgrade(_config(connection), "head")


def _schema(connection: Connection) -> str | None:
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return found.get_current_revision()


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "bitta.server.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
