"""How Alembic reaches the store: on the connection, and in the transaction, that ``opening`` hands it."""

from alembic import context

from lakewright.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
