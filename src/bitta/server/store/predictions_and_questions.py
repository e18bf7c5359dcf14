"""Changes to predictions, questions and leases."""

import math
from collections.abc import Collection, Sequence
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
from bitta.server.store.records import (
    Clock,
    LeasedQuestion,
    NewPrediction,
    NewQuestion,
    ServedBatch,
)
from bitta.server.store.schema import (
    feedback,
    leases,
    predictions,
    question_columns,
    questions,
    to_question,
)
from bitta.server.store.writer import append_event

_MICROSECONDS = 1_000_000
_ADD_PREDICTIONS = insert(predictions)


def log_served_batch(connection: Connection, *, batch: ServedBatch, at: int) -> None:
    """Log a forward pass and add its predictions."""
    new = batch.predictions
    body = {
        "first_position": min((prediction.position for prediction in new), default=None),
        "prediction_ids": [prediction.id for prediction in new],
        "model_version": batch.model_version,
        "during": None if batch.during is None else list(batch.during),
    }
    if batch.skips_questions:
        body["skips_questions"] = True
    shared: dict[str, Any] = {
        "event_seq": append_event(connection, kind="served", body=body, at=at),
        "model_name": batch.model_name,
        "model_version": batch.model_version,
    }
    if new:
        connection.execute(_ADD_PREDICTIONS, [shared | _to_row(prediction) for prediction in new])


def add_questions(connection: Connection, *, new: Sequence[NewQuestion], at: int) -> None:
    """Open questions. A question whose prediction has enough verdicts is closed at once."""
    if not new:
        return
    rows = [_to_row(question) for question in new]
    seq = append_event(connection, kind="asked", body={"questions": rows}, at=at)
    shared: dict[str, Any] = {"asked_seq": seq, "asked_at": at, "status": "open"}
    connection.execute(insert(questions), [shared | row for row in rows])
    update_question_status(connection, [question.prediction_id for question in new])


def lease_question(
    connection: Connection,
    *,
    annotator_id: str,
    token: str,
    seconds: float,
    exclude: Collection[str],
    clock: Clock,
) -> LeasedQuestion | None:
    """Lease the first available question to an annotator, or extend the lease they hold."""
    at = clock()
    available = _available_questions(annotator_id, at)
    if exclude:
        available = available.where(questions.c.prediction_id.not_in(exclude))
    first = connection.execute(available.limit(1)).mappings().one_or_none()
    if first is None:
        return None
    until = min(at + round(seconds * _MICROSECONDS), first["expires_at"])
    held_token = first["held_token"]
    own_lease = _is_lease(first["prediction_id"], annotator_id)
    if held_token is None:
        # An expired lease of the same annotator can still be there.
        connection.execute(delete(leases).where(own_lease))
        new = {"prediction_id": first["prediction_id"], "annotator_id": annotator_id}
        connection.execute(insert(leases).values(**new, token=token, until=until))
    else:
        connection.execute(update(leases).where(own_lease).values(until=until))
    still_available = _available_questions(annotator_id, at).order_by(None).subquery()
    left = connection.execute(select(func.count()).select_from(still_available)).scalar_one()
    return LeasedQuestion(to_question(first), Lease(held_token or token, until), int(left))


def expire_questions(connection: Connection, *, at: int) -> list[str]:
    """Mark open questions that have expired, and return the ids of their predictions."""
    is_over = and_(questions.c.status == "open", questions.c.expires_at <= at)
    found = select(questions.c.prediction_id).where(is_over)
    ordered = found.order_by(questions.c.asked_seq, questions.c.row)
    ids = list(connection.execute(ordered).scalars())
    if ids:
        append_event(connection, kind="expired", body={"prediction_ids": ids}, at=at)
        connection.execute(update(questions).where(is_over).values(status="expired"))
        for chunk in in_chunks(ids):
            connection.execute(delete(leases).where(leases.c.prediction_id.in_(chunk)))
    return ids


