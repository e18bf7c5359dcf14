"""Changes to what was learned: claimed, applied, kept as a snapshot, gone back to."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    RowMapping,
    and_,
    case,
    exists,
    insert,
    or_,
    select,
    update,
)

from bitta.server.store.answers import PENDING
from bitta.server.store.errors import UnknownSnapshot
from bitta.server.store.log import append
from bitta.server.store.questions import in_parts
from bitta.server.store.records import (
    LearnableAnswer,
    LearnedStep,
    NewSnapshot,
    RestartResult,
    StoredSnapshot,
)
from bitta.server.store.rows import as_answer, as_snapshot, learnable
from bitta.server.store.tables import events, feedback, snapshots
from bitta.server.store.ways import parse_version, way

_PLACE = ("applied_in_version", "applied_lineage", "applied_step")
_NOWHERE: dict[str, Any] = dict.fromkeys((*_PLACE, "taken_at"))
_AGAIN = _NOWHERE | {"status": case((feedback.c.standing, "pending"), else_="superseded")}
"""An answer that has been learned from no longer; undone or replaced meanwhile, it stays so."""
_REPLACED = _NOWHERE | {"status": "superseded"}
_EARLIER = feedback.alias("earlier")


def _of_same_person(other: FromClause) -> ColumnElement[bool]:
    """Hold for something else that the same person said of the same prediction."""
    same = (other.c[name] == feedback.c[name] for name in ("prediction_id", "annotator_id"))
    return and_(*same, other.c.id != feedback.c.id)


_CLAIMED = feedback.alias("claimed")
_FREE = PENDING & ~exists().where(_of_same_person(_CLAIMED), _CLAIMED.c.taken_at.is_not(None))
"""One word after the other: while a step takes the one in, the next has to wait."""


def take(connection: Connection, *, limit: int | None, at: int) -> list[LearnableAnswer]:
    """Claim pending answers, oldest first; those that the memory holds already are not."""
    overruling = _settle_with_memory(connection)
    found = connection.execute(learnable().where(_FREE).limit(limit)).mappings()
    taken = [as_answer(row) for row in found]
    for some in in_parts([answer.feedback_id for answer in taken]):
        connection.execute(update(feedback).where(feedback.c.id.in_(some)).values(taken_at=at))
    return [replace(one, overrules=one.feedback_id in overruling) for one in taken]


def _settle_with_memory(connection: Connection) -> set[str]:
    """Answers that overrule what the memory holds; what it holds already goes to the new answer."""
    overruling = set()
    for new, held in _held_of_mine(connection).items():
        if held["verdict"] != held["now"]:
            overruling.add(new)
            continue
        place = {name: held[name] for name in _PLACE}
        for id_, values in ((held["id"], _REPLACED), (new, {"status": "applied"} | place)):
            connection.execute(update(feedback).where(feedback.c.id == id_).values(**values))
    return overruling


def _held_of_mine(connection: Connection) -> dict[str, RowMapping]:
    """By pending answer, what the memory holds of the same person about the same prediction.

    That is the last that was learned on the way to these weights, in this lineage or in one that
    it came from: each word has overruled the one before.
    """
    columns = [_EARLIER.c[name] for name in ("id", "verdict", *_PLACE)]
    found = (
        select(feedback.c.id.label("new"), feedback.c.verdict.label("now"), *columns)
        .where(_FREE, feedback.c.verdict != "skip", _of_same_person(_EARLIER))
        .where(_EARLIER.c.status == "applied")
        .order_by(_EARLIER.c.applied_lineage, _EARLIER.c.applied_step)
    )
    rows = connection.execute(found).mappings().all()
    came_by = way(connection) if rows else {}
    return {
        row["new"]: row
        for row in rows
        if row["applied_step"] <= came_by.get(row["applied_lineage"], -1)
    }


def release(connection: Connection, *, feedback_ids: Sequence[str]) -> None:
    """Give claimed answers back."""
    for some in in_parts(feedback_ids):
        claimed = feedback.c.id.in_(some) & _claimed()
        connection.execute(update(feedback).where(claimed).values(**_AGAIN))


def forget_taken(connection: Connection) -> None:
    """Give back whatever a process that ended had claimed."""
    connection.execute(update(feedback).where(_claimed()).values(**_AGAIN))


def learned(connection: Connection, *, step: LearnedStep, at: int) -> None:
    """Log a step and mark its answers, unless that was done already."""
    if _last_step(connection) == step.version:
        return  # a connection was lost after the commit, before it was heard of
    lineage, number = parse_version(step.version)
    body = {
        "version": step.version,
        "answers": list(step.answers),
        "overruling": list(step.overruling),
        "losses": {name: _finite(value) for name, value in step.losses.items()},
        "seconds": step.seconds,
        "weights": step.weights,
    }
    append(connection, kind="learned", body=body, at=at)
    for some in in_parts(step.answers):
        connection.execute(
            update(feedback)
            .where(feedback.c.id.in_(some))
            .values(
                status="applied",
                taken_at=None,
                applied_in_version=step.version,
                applied_lineage=lineage,
                applied_step=number,
            )
        )


def unusable(connection: Connection, *, feedback_ids: Sequence[str], reason: str, at: int) -> None:
    """Mark answers that nothing can be learned from."""
    if not feedback_ids:
        return
    body = {"feedback_ids": list(feedback_ids), "reason": reason}
    append(connection, kind="expired", body=body, at=at)
    for some in in_parts(feedback_ids):
        pending = feedback.c.id.in_(some) & (feedback.c.status == "pending")
        connection.execute(update(feedback).where(pending).values(status="expired", taken_at=None))


def snapshot(connection: Connection, *, new: NewSnapshot, at: int) -> StoredSnapshot:
    """Record a snapshot."""
    body = {"snapshot_id": new.id, "version": new.model_version}
    seq = append(connection, kind="snapshot", body=body, at=at)
    return _insert(connection, new, seq, at)


def drop_snapshots(connection: Connection, *, ids: Sequence[str], at: int) -> None:
    """Mark snapshots whose files will go."""
    for some in in_parts(ids):
        kept = snapshots.c.id.in_(some) & snapshots.c.dropped_at.is_(None)
        connection.execute(update(snapshots).where(kept).values(dropped_at=at))


def rolled_back(
    connection: Connection,
    *,
    to: str,
    new: NewSnapshot,
    from_version: str,
    reason: str,
    by: str,
    again: bool,
    at: int,
) -> StoredSnapshot:
    """Log a rollback with the first snapshot of its lineage."""
    target = find_snapshot(connection, to)
    body: dict[str, Any] = {
        "snapshot_id": to,
        "from_version": from_version,
        "version": new.model_version,
        "reason": reason,
        "by": by,
    }
    if again:
        body["reentered"] = _reenter(connection, target)
    append(connection, kind="rollback", body=body, at=at)
    return snapshot(connection, new=new, at=at)


def recovered(
    connection: Connection,
    *,
    snapshot_id: str,
    lineage: int | None,
    environment: Mapping[str, Any],
    at: int,
) -> RestartResult:
    """Log a restart; what the snapshot does not hold is to be learned again."""
    target = find_snapshot(connection, snapshot_id)
    ids = _reenter(connection, target)
    body = {"snapshot": snapshot_id, "reentered": ids, "environment": dict(environment)}
    if lineage is not None:
        body["version"] = f"{lineage}.{target.step}"
    return RestartResult(append(connection, kind="recovered", body=body, at=at), tuple(ids))


def _reenter(connection: Connection, target: StoredSnapshot) -> list[str]:
    """Let what was claimed, or learned after a snapshot, pend again; ids of the latter, by seq.

    What a rollback has left behind stays there.
    """
    came_by = way(connection)
    if came_by.get(target.lineage, -1) < target.step:
        came_by = {target.lineage: sys.maxsize}  # to none of these weights did it lead
    after = or_(
        *(
            learned_after(target, until=step)
            if lineage == target.lineage
            else _learned(lineage, step)
            for lineage, step in came_by.items()
            if lineage >= target.lineage
        )
    )
    standing = select(feedback.c.id).where(after, feedback.c.standing).order_by(feedback.c.seq)
    ids = list(connection.execute(standing).scalars())
    connection.execute(update(feedback).where(_claimed() | after).values(**_AGAIN))
    return ids


def learned_after(found: StoredSnapshot, *, until: int = sys.maxsize) -> ColumnElement[bool]:
    """Hold for answers that entered the memory in the snapshot's lineage after it."""
    return _learned(found.lineage, until) & (feedback.c.applied_step > found.step)


