"""A database that is full, locked or away: clear errors, then everything goes on."""

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
from server.store.made import database, given, name, question, served


@pytest.fixture
def opened(tmp_path, watch):
    with Store.open(None, tmp_path, clock=watch, busy_seconds=0.2) as store:
        store.log_served_batch(served(range(10))).result()
        yield store


@contextmanager
def locked(folder):
    """Another program holds the database."""
    other = sqlite3.connect(folder / "bitta.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@contextmanager
def full(store):
    """The database may not grow by a single page."""

    most = [1]

    def limit(connection):
        connection.exec_driver_sql(f"PRAGMA max_page_count={most[0]}")

    sa.event.listen(store._database.writer, "begin", limit)
    try:
        yield
    finally:
        most[0] = 2**30


def large(number, **more):
    return given(number, metadata={"x": "y" * 19_000}, **more)


def test_a_locked_database_refuses_in_a_sentence_and_then_goes_on(opened, tmp_path):
    with locked(tmp_path):
        refused = opened.add_answer(given(1, key="k"))
        with pytest.raises(StoreBusy, match="another program locks the database"):
            refused.result(timeout=10)
        assert opened.list_feedback() == []  # reads go on meanwhile
    assert not opened.add_answer(given(1, key="k")).result().repeated


def test_what_has_happened_waits_for_a_locked_database_in_its_order(opened, tmp_path):
    with locked(tmp_path):
        serving, asking = (
            opened.log_served_batch(served([20])),
            opened.add_questions([question(20)]),
        )
        refused = opened.add_answer(given(20))
        with pytest.raises(StoreBusy):
            refused.result(timeout=10)
        time.sleep(0.5)
        assert not serving.done()
        assert not asking.done()
    asking.result(timeout=10)
    assert opened.find_prediction(name(20)) is not None
    assert opened.add_answer(given(20)).result().selection_reason == "uncertain"


def test_the_store_says_why_it_takes_nothing_until_it_does(opened, tmp_path):
    assert opened.last_write_error is None
    with locked(tmp_path), pytest.raises(StoreBusy):
        opened.add_answer(given(1)).result(timeout=10)
    assert "another program locks the database" in str(opened.last_write_error)
    opened.add_answer(given(1)).result(timeout=10)
    assert opened.last_write_error is None


def test_of_much_that_waits_only_the_first_is_tried_until_it_is_taken(opened):
    room, runs = threading.Event(), []

    def change(number):
        def run(_):
            runs.append(number)
            if not room.is_set():
                raise StoreFull("no room left")

        return run

    waiting = [opened.submit(change(number), must=True) for number in range(50)]
    while runs.count(0) < 4:
        time.sleep(0.01)
    room.set()
    for future in waiting:
        future.result(timeout=10)
    assert runs.count(49) == 1


def test_closing_while_locked_gives_up_and_says_so(opened, tmp_path):
    with locked(tmp_path):
        serving = opened.log_served_batch(served([20]))
        opened.close()
        with pytest.raises(StoreClosed, match="closed before the database could take this change"):
            serving.result()


def test_a_full_database_refuses_in_a_sentence_and_then_goes_on(opened):
    with full(opened):
        refused = [opened.add_answer(large(number, key=f"k{number}")) for number in range(3)]
        for future in refused:
            with pytest.raises(StoreFull, match=r"is full .*; free space"):
                future.result(timeout=10)
    stored = [opened.add_answer(large(number, key=f"k{number}")).result() for number in range(3)]
    assert not any(record.repeated for record in stored)
    assert [event.kind for event in opened.events()] == ["served", *["answered"] * 3]


def test_what_fits_is_stored_beside_what_does_not(opened):
    with full(opened):
        opened.submit(lambda _: time.sleep(0.1))
        first, second = opened.log_event("small", {}), opened.add_answer(large(1))
        third = opened.log_event("small", {})
        assert first.result() < third.result()
        with pytest.raises(StoreFull):
            second.result()


def test_what_has_happened_waits_for_room(opened):
    with full(opened):
        serving = opened.log_served_batch(served(range(100, 1000)))
        asking = opened.add_questions([question(100)])
        time.sleep(0.5)
        assert not serving.done()
        assert not asking.done()
    asking.result(timeout=10)
    assert opened.counts().served == 910


def no_large_files(folder, told):
    """In a process of its own, as the limit is one of the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = Store.open(None, Path(folder))
    store.log_served_batch(served(range(200))).result()
    size = sum(path.stat().st_size for path in Path(folder).glob("bitta.db*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, resource.RLIM_INFINITY))
    number = 0
    while (error := store.add_answer(large(number, key=f"k{number}")).exception()) is None:
        number += 1
    told.send((number, type(error).__name__, str(error)))
    try:
        store.keep_images([NewImage(os.urandom(10**7), (1,), "uint8")]).result()
    except StoreFull as refused:
        told.send(str(refused))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    told.send(store.add_answer(large(number, key=f"k{number}")).result().repeated)
    store.close()


def test_a_disk_that_takes_no_more_loses_nothing_it_took(tmp_path):
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=no_large_files, args=(str(tmp_path), there))
    process.start()
    there.close()
    number, kind, sentence = here.recv()
    assert kind in ("StoreFull", "StoreUnavailable")
    assert sentence.startswith("the database")
    assert "an image cannot be written (File too large)" in here.recv()
    assert here.recv() is False
    process.join()
    with Store.open(None, tmp_path) as store:
        stored = [record.idempotency_key for record in store.all_feedback()]
        assert stored == [f"k{one}" for one in range(number + 1)]
        (check,) = store._rows(sa.text("PRAGMA integrity_check"))
        assert check["integrity_check"] == "ok"
    assert not list((tmp_path / "images" / "unfinished").iterdir())


def test_a_lost_connection_is_made_anew(kind, store):
    if kind == "sqlite":
        pytest.skip("of a database behind a connection; set BITTA_TEST_POSTGRES")
    store.log_served_batch(served([1])).result()

    def hang_up(connection):
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(StoreUnavailable, match="the database cannot be used"):
        store.submit(hang_up).result(timeout=10)
    assert store.add_answer(given(1)).result(timeout=10).status == "pending"


@pytest.fixture
def postgres():
    if not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    with database("postgresql") as url:
        yield url


def test_a_statement_that_takes_too_long_is_a_trouble_and_then_everything_goes_on(
    postgres, tmp_path, monkeypatch
):
    monkeypatch.setattr(connection, "_POSTGRES_TIMEOUT_MS", 2000)
    with Store.open(postgres, tmp_path) as store:
        slow = store.submit(lambda connection: connection.exec_driver_sql("SELECT pg_sleep(600)"))
        with pytest.raises(StoreBusy, match="canceling statement due to statement timeout"):
            slow.result(30)
        assert isinstance(store.last_write_error, StoreBusy)
        assert store.log_event("x", {}).result(30)
        assert store.last_write_error is None


def test_no_statement_and_no_lock_is_waited_for_without_end(postgres, tmp_path):
    def limits(connection):
        names = ("statement_timeout", "lock_timeout")
        return [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    with Store.open(postgres, tmp_path) as store:
        assert store.submit(limits).result(30) == ["30s", "5s"]
        with store._database.reader.begin() as connection:
            assert limits(connection) == ["30s", "5s"]
