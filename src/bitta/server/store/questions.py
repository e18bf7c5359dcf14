"""Changes to predictions and questions: served, asked, leased, closed, expired."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)

from bitta.records import Lease
from bitta.server.store.log import append
from bitta.server.store.records import LeasedQuestion, NewPrediction, NewQuestion, ServedBatch
from bitta.server.store.rows import as_question, question_columns
from bitta.server.store.tables import feedback, leases, predictions, questions

_MICROSECONDS = 1_000_000
_ADD_PREDICTIONS = insert(predictions)


def served(connection: Connection, *, batch: ServedBatch, at: int) -> None:
    """Log one pass through the model."""
    new = batch.predictions
    body = {
        "first_position": min((one.position for one in new), default=None),
        "prediction_ids": [one.id for one in new],
        "model_version": batch.model_version,
        "during": None if batch.during is None else list(batch.during),
    }
    if batch.silent:
        body["silent"] = True
    shared: dict[str, Any] = {
        "event_seq": append(connection, kind="served", body=body, at=at),
        "model_name": batch.model_name,
        "model_version": batch.model_version,
    }
    if new:
        connection.execute(_ADD_PREDICTIONS, [shared | _fields(one) for one in new])


def asked(connection: Connection, *, asks: Sequence[NewQuestion], at: int) -> None:
    """Open questions; one that has enough verdicts already is closed at once."""
    if not asks:
        return
    bodies = [_fields(one) for one in asks]
    seq = append(connection, kind="asked", body={"questions": bodies}, at=at)
    shared: dict[str, Any] = {"asked_seq": seq, "asked_at": at, "status": "open"}
    connection.execute(insert(questions), [shared | body for body in bodies])
    settle(connection, [one.prediction_id for one in asks])


def lease(
    connection: Connection,
    *,
    annotator_id: str,
    token: str,
    seconds: float,
    besides: Collection[str],
    clock: Callable[[], int],
) -> LeasedQuestion | None:
    """Give an annotator the first question that is free for them."""
    at = clock()
    free = _free(annotator_id, at)
    if besides:
        free = free.where(questions.c.prediction_id.not_in(besides))
    first = connection.execute(free.limit(1)).mappings().one_or_none()
    if first is None:
        return None
    until = min(at + round(seconds * _MICROSECONDS), first["expires_at"])
    held = first["held_token"]
    mine = _mine(first["prediction_id"], annotator_id)
    if held is None:
        # One of mine that ran out may still lie there.
        connection.execute(delete(leases).where(mine))
        new = {"prediction_id": first["prediction_id"], "annotator_id": annotator_id}
        connection.execute(insert(leases).values(**new, token=token, until=until))
    else:
        connection.execute(update(leases).where(mine).values(until=until))
    left = select(func.count()).select_from(_free(annotator_id, at).order_by(None).subquery())
    return LeasedQuestion(
        as_question(first), Lease(held or token, until), int(connection.execute(left).scalar_one())
    )


def expire(connection: Connection, *, at: int) -> list[str]:
    """Mark open questions whose time is over."""
    over = and_(questions.c.status == "open", questions.c.expires_at <= at)
    found = select(questions.c.prediction_id).where(over).order_by(questions.c.asked_seq)
    ids = list(connection.execute(found.order_by(questions.c.row)).scalars())
    if ids:
        append(connection, kind="expired", body={"prediction_ids": ids}, at=at)
        connection.execute(update(questions).where(over).values(status="expired"))
        for some in in_parts(ids):
            connection.execute(delete(leases).where(leases.c.prediction_id.in_(some)))
    return ids


def settle(connection: Connection, prediction_ids: Sequence[str]) -> None:
    """Close questions that have their verdicts; open those again that have lost some."""
    enough = verdicts_on(questions.c.prediction_id) >= questions.c.overlap
    for some in in_parts(prediction_ids):
        connection.execute(
            update(questions)
            .where(questions.c.prediction_id.in_(some), questions.c.status != "expired")
            .values(status=case((enough, "closed"), else_="open"))
        )


def end_lease(connection: Connection, prediction_id: str, annotator_id: str) -> None:
    """Take an answered question out of the annotator's hands."""
    connection.execute(delete(leases).where(_mine(prediction_id, annotator_id)))


def holds(connection: Connection, prediction_id: str, annotator_id: str, at: int) -> str | None:
    """Token of the lease that an annotator has on a question at a moment."""
    found = select(leases.c.token).where(_mine(prediction_id, annotator_id), leases.c.until > at)
    return connection.execute(found).scalar_one_or_none()


def taken_by_others(connection: Connection, prediction_id: str, annotator_id: str, at: int) -> int:
    """Count the other annotators that hold or have answered a question."""
    return int(
        connection.execute(select(_others(literal(prediction_id), annotator_id, at))).scalar_one()
    )


def verdicts_on(
    prediction_id: ColumnElement[Any], *conditions: ColumnElement[bool]
) -> ColumnElement[int]:
    """Count standing verdicts, skips left out."""
    return (
        select(func.count())
        .where(
            feedback.c.prediction_id == prediction_id,
            feedback.c.standing,
            feedback.c.verdict != "skip",
            *conditions,
        )
        .scalar_subquery()
    )


def in_parts(ids: Sequence[str], most: int = 500) -> list[Sequence[str]]:
    """Lists short enough to be parameters of one statement."""
    return [ids[start : start + most] for start in range(0, len(ids), most)]


def _free(annotator_id: str, at: int) -> Select[Any]:
    """Questions open to an annotator, in the order they are given out."""
    mine = leases.alias("mine")
    answered = select(feedback.c.id).where(
        feedback.c.prediction_id == questions.c.prediction_id,
        feedback.c.annotator_id == annotator_id,
        feedback.c.standing,
    )
    joined = questions.join(predictions).outerjoin(
        mine,
        and_(
            mine.c.prediction_id == questions.c.prediction_id,
            mine.c.annotator_id == annotator_id,
            mine.c.until > at,
        ),
    )
    return (
        select(*question_columns(), mine.c.token.label("held_token"))
        .select_from(joined)
        .where(
            questions.c.status == "open",
            questions.c.expires_at > at,
            ~answered.exists(),
            or_(
                mine.c.token.is_not(None),
                _others(questions.c.prediction_id, annotator_id, at) < questions.c.overlap,
            ),
        )
        .order_by(
            mine.c.token.is_(None),
            questions.c.step.desc(),
            questions.c.reason != "audit",
            questions.c.uncertainty.desc(),
            questions.c.prediction_id,
        )
    )


def _others(prediction_id: ColumnElement[Any], annotator_id: str, at: int) -> ColumnElement[int]:
    """Count other annotators with a lease or a verdict; an answer ends its lease, so never both."""
    theirs = leases.alias("theirs")
    holding = (
        select(func.count())
        .select_from(theirs)
        .where(
            theirs.c.prediction_id == prediction_id,
            theirs.c.annotator_id != annotator_id,
            theirs.c.until > at,
        )
        .scalar_subquery()
    )
    return holding + verdicts_on(prediction_id, feedback.c.annotator_id != annotator_id)


def _mine(prediction_id: str, annotator_id: str) -> ColumnElement[bool]:
    return and_(leases.c.prediction_id == prediction_id, leases.c.annotator_id == annotator_id)


def _fields(one: NewPrediction | NewQuestion) -> dict[str, Any]:
    return {field.name: _storable(getattr(one, field.name)) for field in fields(one)}


def _storable(value: object) -> object:
    """A model that has diverged says what is no number; it is stored as 0, not refused."""
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value
