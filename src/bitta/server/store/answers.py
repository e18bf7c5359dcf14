"""Changes to answers: added, replaced, undone, imported."""

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
from bitta.server.store.predictions_and_questions import (
    count_other_annotators,
    end_lease,
    find_lease_token,
    update_question_status,
)
from bitta.server.store.records import ExportedAnswer, ImportResult, NewAnswer, canonical_json
from bitta.server.store.schema import (
    feedback,
    predictions,
    questions,
    select_feedback,
    to_feedback,
)
from bitta.server.store.writer import append_event

IS_PENDING: ColumnElement[bool] = (feedback.c.status == "pending") & feedback.c.claimed_at.is_(None)
"""Condition for answers that were not learned and that no running step has claimed."""
_COMPARED_COLUMNS = [field.name for field in fields(NewAnswer) if field.name != "lease"]
"""Columns that must be equal when an idempotency key is used again."""


def add_answer(
    connection: Connection, *, answer: NewAnswer, feedback_id: str, at: int
) -> FeedbackReceipt:
    """Store an answer, unless it is stored already."""
    stored = _find_answer(connection, feedback.c.idempotency_key == answer.idempotency_key)
    if stored is not None:
        _check_repetition(stored, replace(answer, answered_at=None))
        return _receipt(connection, stored["id"], repeated=True)
    _check_prediction(connection, answer.prediction_id)
    question = _find_question(connection, answer.prediction_id)
    previous = _find_answer(connection, _is_by_annotator(answer) & feedback.c.standing)
    if previous is None and question is not None:
        _check_in_time(connection, question, answer, at)
    seq = append_event(connection, kind="answered", body={"feedback_id": feedback_id}, at=at)
    if previous is not None:
        _end_standing(connection, previous["id"])
    connection.execute(
        insert(feedback).values(
            **_to_row(answer, at),
            id=feedback_id,
            seq=seq,
            uncertainty=None if question is None else question["uncertainty"],
            selection_reason=None if question is None else question["reason"],
            supersedes_id=None if previous is None else previous["id"],
        )
    )
    end_lease(connection, answer.prediction_id, answer.annotator_id)
    update_question_status(connection, [answer.prediction_id])
    return _receipt(connection, feedback_id)


def import_answer(
    connection: Connection, *, exported: ExportedAnswer, feedback_id: str, at: int
) -> ImportResult:
    """Store an exported answer with its state: standing, replaced or undone.

    If the answer is stored already and the export says that it no longer stands, mark it so.
    """
    answer = exported.answer
    stored = _find_answer(connection, feedback.c.idempotency_key == answer.idempotency_key)
    if stored is None:
        replaced_standing_answer = _insert_exported(connection, exported, feedback_id, at)
    else:
        _check_repetition(stored, answer)
        feedback_id = stored["id"]
        replaced_standing_answer = bool(stored["standing"]) and not exported.is_standing
        if replaced_standing_answer:
            _end_standing(connection, feedback_id)
    if exported.undone:
        undo_answer(connection, feedback_id=feedback_id, by="import", at=at)
    update_question_status(connection, [answer.prediction_id])
    receipt = _receipt(connection, feedback_id, repeated=stored is not None)
    return ImportResult(receipt, replaced_standing_answer)


def _insert_exported(
    connection: Connection, exported: ExportedAnswer, feedback_id: str, at: int
) -> bool:
    """Insert an exported answer. Return True if it replaces a standing answer.

    It is stored even if the question has expired: the store that exported it checked the time.
    """
    answer = exported.answer
    _check_prediction(connection, answer.prediction_id)
    _check_new_id(connection, feedback_id)
    row = _to_row(answer, at)
    by_annotator = _is_by_annotator(answer)
    superseded = _find_answer(connection, by_annotator & (feedback.c.id == exported.supersedes_id))
    standing = _find_answer(connection, by_annotator & feedback.c.standing)
    # A later answer in this store stays the standing one.
    stands = exported.is_standing and (
        standing is None or standing["answered_at"] <= row["answered_at"]
    )
    if not stands:
        row |= {"standing": False, "status": "superseded"}
    elif standing is not None:
        _end_standing(connection, standing["id"])
        superseded = standing
    seq = append_event(connection, kind="answered", body={"feedback_id": feedback_id}, at=at)
    question = _find_question(connection, answer.prediction_id)
    connection.execute(
        insert(feedback).values(
            **row,
            id=feedback_id,
            seq=seq,
            uncertainty=exported.uncertainty if question is None else question["uncertainty"],
            selection_reason=exported.selection_reason if question is None else question["reason"],
            supersedes_id=None if superseded is None else superseded["id"],
        )
    )
    if stands:
        end_lease(connection, answer.prediction_id, answer.annotator_id)
    return stands and standing is not None


