"""Tests of opening a store: ownership, migration, and refused databases."""

import sqlite3

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from bitta.errors import SettingError
from bitta.server.store import (
    NewerSchema,
    Store,
    StoreError,
    StoreInUse,
    connection,
    pending_answers,
)
from bitta.server.store.connection import SCHEMA_VERSION, SCHEMA_VERSION_TABLE
from bitta.server.store.schema import metadata
from server.store.factories import ManualClock


def test_migrations_create_the_tables_of_the_schema(store):
    with store._database.reader.begin() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": SCHEMA_VERSION_TABLE}
        )
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == SCHEMA_VERSION


def test_reopened_store_has_its_data(store, reopen):
    seq = store.log_event("x", {"a": [1, None, "é"]}).result()
    (event,) = reopen().events()
    assert (event.seq, event.kind, event.body) == (seq, "x", {"a": [1, None, "é"]})


def test_sqlite_settings_are_durable(tmp_path):
    with Store.open(None, tmp_path) as store, store._database.writer.begin() as connection:
        read = connection.exec_driver_sql
        assert read("PRAGMA journal_mode").scalar() == "wal"
        assert read("PRAGMA synchronous").scalar() == 2
        assert read("PRAGMA foreign_keys").scalar() == 1
        assert read("PRAGMA busy_timeout").scalar() == 5000


def test_write_transaction_locks_sqlite_from_its_begin(tmp_path):
    other = sqlite3.connect(tmp_path / "bitta.db", timeout=0, isolation_level=None)
    with Store.open(None, tmp_path) as store:
        with store._database.writer.begin() as connection:
            connection.exec_driver_sql("SELECT 1")
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
        with store._database.reader.begin() as connection:
            connection.exec_driver_sql("SELECT * FROM events")
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
    other.close()


def test_reading_connection_cannot_write(store):
    with (
        pytest.raises(sa.exc.DBAPIError, match=r"readonly|read-only"),
        store._database.reader.begin() as connection,
    ):
        connection.exec_driver_sql("DELETE FROM events")


def test_second_owner_of_a_folder_is_refused(store, url, tmp_path):
    with pytest.raises(StoreInUse, match=r"belongs to a running bitta server \(process \d+\)"):
        Store.open(url, tmp_path)
    store.log_event("x", {}).result()


def test_second_owner_of_a_postgres_database_is_refused(kind, store, url, tmp_path, monkeypatch):
    if kind == "sqlite":
        pytest.skip("SQLite databases are locked by their folder")
    monkeypatch.setattr(connection, "OWNER_LOCK_TIMEOUT", "100ms")
    with pytest.raises(StoreError, match="the database belongs to a running bitta server"):
        Store.open(url, tmp_path / "other")
    store.log_event("x", {}).result()


def test_shared_store_reads_and_creates_keys_beside_the_owner(store, url, tmp_path, clock):
    store.log_event("x", {}).result()
    with Store.open(url, tmp_path, clock=clock, exclusive=False) as shared:
        token = shared.keys.create("client", "created beside").token
        assert len(shared.events()) == 1
    assert store.keys.verify(token).name == "created beside"
    store.log_event("y", {}).result()


def test_shared_store_may_create_the_database(url, tmp_path):
    with Store.open(url, tmp_path, exclusive=False) as shared:
        shared.keys.create("operator", "first")
    with Store.open(url, tmp_path) as store:
        assert [key.name for key in store.keys.list()] == ["first"]


def test_newer_schema_is_refused(store, url, tmp_path, reopen):
    store.submit(
        lambda connection: connection.exec_driver_sql(
            f"UPDATE {SCHEMA_VERSION_TABLE} SET version_num = '9999'"
        )
    ).result()
    store.close()
    with pytest.raises(NewerSchema, match=r"has the schema '9999', which bitta .* does not know"):
        Store.open(url, tmp_path)
    with pytest.raises(NewerSchema):  # the folder is unlocked
        Store.open(url, tmp_path)


def test_tables_of_another_program_are_refused(tmp_path):
    with sqlite3.connect(tmp_path / "bitta.db") as other:
        other.execute("CREATE TABLE events (mine TEXT)")
    with pytest.raises(StoreError, match=r"holds tables of another program \(events\)"):
        Store.open(None, tmp_path)


def test_file_that_is_not_a_database_is_refused(tmp_path):
    (tmp_path / "bitta.db").write_bytes(b"not a database, but long enough to look" * 100)
    with pytest.raises(StoreError, match=r"cannot be opened: .*file is not a database"):
        Store.open(None, tmp_path)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://root:hidden@host/x", "'mysql' are not supported"),
        ("what is this hidden", "cannot be parsed"),
    ],
)
def test_unsupported_address_is_refused_without_its_password(tmp_path, address, message):
    with pytest.raises(SettingError, match=message) as refused:
        Store.open(address, tmp_path)
    assert "hidden" not in str(refused.value)


def test_missing_database_is_refused_without_its_password(tmp_path):
    address = f"postgresql://me:hidden@/x?host={tmp_path}"
    with pytest.raises(StoreError, match="cannot be") as refused:
        Store.open(address, tmp_path)
    assert "hidden" not in str(refused.value)


def test_sqlite_address_outside_the_folder_is_used(tmp_path):
    path = tmp_path / "elsewhere.db"
    with Store.open(f"sqlite:///{path}", tmp_path / "folder", clock=ManualClock()) as store:
        store.log_event("x", {}).result()
    assert path.exists()


@pytest.mark.parametrize("exclusive", [True, False])
def test_unusable_folder_is_refused(tmp_path, exclusive):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"the data folder .* cannot be used"):
        Store.open(None, tmp_path / "file" / "data", exclusive=exclusive)


def test_failed_opening_releases_the_folder(url, tmp_path, monkeypatch):
    def fail(_):
        raise KeyError("failure")

    with monkeypatch.context() as patch:
        patch.setattr(pending_answers, "release_answers", fail)
        with pytest.raises(KeyError, match="failure"):
            Store.open(url, tmp_path)
    Store.open(url, tmp_path).close()
