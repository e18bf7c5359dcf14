"""Clock, records and databases for tests of the store."""

import os
import uuid
from contextlib import contextmanager

import sqlalchemy as sa

from bitta.server.store import (
    LearnableAnswer,
    NewAnswer,
    NewPrediction,
    NewQuestion,
    NewSnapshot,
    ServedBatch,
)
from bitta.server.store.answers import IS_PENDING
from bitta.server.store.pending_answers import select_pending_answers

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


class ManualClock:
    """Clock that moves only when `move` is called."""

    def __init__(self):
        self.at = START

    def __call__(self):
        return self.at

    def move(self, seconds):
        self.at += round(seconds * SECOND)


def prediction_id(number):
    """Return the id of prediction `number`."""
    return f"P{number:025d}"


def served_batch(numbers, version="1.0"):
    """Return a batch of predictions. Prediction n has class n mod 10."""
    predictions = [
        NewPrediction(
            id=prediction_id(number),
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
    return ServedBatch("model", version, predictions)


def new_question(number, *, window=0, uncertainty=0.5, reason="uncertain", seconds=3600, overlap=1):
    """Return a question about prediction `number`."""
    expires_at = START + round(seconds * SECOND)
    return NewQuestion(
        prediction_id(number), window, number, uncertainty, reason, expires_at, overlap
    )


def new_answer(number, verdict="correct", *, by="anna", key=None, **more):
    """Return an answer to prediction `number`, with a new key by default."""
    return NewAnswer(prediction_id(number), verdict, by, key or uuid.uuid4().hex, **more)


def pending_answers(store):
    """Return the answers that no step has learned or claimed, in order of seq."""
    rows = store._rows(select_pending_answers().where(IS_PENDING))
    return [LearnableAnswer(**row) for row in rows]


def new_snapshot(number, version, reason="interval"):
    """Return snapshot `number`."""
    return NewSnapshot(
        f"S{number:025d}", version, f"snapshots/{number}.safetensors", "a" * 64, "b" * 64, reason
    )


@contextmanager
def temporary_database(kind):
    """Yield the address of an empty database, which is dropped afterwards."""
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