def undo_answer(connection: Connection, *, feedback_id: str, by: str, at: int) -> UndoReceipt:
    """Undo an answer. Undoing it again changes nothing."""
    stored = _find_answer(connection, feedback.c.id == feedback_id)
    if stored is None:
        raise UnknownFeedback(f"no feedback has the id {feedback_id!r}; it cannot be undone")
    is_applied = stored["status"] == "applied" or stored["claimed_at"] is not None
    if stored["undone_seq"] is None:
        body = {"feedback_id": feedback_id, "undoes": stored["seq"], "applied": is_applied}
        seq = append_event(connection, kind="undone", body=body | {"by": by}, at=at)
        has_id = feedback.c.id == feedback_id
        connection.execute(update(feedback).where(has_id).values(undone_seq=seq))
        _end_standing(connection, feedback_id)
        update_question_status(connection, [stored["prediction_id"]])
    note = (
        "The model had already learned from it; only a rollback removes that effect."
        if is_applied
        else "The model had not learned from it."
    )
    return UndoReceipt(feedback_id, is_applied, note)


def _end_standing(connection: Connection, feedback_id: str) -> None:
    """Mark an answer as not standing. If it is pending and not claimed, it becomes superseded."""
    connection.execute(
        update(feedback)
        .where(feedback.c.id == feedback_id)
        .values(standing=False, status=case((IS_PENDING, "superseded"), else_=feedback.c.status))
    )


def _check_repetition(stored: RowMapping, answer: NewAnswer) -> None:
    """Refuse an answer that differs from the stored answer with the same key.

    The lease is not compared. A missing time equals any stored time.
    """
    row = _to_row(answer, at=stored["answered_at"])
    for name in _COMPARED_COLUMNS:
        if stored[name] != row[name]:
            # The message omits the stored value, which may be another annotator's.
            raise IdempotencyConflict(
                f"the idempotency key {answer.idempotency_key!r} was used for another answer, "
                f"which has another {name}; give each answer its own key, and repeat an answer "
                "without changes"
            )


def _check_prediction(connection: Connection, prediction_id: str) -> None:
    found = select(predictions.c.id).where(predictions.c.id == prediction_id)
    if connection.execute(found).first() is None:
        raise UnknownPrediction(
            f"no prediction has the id {prediction_id!r}; give the prediction_id that came with it"
        )


def _check_new_id(connection: Connection, feedback_id: str) -> None:
    if _find_answer(connection, feedback.c.id == feedback_id) is not None:
        raise IdempotencyConflict(
            f"the id {feedback_id!r} belongs to another stored answer; leave it out"
        )


def _check_in_time(
    connection: Connection, question: RowMapping, answer: NewAnswer, at: int
) -> None:
    """Refuse the first answer of an annotator if it comes too late."""
    is_late = question["status"] == "open" and question["expires_at"] <= at
    if question["status"] == "expired" or is_late:
        raise QuestionExpired("this question expired before the answer came; take the next one")
    held_token = find_lease_token(connection, answer.prediction_id, answer.annotator_id, at)
    if answer.lease is None or answer.lease == held_token:
        return
    n_others = count_other_annotators(connection, answer.prediction_id, answer.annotator_id, at)
    if n_others >= question["overlap"]:
        raise QuestionExpired(
            "the lease ended and another annotator has the question; take the next one"
        )


def _is_by_annotator(answer: NewAnswer) -> ColumnElement[bool]:
    """Condition for answers of the same annotator about the same prediction."""
    is_same_annotator = feedback.c.annotator_id == answer.annotator_id
    return (feedback.c.prediction_id == answer.prediction_id) & is_same_annotator


def _find_answer(connection: Connection, condition: ColumnElement[bool]) -> RowMapping | None:
    return connection.execute(select(feedback).where(condition)).mappings().one_or_none()


def _find_question(connection: Connection, prediction_id: str) -> RowMapping | None:
    found = select(questions).where(questions.c.prediction_id == prediction_id)
    return connection.execute(found).mappings().one_or_none()


def _receipt(
    connection: Connection, feedback_id: str, *, repeated: bool = False
) -> FeedbackReceipt:
    found = select_feedback().where(feedback.c.id == feedback_id)
    record = to_feedback(connection.execute(found).mappings().one())
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return FeedbackReceipt(**values, repeated=repeated)


def _to_row(answer: NewAnswer, at: int) -> dict[str, Any]:
    row = asdict(answer)
    del row["lease"]
    metadata = None if answer.metadata is None else canonical_json(answer.metadata)
    return row | {
        "metadata": metadata,
        "answered_at": at if answer.answered_at is None else answer.answered_at,
        "received_at": at,
        "status": "pending",
        "standing": True,
    }
