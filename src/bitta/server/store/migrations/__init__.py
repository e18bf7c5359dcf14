"""Migrations of the database schema, run by alembic."""
