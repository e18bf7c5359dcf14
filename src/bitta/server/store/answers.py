"""Changes to answers: given once, replaced, taken back, brought back from a file."""

from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, case, insert, select, update

from bitta.records import FeedbackReceipt, UndoReceipt
from bitta.server.store.errors import (
    IdempotencyConflict,
    QuestionExpired,
    UnknownFeedback,
    UnknownPrediction,
)
from bitta.server.store.log import append
from bitta.server.store.questions import end_lease, holds, settle, taken_by_others
from bitta.server.store.records import (
    ExportedAnswer,
    ImportResult,
    NewAnswer,
)
from bitta.server.store.rows import as_feedback, feedback_records
from bitta.server.store.strict import canonical
from bitta.server.store.tables import feedback, predictions, questions

PENDING: ColumnElement[bool] = (feedback.c.status == "pending") & feedback.c.taken_at.is_(None)
"""Nothing has learned from it, and no step that runs does."""
_SAID = (
    *("prediction_id", "verdict", "annotator_id", "annotator_kind", "comment", "metadata"),
    *("shown_at", "answered_at", "lead_time_ms", "weight"),
)


def answer(
    connection: Connection, *, given: NewAnswer, feedback_id: str, at: int
) -> FeedbackReceipt:
    """Store a verdict, unless it is stored already."""
    stored = _one(connection, feedback.c.idempotency_key == given.idempotency_key)
    if stored is not None:
        _same(stored, replace(given, answered_at=None))
        return _record(connection, stored["id"], repeated=True)
    _known(connection, given.prediction_id)
    question = _question(connection, given.prediction_id)
    standing = _one(
        connection,
        (feedback.c.prediction_id == given.prediction_id)
        & (feedback.c.annotator_id == given.annotator_id)
        & feedback.c.standing,
    )
    if standing is None and question is not None:
        _in_time(connection, question, given, at)
    seq = append(connection, kind="answered", body={"feedback_id": feedback_id}, at=at)
    if standing is not None:
        _retire(connection, standing["id"])
    asked = question or {"uncertainty": None, "reason": None}
    connection.execute(
        insert(feedback).values(
            **_columns(given, at),
            id=feedback_id,
            seq=seq,
            uncertainty=asked["uncertainty"],
            selection_reason=asked["reason"],
            supersedes_id=None if standing is None else standing["id"],
        )
    )
    end_lease(connection, given.prediction_id, given.annotator_id)
    settle(connection, [given.prediction_id])
    return _record(connection, feedback_id)


def restore(
    connection: Connection, *, told: ExportedAnswer, feedback_id: str, at: int
) -> ImportResult:
    """Store an answer with what became of it elsewhere; one that stood no longer does not stand."""
    stored = _one(connection, feedback.c.idempotency_key == told.given.idempotency_key)
    if stored is None:
        ended = _put_back(connection, told, feedback_id, at)
    else:
        _same(stored, told.given)
        feedback_id = stored["id"]
        ended = bool(stored["standing"]) and not told.stood
        if ended:
            _retire(connection, feedback_id)
    if told.undone:
        undo(connection, feedback_id=feedback_id, by="import", at=at)
    settle(connection, [told.given.prediction_id])
    return ImportResult(_record(connection, feedback_id, repeated=stored is not None), ended)


def _put_back(connection: Connection, told: ExportedAnswer, feedback_id: str, at: int) -> bool:
    """Insert an answer that was in time once; whether it replaces one that stood."""
    given = told.given
    _known(connection, given.prediction_id)
    if _one(connection, feedback.c.id == feedback_id) is not None:
        raise IdempotencyConflict(
            f"the id {feedback_id!r} is that of another stored answer; leave it out"
        )
    mine = (feedback.c.prediction_id == given.prediction_id) & (
        feedback.c.annotator_id == given.annotator_id
    )
    columns = _columns(given, at)
    replaced = _one(connection, mine & (feedback.c.id == told.supersedes_id))
    last = _one(connection, mine & feedback.c.standing)
    # Said after the one in the file, it is still the last word.
    stands = told.stood and (last is None or last["answered_at"] <= columns["answered_at"])
    if not stands:
        columns |= {"standing": False, "status": "superseded"}
    elif last is not None:
        _retire(connection, last["id"])
        replaced = last
    seq = append(connection, kind="answered", body={"feedback_id": feedback_id}, at=at)
    asked = _question(connection, given.prediction_id)
    connection.execute(
        insert(feedback).values(
            **columns,
            id=feedback_id,
            seq=seq,
            uncertainty=told.uncertainty if asked is None else asked["uncertainty"],
            selection_reason=told.selection_reason if asked is None else asked["reason"],
            supersedes_id=None if replaced is None else replaced["id"],
        )
    )
    if stands:
        end_lease(connection, given.prediction_id, given.annotator_id)
    return stands and last is not None