def update_question_status(connection: Connection, prediction_ids: Sequence[str]) -> None:
    """Close questions that have enough verdicts, and reopen those that have not."""
    has_enough = _count_verdicts(questions.c.prediction_id) >= questions.c.overlap
    for chunk in in_chunks(prediction_ids):
        connection.execute(
            update(questions)
            .where(questions.c.prediction_id.in_(chunk), questions.c.status != "expired")
            .values(status=case((has_enough, "closed"), else_="open"))
        )


def end_lease(connection: Connection, prediction_id: str, annotator_id: str) -> None:
    """Delete the lease of an annotator on a question."""
    connection.execute(delete(leases).where(_is_lease(prediction_id, annotator_id)))


def find_lease_token(
    connection: Connection, prediction_id: str, annotator_id: str, at: int
) -> str | None:
    """Return the token of the lease that an annotator holds on a question."""
    is_valid = leases.c.until > at
    found = select(leases.c.token).where(_is_lease(prediction_id, annotator_id), is_valid)
    return connection.execute(found).scalar_one_or_none()


def count_other_annotators(
    connection: Connection, prediction_id: str, annotator_id: str, at: int
) -> int:
    """Count the other annotators that hold or have answered a question."""
    count = _count_others(literal(prediction_id), annotator_id, at)
    return int(connection.execute(select(count)).scalar_one())


def in_chunks(ids: Sequence[str], size: int = 500) -> list[Sequence[str]]:
    """Split ids into lists that are short enough for the parameters of one statement."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def _available_questions(annotator_id: str, at: int) -> Select[Any]:
    """Select the questions that an annotator can get, in the order of leasing."""
    own_lease = leases.alias("own_lease")
    own_answer = select(feedback.c.id).where(
        feedback.c.prediction_id == questions.c.prediction_id,
        feedback.c.annotator_id == annotator_id,
        feedback.c.standing,
    )
    joined = questions.join(predictions).outerjoin(
        own_lease,
        and_(
            own_lease.c.prediction_id == questions.c.prediction_id,
            own_lease.c.annotator_id == annotator_id,
            own_lease.c.until > at,
        ),
    )
    n_others = _count_others(questions.c.prediction_id, annotator_id, at)
    return (
        select(*question_columns(), own_lease.c.token.label("held_token"))
        .select_from(joined)
        .where(
            questions.c.status == "open",
            questions.c.expires_at > at,
            ~own_answer.exists(),
            or_(own_lease.c.token.is_not(None), n_others < questions.c.overlap),
        )
        .order_by(
            own_lease.c.token.is_(None),
            questions.c.window.desc(),
            questions.c.reason != "audit",
            # Audits in order of uncertainty would bias the accuracy if only some are answered.
            case((questions.c.reason == "audit", 0.0), else_=questions.c.uncertainty).desc(),
            questions.c.prediction_id,
        )
    )


def _count_others(
    prediction_id: ColumnElement[Any], annotator_id: str, at: int
) -> ColumnElement[int]:
    """Count the other annotators that have a lease or a verdict.

    Nobody is counted twice, because an answer ends the lease.
    """
    other_lease = leases.alias("other_lease")
    n_leases = (
        select(func.count())
        .select_from(other_lease)
        .where(
            other_lease.c.prediction_id == prediction_id,
            other_lease.c.annotator_id != annotator_id,
            other_lease.c.until > at,
        )
        .scalar_subquery()
    )
    return n_leases + _count_verdicts(prediction_id, feedback.c.annotator_id != annotator_id)


def _count_verdicts(
    prediction_id: ColumnElement[Any], *conditions: ColumnElement[bool]
) -> ColumnElement[int]:
    """Count standing verdicts without skips."""
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


def _is_lease(prediction_id: str, annotator_id: str) -> ColumnElement[bool]:
    return and_(leases.c.prediction_id == prediction_id, leases.c.annotator_id == annotator_id)


def _to_row(new: NewPrediction | NewQuestion) -> dict[str, Any]:
    return {field.name: _replace_nan(getattr(new, field.name)) for field in fields(new)}


def _replace_nan(value: object) -> object:
    """Replace NaN and infinities by 0. A diverged model yields them; JSON cannot express them."""
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value
