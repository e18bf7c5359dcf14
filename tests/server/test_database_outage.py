"""Tests that a server survives a locked or unreachable database without losing anything."""

import os
import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa

from bitta.client import UnavailableError
from made_pictures import encoded, gradient
from server.processes import QUICK_SETTINGS, ForkedServer, Load, check_stored, until

pytestmark = pytest.mark.full

SETTINGS = f"max_queued_images = 128\n{QUICK_SETTINGS}"
"""Few predictions may wait, so that they are refused soon."""
BUSY_SECONDS = 1.0
"""Seconds after which the server gives up on a lock. The default is longer."""


@contextmanager
def under_load(server):
    """Start a server under load. After the block it must continue and have lost nothing."""
    server.start()
    try:
        with Load(server, images=16) as load:
            until(lambda: len(load.acknowledged) > 5, seconds=60, what="questions are answered")
            yield load
            server.wait_ready()
            before, predicted = len(load.acknowledged), load.n_predicted
            n_steps = server.n_steps()
            until(lambda: len(load.acknowledged) > before + 5, seconds=60, what="answers continue")
            until(lambda: load.n_predicted > predicted, seconds=60, what="predictions continue")
            until(lambda: server.n_steps() > n_steps, seconds=60, what="learning continues")
    finally:
        server.kill()
    assert load.statuses() <= {503}
    assert "raceback" not in server.log.read_text()
    check_stored(server, load.acknowledged)


def check_refusals(server, load, served, *, repeat=lambda: None):
    """Wait until answers and predictions are refused. Return both messages.

    `repeat` is called while it waits.
    """

    def refused_to_predict():
        repeat()
        return not_stored(load)

    with ThreadPoolExecutor() as pool, server.client("client") as client:
        answer = pool.submit(client.answer, served, correct=True)
        not_ready = pool.submit(until, server.not_ready_reason, seconds=60, what="it is not ready")
        until(refused_to_predict, seconds=60, what="predictions are refused", poll_seconds=0.2)
        not_ready.result()
        error = answer.exception()
    assert isinstance(error, UnavailableError)
    assert error.status == 503
    return str(error), not_stored(load)[-1]


def not_stored(load):
    """Return the refusals of predictions because of the database.

    Earlier ones say that too many predictions wait. If the database is unreachable, the lookup of a
    key is refused for the same reason.
    """
    return [message for message in map(str, load.refused["predict"]) if "too many" not in message]


def one_served(server):
    with server.client("client") as client:
        [served] = client.predict(encoded(gradient()))
    return served


def test_server_continues_after_database_was_locked(tmp_path, forker):
    server = ForkedServer(forker, tmp_path, settings=SETTINGS, busy_seconds=BUSY_SECONDS)
    with under_load(server) as load:
        served = one_served(server)
        database = server.data_dir / "bitta.db"
        with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")  # held longer than the server waits
            for message in check_refusals(server, load, served):
                assert "another program locks the database" in message


def test_server_killed_with_locked_database_loses_nothing(tmp_path, forker):
    """It is killed twice. Unacknowledged answers are sent again to the next server."""
    server = ForkedServer(forker, tmp_path, settings=SETTINGS, busy_seconds=BUSY_SECONDS)
    acknowledged, in_doubt = [], ()
    server.start()
    try:
        for _ in range(2):
            load = Load(server, images=16, in_doubt=in_doubt)
            until(lambda of=load: len(of.acknowledged) > 3, seconds=60, what="it answers")
            n_steps = server.n_steps()
            until(lambda of=n_steps: server.n_steps() > of + 1, seconds=60, what="it learns")
            with closing(sqlite3.connect(server.data_dir / "bitta.db", timeout=60)) as other:
                other.isolation_level = None
                other.execute("BEGIN EXCLUSIVE")
                until(lambda of=load: not_stored(of), seconds=60, what="predictions are refused")
                server.kill()
                load.end()
            acknowledged, in_doubt = acknowledged + load.acknowledged, load.in_doubt
            assert load.statuses() == {503}
            server.start()
    finally:
        server.kill()
    found = check_stored(server, acknowledged)
    assert found["events_recovered"] >= 1
    assert found["learned_from"] > 0


@contextmanager
def own_database():
    """Create a PostgreSQL database. Yield its URL and a function that executes SQL about it."""
    if not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    base = sa.make_url(os.environ["BITTA_TEST_POSTGRES"]).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(base, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    name = f"t_{uuid.uuid4().hex}"
    with engine.connect() as connection:
        try:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        except sa.exc.DBAPIError as error:
            pytest.skip(f"the PostgreSQL user cannot create databases ({error.orig})")
        try:
            own = base.set(database=name).render_as_string(hide_password=False)
            yield own, lambda text: connection.exec_driver_sql(text.format(name=name))
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


CLOSE_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
)


def test_server_reconnects_after_lost_connections(tmp_path, forker):
    with own_database() as (url, command):
        server = ForkedServer(forker, tmp_path, settings=SETTINGS, database=url)
        with under_load(server) as load:
            for _ in range(5):
                answered = len(load.acknowledged)
                assert command(CLOSE_CONNECTIONS).rowcount > 0
                until(
                    lambda n=answered: len(load.acknowledged) > n, seconds=60, what="it continues"
                )


def test_server_continues_after_database_was_unreachable(tmp_path, forker):
    with own_database() as (url, command):
        server = ForkedServer(forker, tmp_path, settings=SETTINGS, database=url)
        with under_load(server) as load:
            served = one_served(server)
            command("ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            # The first call does not see a connection that is just being opened, so repeat it.
            refusals = check_refusals(
                server, load, served, repeat=lambda: command(CLOSE_CONNECTIONS)
            )
            for message in refusals:
                assert "the database cannot be" in message
            command("ALTER DATABASE {name} ALLOW_CONNECTIONS true")