def undo(connection: Connection, *, feedback_id: str, by: str, at: int) -> UndoReceipt:
    """Take an answer back; once is enough."""
    found = _one(connection, feedback.c.id == feedback_id)
    if found is None:
        raise UnknownFeedback(f"no feedback has the id {feedback_id!r}; it cannot be undone")
    applied = found["status"] == "applied" or found["taken_at"] is not None
    if found["undone_seq"] is not None:
        return _undo_receipt(feedback_id, is_applied=applied)
    body = {"feedback_id": feedback_id, "undoes": found["seq"], "applied": applied, "by": by}
    seq = append(connection, kind="undone", body=body, at=at)
    connection.execute(update(feedback).where(feedback.c.id == feedback_id).values(undone_seq=seq))
    _retire(connection, feedback_id)
    settle(connection, [found["prediction_id"]])
    return _undo_receipt(feedback_id, is_applied=applied)


def _retire(connection: Connection, feedback_id: str) -> None:
    """Let an answer stand no longer; what was learned from it stays learned."""
    connection.execute(
        update(feedback)
        .where(feedback.c.id == feedback_id)
        .values(standing=False, status=case((PENDING, "superseded"), else_=feedback.c.status))
    )


def _same(stored: RowMapping, given: NewAnswer) -> None:
    """Refuse an answer that says something else than the stored one of its key.

    The lease is how they came by the question; a moment that is left out is the stored one's.
    """
    told = _columns(given, at=stored["answered_at"])
    for name in _SAID:
        if stored[name] != told[name]:
            raise IdempotencyConflict(  # without saying which, as it may be somebody else's
                f"the idempotency key {given.idempotency_key!r} was used for another answer, with "
                f"another {name}; give each answer a key of its own, and repeat one only as it was"
            )


def _known(connection: Connection, prediction_id: str) -> None:
    found = select(predictions.c.id).where(predictions.c.id == prediction_id)
    if connection.execute(found).first() is None:
        raise UnknownPrediction(
            f"no prediction has the id {prediction_id!r}; give the prediction_id that came with it"
        )


def _question(connection: Connection, prediction_id: str) -> RowMapping | None:
    found = select(questions).where(questions.c.prediction_id == prediction_id)
    return connection.execute(found).mappings().one_or_none()


def _in_time(connection: Connection, question: RowMapping, given: NewAnswer, at: int) -> None:
    """Refuse a first answer that comes too late."""
    late = question["status"] == "open" and question["expires_at"] <= at
    if question["status"] == "expired" or late:
        raise QuestionExpired("this question expired before the answer came; take the next one")
    if given.lease is None or given.lease == holds(
        connection, given.prediction_id, given.annotator_id, at
    ):
        return
    others = taken_by_others(connection, given.prediction_id, given.annotator_id, at)
    if others >= question["overlap"]:
        raise QuestionExpired(
            "the lease ran out and another annotator has the question; take the next one"
        )


def _one(connection: Connection, where: ColumnElement[bool]) -> RowMapping | None:
    return connection.execute(select(feedback).where(where)).mappings().one_or_none()


def _record(connection: Connection, feedback_id: str, *, repeated: bool = False) -> FeedbackReceipt:
    found = feedback_records().where(feedback.c.id == feedback_id)
    record = as_feedback(connection.execute(found).mappings().one())
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return FeedbackReceipt(**values, repeated=repeated)


def _undo_receipt(feedback_id: str, *, is_applied: bool) -> UndoReceipt:
    note = (
        "The model had already learned from it; a rollback undoes that."
        if is_applied
        else "It was not learned from."
    )
    return UndoReceipt(feedback_id, is_applied, note)


def _columns(given: NewAnswer, at: int) -> dict[str, Any]:
    fields = asdict(given)
    del fields["lease"]
    written = None if given.metadata is None else canonical(given.metadata)
    moment = at if given.answered_at is None else given.answered_at
    return fields | {
        "metadata": written,
        "answered_at": moment,
        "received_at": at,
        "status": "pending",
        "standing": True,
    }
