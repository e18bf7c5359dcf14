"""Snapshots, rollbacks and restarts, and the lineages of model versions that they begin.

A version is "LINEAGE.STEP". Every rollback, and every restart after a crash, begins a new lineage.
It continues from a snapshot of an earlier lineage.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, func, insert, or_, select, update

from bitta.server.store.errors import UnknownSnapshot
from bitta.server.store.predictions_and_questions import in_chunks
from bitta.server.store.records import (
    NewSnapshot,
    RestartResult,
    Rollback,
    StoredSnapshot,
    parse_version,
)
from bitta.server.store.schema import events, feedback, snapshots
from bitta.server.store.writer import append_event

IS_CLAIMED = (feedback.c.status == "pending") & feedback.c.claimed_at.is_not(None)
"""Condition for answers that a learning step has claimed."""
APPLIED_COLUMNS = ("applied_in_version", "applied_lineage", "applied_step")
NOT_APPLIED: dict[str, Any] = dict.fromkeys((*APPLIED_COLUMNS, "claimed_at"))
"""Values of an answer that no step has learned or claimed."""
PENDING_AGAIN = NOT_APPLIED | {"status": case((feedback.c.standing, "pending"), else_="superseded")}
"""Values of an answer that is pending again. If it does not stand, it becomes superseded."""


def add_snapshot(connection: Connection, *, new: NewSnapshot, at: int) -> StoredSnapshot:
    """Log and record a snapshot."""
    body = {"snapshot_id": new.id, "version": new.model_version}
    seq = append_event(connection, kind="snapshot", body=body, at=at)
    lineage, step = parse_version(new.model_version)
    connection.execute(
        insert(snapshots).values(
            id=new.id,
            seq=seq,
            model_version=new.model_version,
            lineage=lineage,
            step=step,
            path=new.path,
            sha256=new.sha256,
            weights_hash=new.weights_hash,
            reason=new.reason,
            created_at=at,
        )
    )
    return _get_snapshot(connection, new.id)


def drop_snapshots(connection: Connection, *, ids: Sequence[str], at: int) -> None:
    """Mark snapshots as dropped."""
    for chunk in in_chunks(ids):
        condition = snapshots.c.id.in_(chunk) & snapshots.c.dropped_at.is_(None)
        connection.execute(update(snapshots).where(condition).values(dropped_at=at))


def log_rollback(connection: Connection, *, rollback: Rollback, at: int) -> StoredSnapshot:
    """Log a rollback, and add the first snapshot of the new lineage."""
    target = _get_snapshot(connection, rollback.target_id)
    body: dict[str, Any] = {
        "snapshot_id": rollback.target_id,
        "from_version": rollback.from_version,
        "version": rollback.new_snapshot.model_version,
        "reason": rollback.reason,
        "by": rollback.by,
    }
    if rollback.repeats_answers:
        body["pending_again"] = _make_pending_after(connection, target)
    append_event(connection, kind="rollback", body=body, at=at)
    return add_snapshot(connection, new=rollback.new_snapshot, at=at)


def log_restart(
    connection: Connection,
    *,
    snapshot_id: str,
    lineage: int | None,
    environment: Mapping[str, Any],
    at: int,
) -> RestartResult:
    """Log a restart from a snapshot. Answers that were learned after it become pending."""
    target = _get_snapshot(connection, snapshot_id)
    ids = _make_pending_after(connection, target)
    body = {"snapshot": snapshot_id, "pending_again": ids, "environment": dict(environment)}
    if lineage is not None:
        body["version"] = f"{lineage}.{target.step}"
    seq = append_event(connection, kind="recovered", body=body, at=at)
    return RestartResult(seq, tuple(ids))


def _make_pending_after(connection: Connection, target: StoredSnapshot) -> list[str]:
    """Make answers pending that are claimed, or that were learned after a snapshot.

    Return the ids of those learned after it, in order of seq. Answers that were learned in steps
    that a rollback discarded stay applied.
    """
    last_steps = trace_lineages(connection)
    if last_steps.get(target.lineage, -1) < target.step:
        # The current weights did not come from this snapshot.
        last_steps = {target.lineage: sys.maxsize}
    was_learned_after = or_(
        *(
            _is_applied_after(target, last_step=last_step)
            if lineage == target.lineage
            else _is_applied_in(lineage, last_step)
            for lineage, last_step in last_steps.items()
            if lineage >= target.lineage
        )
    )
    found = select(feedback.c.id).where(was_learned_after, feedback.c.standing)
    ids = list(connection.execute(found.order_by(feedback.c.seq)).scalars())
    condition = IS_CLAIMED | was_learned_after
    connection.execute(update(feedback).where(condition).values(**PENDING_AGAIN))
    return ids


def _is_applied_after(
    snapshot: StoredSnapshot, *, last_step: int = sys.maxsize
) -> ColumnElement[bool]:
    """Condition for answers that were learned in the snapshot's lineage after it."""
    is_later = feedback.c.applied_step > snapshot.step
    return _is_applied_in(snapshot.lineage, last_step) & is_later


def _is_applied_in(lineage: int, last_step: int) -> ColumnElement[bool]:
    is_in_lineage = (feedback.c.status == "applied") & (feedback.c.applied_lineage == lineage)
    return is_in_lineage & (feedback.c.applied_step <= last_step)


def trace_lineages(
    connection: Connection, *, transitions: Sequence[str] = ("rollback", "recovered")
) -> dict[int, int]:
    """Return the lineages that led to the current weights, each with its last step.

    `transitions` are the kinds of events at which one lineage continues in another. The newest
    lineage may have no snapshot left; then its learned answers show that it existed.
    """
    rows = connection.execute(select(snapshots.c.id, snapshots.c.lineage, snapshots.c.step))
    positions = {id_: (lineage, step) for id_, lineage, step in rows}
    found = select(events.c.body).where(events.c.kind.in_(transitions))
    origins = {
        parse_version(body["version"])[0]: positions[body.get("snapshot_id") or body["snapshot"]]
        for body in map(json.loads, connection.execute(found).scalars())
        if "version" in body
    }
    last_learned = connection.execute(select(func.max(feedback.c.applied_lineage))).scalar()
    lineage = max(newest_lineage(connection, include_dropped=False), last_learned or 1)
    last_steps = {lineage: sys.maxsize}
    while lineage in origins:
        lineage, step = origins[lineage]
        last_steps[lineage] = step
    return last_steps


def newest_lineage(connection: Connection, *, include_dropped: bool = True) -> int:
    """Return the number of the newest lineage.

    `include_dropped` counts lineages whose snapshots are dropped. Lineages that a restart began
    always count: a restart makes no snapshot.
    """
    conditions = [] if include_dropped else [snapshots.c.dropped_at.is_(None)]
    newest = select(func.max(snapshots.c.lineage)).where(*conditions)
    lineages = [connection.execute(newest).scalar() or 1]
    restarts = select(events.c.body).where(events.c.kind == "recovered")
    for body in map(json.loads, connection.execute(restarts).scalars()):
        if body.get("version"):
            lineages.append(parse_version(body["version"])[0])
    return max(lineages)


def _get_snapshot(connection: Connection, snapshot_id: str) -> StoredSnapshot:
    found = select(snapshots).where(snapshots.c.id == snapshot_id)
    row = connection.execute(found).mappings().one_or_none()
    if row is None:
        raise UnknownSnapshot(f"no snapshot has the id {snapshot_id!r}; see the list of snapshots")
    return StoredSnapshot(**row)
