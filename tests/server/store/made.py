"""What the tests of the store are made of."""

import os
import uuid
from contextlib import contextmanager

import sqlalchemy as sa

from bitta.server.store import NewAnswer, NewPrediction, NewQuestion, NewSnapshot, ServedBatch

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


class Watch:
    """A clock that stands still unless it is moved."""

    def __init__(self):
        self.at = START

    def __call__(self):
        return self.at

    def move(self, seconds):
        self.at += round(seconds * SECOND)


def name(number):
    """The id of a made prediction."""
    return f"P{number:025d}"


def served(numbers, version="1.0"):
    """A batch of predictions; number n has class n mod 10."""
    made = [
        NewPrediction(
            id=name(number),
            position=number,
            request_id=f"r{number}",
            input_sha256=f"{number:064x}",
            class_index=number % 10,
            label=f"class {number % 10}",
            confidence=0.5,
            served_at=START,
        )
        for number in numbers
    ]
    return ServedBatch("model", version, made)


def question(number, *, step=0, uncertainty=0.5, reason="uncertain", seconds=3600, overlap=1):
    """A question about prediction `number`."""
    expires_at = START + round(seconds * SECOND)
    return NewQuestion(name(number), step, number, uncertainty, reason, expires_at, overlap)


def given(number, verdict="correct", *, by="anna", key=None, **more):
    """An answer to prediction `number`; its key is new unless it is given."""
    return NewAnswer(name(number), verdict, by, key or uuid.uuid4().hex, **more)


def snapshot(number, version, reason="interval"):
    """Snapshot `number`."""
    return NewSnapshot(
        f"S{number:025d}", version, f"snapshots/{number}.safetensors", "a" * 64, "b" * 64, reason
    )


@contextmanager
def database(kind):
    """The address of an empty database, for as long as it is needed."""
    if kind == "sqlite":
        yield None
        return
    schema = f"t_{uuid.uuid4().hex}"
    base = sa.make_url(os.environ["BITTA_TEST_POSTGRES"]).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(base, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    try:
        own = base.update_query_dict({"options": f"-csearch_path={schema}"})
        yield own.render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
        engine.dispose()
