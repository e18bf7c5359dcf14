"""Answers that the learner can use: claimed for a step, then learned, released or expired.

An answer that arrives after a restart is pending like any other. The engine finds the image of its
prediction in memory or on disk (`ServedLog.find_input`).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    RowMapping,
    Select,
    and_,
    exists,
    select,
    update,
)

from bitta.server.store.answers import IS_PENDING
from bitta.server.store.lineages import (
    APPLIED_COLUMNS,
    IS_CLAIMED,
    NOT_APPLIED,
    PENDING_AGAIN,
    trace_lineages,
)
from bitta.server.store.predictions_and_questions import in_chunks
from bitta.server.store.records import LearnableAnswer, LearnedStep, parse_version
from bitta.server.store.schema import events, feedback, predictions
from bitta.server.store.writer import append_event

_SUPERSEDED = NOT_APPLIED | {"status": "superseded"}
_EARLIER = feedback.alias("earlier")
_CLAIMED = feedback.alias("claimed")


def _is_by_same_annotator(other: FromClause) -> ColumnElement[bool]:
    """Condition for another answer of the same annotator about the same prediction."""
    same = (other.c[name] == feedback.c[name] for name in ("prediction_id", "annotator_id"))
    return and_(*same, other.c.id != feedback.c.id)


_IS_AVAILABLE = IS_PENDING & ~exists().where(
    _is_by_same_annotator(_CLAIMED), _CLAIMED.c.claimed_at.is_not(None)
)
"""Condition for answers that can be claimed.

An answer waits while an earlier answer of the same annotator about the same prediction is claimed.
"""


def claim_answers(connection: Connection, *, limit: int | None, at: int) -> list[LearnableAnswer]:
    """Claim pending answers for a learning step, oldest first.

    An answer is marked as applied, and not claimed, if the same annotator gave the same verdict on
    the same prediction before and the model learned from it.
    """
    replacing = _compare_with_learned_answers(connection)
    found = select_pending_answers().where(_IS_AVAILABLE).limit(limit)
    claimed = [LearnableAnswer(**row) for row in connection.execute(found).mappings()]
    for chunk in in_chunks([answer.feedback_id for answer in claimed]):
        connection.execute(update(feedback).where(feedback.c.id.in_(chunk)).values(claimed_at=at))
    return [replace(answer, replaces_answer=answer.feedback_id in replacing) for answer in claimed]


def _compare_with_learned_answers(connection: Connection) -> set[str]:
    """Return the pending answers that contradict a learned answer of the same annotator.

    Where the verdicts are equal, mark the pending answer as applied in place of the learned one.
    """
    replacing = set()
    for new_id, learned in _find_learned_answers(connection).items():
        if learned["verdict"] != learned["new_verdict"]:
            replacing.add(new_id)
            continue
        applied = {"status": "applied"} | {name: learned[name] for name in APPLIED_COLUMNS}
        for id_, values in ((learned["id"], _SUPERSEDED), (new_id, applied)):
            connection.execute(update(feedback).where(feedback.c.id == id_).values(**values))
    return replacing


def _find_learned_answers(connection: Connection) -> dict[str, RowMapping]:
    """Return the learned answer that each pending answer of the same annotator replaces.

    Keys are ids of pending answers. If an annotator has several learned answers, the last one in
    the lineages that led to the current weights counts.
    """
    columns = [_EARLIER.c[name] for name in ("id", "verdict", *APPLIED_COLUMNS)]
    found = (
        select(feedback.c.id.label("new_id"), feedback.c.verdict.label("new_verdict"), *columns)
        .where(_IS_AVAILABLE, feedback.c.verdict != "skip", _is_by_same_annotator(_EARLIER))
        .where(_EARLIER.c.status == "applied")
        .order_by(_EARLIER.c.applied_lineage, _EARLIER.c.applied_step)
    )
    rows = connection.execute(found).mappings().all()
    last_steps = trace_lineages(connection) if rows else {}
    return {
        row["new_id"]: row
        for row in rows
        if row["applied_step"] <= last_steps.get(row["applied_lineage"], -1)
    }


def select_pending_answers() -> Select[Any]:
    """Select answers without skips, in order of seq. A row has the fields of `LearnableAnswer`."""
    own = ("prediction_id", "verdict", "annotator_id")
    about = ("class_index", "position", "input_sha256")
    return (
        select(
            feedback.c.id.label("feedback_id"),
            *(feedback.c[name] for name in own),
            *(predictions.c[name] for name in about),
        )
        .select_from(feedback.join(predictions))
        .where(feedback.c.verdict != "skip")
        .order_by(feedback.c.seq)
    )


def release_answers(connection: Connection) -> None:
    """Release all claimed answers."""
    connection.execute(update(feedback).where(IS_CLAIMED).values(**PENDING_AGAIN))


def log_learned_step(connection: Connection, *, step: LearnedStep, at: int) -> None:
    """Log a learning step and mark its answers as applied."""
    if _last_learned_version(connection) == step.version:
        return  # an earlier attempt was committed, but the connection broke before the reply
    lineage, number = parse_version(step.version)
    body = {
        "version": step.version,
        "answers": list(step.answers),
        "replacing": list(step.replacing),
        "losses": {name: _finite_or_none(value) for name, value in step.losses.items()},
        "seconds": step.seconds,
    }
    append_event(connection, kind="learned", body=body, at=at)
    for chunk in in_chunks(step.answers):
        connection.execute(
            update(feedback)
            .where(feedback.c.id.in_(chunk))
            .values(
                status="applied",
                claimed_at=None,
                applied_in_version=step.version,
                applied_lineage=lineage,
                applied_step=number,
            )
        )


def expire_answers(
    connection: Connection, *, feedback_ids: Sequence[str], reason: str, at: int
) -> None:
    """Mark pending answers as expired."""
    if not feedback_ids:
        return
    body = {"feedback_ids": list(feedback_ids), "reason": reason}
    append_event(connection, kind="expired", body=body, at=at)
    for chunk in in_chunks(feedback_ids):
        is_pending = feedback.c.id.in_(chunk) & (feedback.c.status == "pending")
        values = {"status": "expired", "claimed_at": None}
        connection.execute(update(feedback).where(is_pending).values(**values))


def _last_learned_version(connection: Connection) -> str | None:
    """Return the version of the last learned step, or None if a restart came after it."""
    is_kind = events.c.kind.in_(("learned", "recovered"))
    newest = select(events.c.body).where(is_kind).order_by(events.c.seq.desc()).limit(1)
    body = connection.execute(newest).scalar_one_or_none()
    return None if body is None else json.loads(body).get("version")


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