def _learned(lineage: int, until: int) -> ColumnElement[bool]:
    """Hold for answers that entered the memory in a lineage, up to a step of it."""
    here = (feedback.c.status == "applied") & (feedback.c.applied_lineage == lineage)
    return here & (feedback.c.applied_step <= until)


def find_snapshot(connection: Connection, snapshot_id: str) -> StoredSnapshot:
    """Read one snapshot, dropped or not."""
    found = select(snapshots).where(snapshots.c.id == snapshot_id)
    row = connection.execute(found).mappings().one_or_none()
    if row is None:
        raise UnknownSnapshot(f"no snapshot has the id {snapshot_id!r}; see the list of snapshots")
    return as_snapshot(row)


def _insert(connection: Connection, new: NewSnapshot, seq: int, at: int) -> StoredSnapshot:
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
    return find_snapshot(connection, new.id)


def _last_step(connection: Connection) -> str | None:
    """Version that the last step led to, unless a restart came after it."""
    kinds = events.c.kind.in_(("learned", "recovered"))
    last = select(events.c.body).where(kinds).order_by(events.c.seq.desc()).limit(1)
    body = connection.execute(last).scalar_one_or_none()
    return None if body is None else json.loads(body).get("version")


def _claimed() -> ColumnElement[bool]:
    return and_(feedback.c.status == "pending", feedback.c.taken_at.is_not(None))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
