"""A server whose database is locked or away says so, loses nothing, and goes on by itself."""

import os
import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa

from bitta.client import UnavailableError
from made_pictures import encoded, gradient
from server.forked import ForkedServer
from server.processes import QUICK, Load, check_stored, until

SETTINGS = f"max_waiting = 128\n{QUICK}"
"""Predictions are refused soon once they cannot be stored."""
BUSY = 1.0
"""Seconds after which a lock is a trouble; users wait for longer."""


@contextmanager
def under_load(server):
    """A server that has learned; afterwards it must be as if nothing had happened."""
    server.start()
    try:
        with Load(server, images=16) as load:
            until(lambda: len(load.acknowledged) > 5, seconds=60, what="questions are answered")
            yield load
            server.wait_ready()
            before, predicted = len(load.acknowledged), load.n_predicted
            learned = server.steps()
            until(lambda: len(load.acknowledged) > before + 5, seconds=60, what="answers go on")
            until(lambda: load.n_predicted > predicted, seconds=60, what="predictions go on")
            until(lambda: server.steps() > learned, seconds=60, what="learning goes on")
    finally:
        server.kill()
    assert load.statuses() <= {503}
    assert "raceback" not in server.log.read_text()
    check_stored(server, load.acknowledged)


def check_refusals(server, load, served, *, again=lambda: None):
    """Wait until nothing is promised any more, not an answer, not a prediction; what is said.

    `again` is done while it is waited.
    """

    def refused_to_predict():
        again()
        return not_stored(load)

    with ThreadPoolExecutor() as pool, server.client("client") as client:
        answer = pool.submit(client.answer, served, correct=True)
        told = pool.submit(until, server.ready, seconds=60, what="it is not ready")
        until(refused_to_predict, seconds=60, what="predictions are refused", look=0.2)
        told.result()
        refused = answer.exception()
    assert isinstance(refused, UnavailableError)
    assert refused.status == 503
    return str(refused), not_stored(load)[-1]


def not_stored(load):
    """What was said of predictions once the trouble was known; before, that too many wait.

    Where the database is away, a key that is to be looked up again is refused for the same reason.
    """
    return [said for said in map(str, load.refused["predict"]) if "too many" not in said]


def one_served(server):
    with server.client("client") as client:
        [served] = client.predict(encoded(gradient()))
    return served


def test_a_database_locked_by_another_program_is_waited_for(tmp_path, nursery):
    server = ForkedServer(nursery, tmp_path, settings=SETTINGS, busy_seconds=BUSY)
    with under_load(server) as load:
        served = one_served(server)
        database = server.data_dir / "bitta.db"
        with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")  # and held for longer than the server waits
            for sentence in check_refusals(server, load, served):
                assert "another program locks the database" in sentence


def test_a_server_killed_while_its_database_is_locked_has_lost_nothing(tmp_path, nursery):
    """Twice; what was sent meanwhile is in doubt, and sent again to the next server."""
    server = ForkedServer(nursery, tmp_path, settings=SETTINGS, busy_seconds=BUSY)
    acknowledged, in_doubt = [], ()
    server.start()
    try:
        for _ in range(2):
            load = Load(server, images=16, in_doubt=in_doubt)
            until(lambda of=load: len(of.acknowledged) > 3, seconds=60, what="it answers")
            learned = server.steps()
            until(lambda of=learned: server.steps() > of + 1, seconds=60, what="it learns")
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
    """A database that can be taken away without harm to others; its address, and a hand on it."""
    if not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    base = sa.make_url(os.environ["BITTA_TEST_POSTGRES"]).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(base, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    name = f"t_{uuid.uuid4().hex}"
    with engine.connect() as connection:
        try:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        except sa.exc.DBAPIError as error:
            pytest.skip(f"this PostgreSQL makes no databases for us ({error.orig})")
        try:
            own = base.set(database=name).render_as_string(hide_password=False)
            yield own, lambda text: connection.exec_driver_sql(text.format(name=name))
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


HANG_UP = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"


def test_lost_connections_are_made_anew(tmp_path, nursery):
    with own_database() as (url, command):
        server = ForkedServer(nursery, tmp_path, settings=SETTINGS, database=url)
        with under_load(server) as load:
            for _ in range(5):
                answered = len(load.acknowledged)
                assert command(HANG_UP).rowcount > 0
                until(lambda n=answered: len(load.acknowledged) > n, seconds=60, what="it goes on")


def test_a_database_that_goes_away_is_waited_for(tmp_path, nursery):
    with own_database() as (url, command):
        server = ForkedServer(nursery, tmp_path, settings=SETTINGS, database=url)
        with under_load(server) as load:
            served = one_served(server)
            command("ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            # A connection that was being made is not seen the first time, and would live on.
            refusals = check_refusals(server, load, served, again=lambda: command(HANG_UP))
            for sentence in refusals:
                assert "the database cannot be" in sentence
            command("ALTER DATABASE {name} ALLOW_CONNECTIONS true")
