"""Run by alembic, on the connection that `migrate` gives it."""

from alembic import context

from bitta.server.store.migrate import VERSION_TABLE
from bitta.server.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
# The transaction is the caller's.
context.run_migrations()
