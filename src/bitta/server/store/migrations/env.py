"""Environment of alembic. It uses the connection of `Database.migrate`."""

from alembic import context

from bitta.server.store.connection import SCHEMA_VERSION_TABLE
from bitta.server.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=SCHEMA_VERSION_TABLE,
    render_as_batch=True,
)
# The caller commits the transaction.
context.run_migrations()
