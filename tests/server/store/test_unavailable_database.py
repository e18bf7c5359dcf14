"""Tests of a database that is full, locked or unreachable, and then works again."""

import multiprocessing
import os
import resource
import signal
import sqlite3
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from bitta.server.store import (
    NewImage,
    Store,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreUnavailable,
    connection,
)
from server.store.factories import (
    new_answer,
    new_question,
    prediction_id,
    served_batch,
    temporary_database,
)

pytestmark = pytest.mark.full


@pytest.fixture
def opened(tmp_path, clock):
    with Store.open(None, tmp_path, clock=clock, busy_seconds=0.2) as store:
        store.log_served_batch(served_batch(range(10))).result()
        yield store


@contextmanager
def locked(folder):
    """Lock the database as another program would."""
    other = sqlite3.connect(folder / "bitta.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def full(store):
    """Keep the database from growing by a single page."""
    max_pages = [1]

    def limit(connection):
        connection.exec_driver_sql(f"PRAGMA max_page_count={max_pages[0]}")

    sa.event.listen(store._database.writer, "begin", limit)
    try:
        yield
    finally:
        max_pages[0] = 2**30


def large(number, **more):
    return new_answer(number, metadata={"x": "y" * 19_000}, **more)


def test_locked_database_refuses_answers_until_unlocked(opened, tmp_path):
    with locked(tmp_path):
        refused = opened.add_answer(new_answer(1, key="k"))
        with pytest.raises(StoreBusy, match="another program locks the database"):
            refused.result(timeout=10)
        assert opened.list_feedback() == []  # reads still work
    assert not opened.add_answer(new_answer(1, key="k")).result().repeated


def test_must_changes_wait_in_order_for_a_locked_database(opened, tmp_path):
    with locked(tmp_path):
        serving, asking = (
            opened.log_served_batch(served_batch([20])),
            opened.add_questions([new_question(20)]),
        )
        refused = opened.add_answer(new_answer(20))
        with pytest.raises(StoreBusy):
            refused.result(timeout=10)
        time.sleep(0.5)
        assert not serving.done()
        assert not asking.done()
    asking.result(timeout=10)
    assert opened.find_prediction(prediction_id(20)) is not None
    assert opened.add_answer(new_answer(20)).result().selection_reason == "uncertain"


def test_last_write_error_is_set_until_a_write_succeeds(opened, tmp_path):
    assert opened.last_write_error is None
    with locked(tmp_path), pytest.raises(StoreBusy):
        opened.add_answer(new_answer(1)).result(timeout=10)
    assert "another program locks the database" in str(opened.last_write_error)
    opened.add_answer(new_answer(1)).result(timeout=10)
    assert opened.last_write_error is None


def test_only_the_first_waiting_change_is_retried(opened):
    has_space, runs = threading.Event(), []

    def change(number):
        def run(_):
            runs.append(number)
            if not has_space.is_set():
                raise StoreFull("full")

        return run

    waiting = [opened.submit(change(number), must=True) for number in range(50)]
    while runs.count(0) < 4:
        time.sleep(0.01)
    has_space.set()
    for future in waiting:
        future.result(timeout=10)
    assert runs.count(49) == 1


def test_closing_while_locked_fails_the_waiting_changes(opened, tmp_path):
    with locked(tmp_path):
        serving = opened.log_served_batch(served_batch([20]))
        opened.close()
        with pytest.raises(StoreClosed, match="closed before the database could store this change"):
            serving.result()


def test_full_database_refuses_answers_until_there_is_space(opened):
    with full(opened):
        refused = [opened.add_answer(large(number, key=f"k{number}")) for number in range(3)]
        for future in refused:
            with pytest.raises(StoreFull, match=r"is full .*; free space"):
                future.result(timeout=10)
    stored = [opened.add_answer(large(number, key=f"k{number}")).result() for number in range(3)]
    assert not any(record.repeated for record in stored)
    assert [event.kind for event in opened.events()] == ["served", *["answered"] * 3]


def test_small_changes_are_stored_beside_one_that_does_not_fit(opened):
    with full(opened):
        opened.submit(lambda _: time.sleep(0.1))
        first, second = opened.log_event("small", {}), opened.add_answer(large(1))
        third = opened.log_event("small", {})
        assert first.result() < third.result()
        with pytest.raises(StoreFull):
            second.result()


def test_must_changes_wait_for_space(opened):
    with full(opened):
        serving = opened.log_served_batch(served_batch(range(100, 1000)))
        asking = opened.add_questions([new_question(100)])
        time.sleep(0.5)
        assert not serving.done()
        assert not asking.done()
    asking.result(timeout=10)
    assert opened.counts().served == 910


def answer_with_file_size_limit(folder, sender):
    """Answer until the file size limit is reached. The limit holds for the whole process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = Store.open(None, Path(folder))
    store.log_served_batch(served_batch(range(200))).result()
    size = sum(path.stat().st_size for path in Path(folder).glob("bitta.db*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, resource.RLIM_INFINITY))
    number = 0
    while (error := store.add_answer(large(number, key=f"k{number}")).exception()) is None:
        number += 1
    sender.send((number, type(error).__name__, str(error)))
    try:
        store.keep_images([NewImage(os.urandom(10**7), (1,), "uint8")]).result()
    except StoreFull as refused:
        sender.send(str(refused))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    sender.send(store.add_answer(large(number, key=f"k{number}")).result().repeated)
    store.close()


def test_full_disk_loses_no_acknowledged_answer(tmp_path):
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer_with_file_size_limit, args=(str(tmp_path), sender))
    process.start()
    sender.close()
    number, error_name, message = receiver.recv()
    assert error_name in ("StoreFull", "StoreUnavailable")
    assert message.startswith("the database")
    assert "an image cannot be written (File too large)" in receiver.recv()
    assert receiver.recv() is False
    process.join()
    with Store.open(None, tmp_path) as store:
        stored = [record.idempotency_key for record in store.all_feedback()]
        assert stored == [f"k{one}" for one in range(number + 1)]
        (check,) = store._rows(sa.text("PRAGMA integrity_check"))
        assert check["integrity_check"] == "ok"
    assert not list((tmp_path / "images" / "unfinished").iterdir())


def test_lost_connection_is_replaced(kind, store):
    if kind == "sqlite":
        pytest.skip("only PostgreSQL has connections that can be lost")
    store.log_served_batch(served_batch([1])).result()

    def end_connection(connection):
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(StoreUnavailable, match="the database cannot be used"):
        store.submit(end_connection).result(timeout=10)
    assert store.add_answer(new_answer(1)).result(timeout=10).status == "pending"


@pytest.fixture
def postgres():
    if not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    with temporary_database("postgresql") as url:
        yield url


def test_statement_timeout_is_reported_and_writing_continues(postgres, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "_POSTGRES_TIMEOUT_MS", 2000)
    with Store.open(postgres, tmp_path) as store:
        slow = store.submit(lambda connection: connection.exec_driver_sql("SELECT pg_sleep(600)"))
        with pytest.raises(StoreBusy, match="canceling statement due to statement timeout"):
            slow.result(30)
        assert isinstance(store.last_write_error, StoreBusy)
        assert store.log_event("x", {}).result(30)
        assert store.last_write_error is None


def test_postgres_connections_have_timeouts(postgres, tmp_path):
    def limits(connection):
        names = ("statement_timeout", "lock_timeout")
        return [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    with Store.open(postgres, tmp_path) as store:
        assert store.submit(limits).result(30) == ["30s", "5s"]
        with store._database.reader.begin() as connection:
            assert limits(connection) == ["30s", "5s"]
