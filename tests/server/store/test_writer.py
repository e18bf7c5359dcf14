"""One writer, one order, one commit for many; an error belongs to whoever made it."""

import threading
import time

import pytest
import sqlalchemy as sa

from bitta.server.store import StoreBusy, StoreClosed
from bitta.server.store import writer as writing
from server.store.made import given, served


def insert(store, kind):
    return store.log_event(kind, {})


@pytest.fixture
def held(store):
    """The writer is kept busy until `go` is set, so that what follows is one group."""
    go, begun = threading.Event(), threading.Event()

    def wait(_):
        begun.set()
        assert go.wait(10)

    store.submit(wait)
    begun.wait(10)
    return go


def test_many_changes_are_committed_at_once_and_in_order(store, held):
    commits = []
    sa.event.listen(store._database.writer, "commit", commits.append)
    futures = [insert(store, f"e{number}") for number in range(100)]
    assert not any(future.done() for future in futures)
    held.set()
    assert sorted(future.result() for future in futures) == [future.result() for future in futures]
    assert [event.kind for event in store.events()] == [f"e{number}" for number in range(100)]
    assert len(commits) == 2  # the one that waited, and the hundred


def test_nothing_is_acknowledged_before_it_is_committed(store, held):
    order = []
    sa.event.listen(store._database.writer, "commit", lambda _: order.append("commit"))
    futures = [insert(store, "x") for _ in range(3)]
    for future in futures:
        future.add_done_callback(lambda _: order.append("told"))
    held.set()
    futures[-1].result()
    assert order[:2] == ["commit", "commit"]
    assert set(order[2:]) == {"told"}


def test_an_error_in_one_change_harms_no_other(store, held):
    def wrong(connection):
        connection.execute(sa.text("INSERT INTO events (at, kind, body) VALUES (0, 'half', '{}')"))
        raise KeyError("mine")

    def unreadable(connection):
        connection.execute(sa.text("SELECT * FROM nowhere"))

    before, mine = insert(store, "before"), store.submit(wrong)
    sql, after = store.submit(unreadable), insert(store, "after")
    held.set()
    assert before.result() < after.result()
    with pytest.raises(KeyError, match="mine"):
        mine.result()
    with pytest.raises(sa.exc.DBAPIError, match="nowhere"):
        sql.result()
    assert [event.kind for event in store.events()] == ["before", "after"]


def test_a_caller_who_goes_away_changes_nothing(store, held):
    future = insert(store, "kept")
    assert not future.cancel()
    held.set()
    future.result()
    insert(store, "next").result()
    assert [event.kind for event in store.events()] == ["kept", "next"]


def test_what_follows_a_change_runs_before_it_is_acknowledged(store):
    seen = []
    future = store.submit(lambda _: 3, after=seen.append)
    assert future.result() == 3
    assert seen == [3]


def test_closing_writes_what_waits_and_then_refuses(store, reopen, held):
    futures = [insert(store, "x") for _ in range(600)]
    held.set()
    store.close()
    assert all(future.done() for future in futures)
    with pytest.raises(StoreClosed, match="the store is closed"):
        insert(store, "y").result()
    assert len(reopen().events()) == 600


def test_closing_twice_is_closing_once(store):
    store.close()
    store.close()


def test_listeners_are_called_after_commits_and_a_broken_one_breaks_nothing(store):
    heard = threading.Event()

    def broken():
        raise RuntimeError("mine")

    stop_broken, stop = store.add_listener(broken), store.add_listener(heard.set)
    insert(store, "x").result()
    assert heard.wait(10)
    stop_broken()
    stop()
    insert(store, "y").result()
    heard.clear()
    insert(store, "z").result()
    time.sleep(0.05)
    assert not heard.is_set()


def test_too_much_that_waits_is_refused(store, held, monkeypatch):
    monkeypatch.setattr(writing, "_MAX_WAITING", 5)
    kept = [insert(store, "x") for _ in range(5)]
    with pytest.raises(StoreBusy, match="wait to be written; try again later"):
        insert(store, "y").result(timeout=1)
    happened = store.log_served_batch(served([1]))
    held.set()
    assert all(future.result() for future in kept)
    happened.result(10)
    insert(store, "z").result()


def test_reads_do_not_wait_for_the_writer(store, held):
    store.log_served_batch(served([1]))
    answered = store.add_answer(given(1))
    assert store.list_feedback() == []
    held.set()
    answered.result()
    assert len(store.list_feedback()) == 1


def test_what_has_happened_already_gathers_until_somebody_waits_for_a_change(store, monkeypatch):
    monkeypatch.setattr(writing, "_GATHER_SECONDS", 1000.0)
    store.log_event("x", {}).result(10)
    commits = []
    sa.event.listen(store._database.writer, "commit", commits.append)
    behind = [store.submit(lambda _: None, must=True) for _ in range(3)]
    store.log_event("y", {}).result(10)
    assert all(future.done() for future in behind)
    assert len(commits) <= 2
