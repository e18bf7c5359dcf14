"""Tests of the writing thread."""

import threading
import time

import pytest
import sqlalchemy as sa

from bitta.server.store import StoreBusy, StoreClosed, writer
from server.store.factories import new_answer, served_batch


def insert(store, kind):
    return store.log_event(kind, {})


@pytest.fixture
def held(store):
    """Event that the writer waits for. Changes submitted before it is set form one group."""
    go, begun = threading.Event(), threading.Event()

    def wait(_):
        begun.set()
        assert go.wait(10)

    store.submit(wait)
    begun.wait(10)
    return go


def test_waiting_changes_are_committed_together_in_order(store, held):
    commits = []
    sa.event.listen(store._database.writer, "commit", commits.append)
    futures = [insert(store, f"e{number}") for number in range(100)]
    assert not any(future.done() for future in futures)
    held.set()
    assert sorted(future.result() for future in futures) == [future.result() for future in futures]
    assert [event.kind for event in store.events()] == [f"e{number}" for number in range(100)]
    assert len(commits) == 2  # the fixture's change, and the hundred


def test_futures_are_done_after_the_commit(store, held):
    order = []
    sa.event.listen(store._database.writer, "commit", lambda _: order.append("commit"))
    futures = [insert(store, "x") for _ in range(3)]
    for future in futures:
        future.add_done_callback(lambda _: order.append("done"))
    held.set()
    futures[-1].result()
    assert order[:2] == ["commit", "commit"]
    assert set(order[2:]) == {"done"}


def test_error_in_one_change_does_not_affect_others(store, held):
    def wrong(connection):
        connection.execute(sa.text("INSERT INTO events (at, kind, body) VALUES (0, 'half', '{}')"))
        raise KeyError("failure")

    def unreadable(connection):
        connection.execute(sa.text("SELECT * FROM nowhere"))

    before, mine = insert(store, "before"), store.submit(wrong)
    sql, after = store.submit(unreadable), insert(store, "after")
    held.set()
    assert before.result() < after.result()
    with pytest.raises(KeyError, match="failure"):
        mine.result()
    with pytest.raises(sa.exc.DBAPIError, match="nowhere"):
        sql.result()
    assert [event.kind for event in store.events()] == ["before", "after"]


def test_submitted_change_cannot_be_cancelled(store, held):
    future = insert(store, "kept")
    assert not future.cancel()
    held.set()
    future.result()
    insert(store, "next").result()
    assert [event.kind for event in store.events()] == ["kept", "next"]


def test_after_runs_before_the_future_is_done(store):
    seen = []
    future = store.submit(lambda _: 3, after=seen.append)
    assert future.result() == 3
    assert seen == [3]


def test_close_writes_waiting_changes_and_refuses_later_ones(store, reopen, held):
    futures = [insert(store, "x") for _ in range(600)]
    held.set()
    store.close()
    assert all(future.done() for future in futures)
    with pytest.raises(StoreClosed, match="the store is closed"):
        insert(store, "y").result()
    assert len(reopen().events()) == 600


def test_store_can_be_closed_twice(store):
    store.close()
    store.close()


def test_listener_is_called_after_commits_despite_a_failing_one(store):
    is_called = threading.Event()

    def broken():
        raise RuntimeError("failure")

    stop_broken, stop = store.add_listener(broken), store.add_listener(is_called.set)
    insert(store, "x").result()
    assert is_called.wait(10)
    stop_broken()
    stop()
    insert(store, "y").result()
    is_called.clear()
    insert(store, "z").result()
    time.sleep(0.05)
    assert not is_called.is_set()


def test_full_queue_refuses_changes_except_must(store, held, monkeypatch):
    monkeypatch.setattr(writer, "_MAX_WAITING", 5)
    kept = [insert(store, "x") for _ in range(5)]
    with pytest.raises(StoreBusy, match="wait to be written; try again later"):
        insert(store, "y").result(timeout=1)
    happened = store.log_served_batch(served_batch([1]))
    held.set()
    assert all(future.result() for future in kept)
    happened.result(10)
    insert(store, "z").result()


def test_reads_do_not_wait_for_the_writer(store, held):
    store.log_served_batch(served_batch([1]))
    answered = store.add_answer(new_answer(1))
    assert store.list_feedback() == []
    held.set()
    answered.result()
    assert len(store.list_feedback()) == 1


def test_must_changes_are_gathered_until_another_change_comes(store, monkeypatch):
    monkeypatch.setattr(writer, "_GATHER_SECONDS", 1000.0)
    store.log_event("x", {}).result(10)
    commits = []
    sa.event.listen(store._database.writer, "commit", commits.append)
    waiting = [store.submit(lambda _: None, must=True) for _ in range(3)]
    store.log_event("y", {}).result(10)
    assert all(future.done() for future in waiting)
    assert len(commits) <= 2
