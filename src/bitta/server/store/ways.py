"""Where weights come from: lineages, and how one goes over into another."""

import json
import sys
from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from bitta.errors import InputError
from bitta.server.store.tables import events, feedback, snapshots


def way(
    connection: Connection, *, through: Sequence[str] = ("rollback", "recovered")
) -> dict[int, int]:
    """The lineages that led to the newest, and up to which step each.

    `through` are the kinds of events at which one goes over into another. A lineage that learned
    something has been, though its snapshots may be gone.
    """
    taken = connection.execute(select(snapshots.c.id, snapshots.c.lineage, snapshots.c.step))
    places = {id_: (lineage, step) for id_, lineage, step in taken}
    found = select(events.c.body).where(events.c.kind.in_(through))
    left = {
        parse_version(body["version"])[0]: places[body.get("snapshot_id") or body["snapshot"]]
        for body in map(json.loads, connection.execute(found).scalars())
        if "version" in body
    }
    learned_in = connection.execute(select(func.max(feedback.c.applied_lineage))).scalar()
    lineage = max(newest_lineage(connection, dropped=False), learned_in or 1)
    came_by = {lineage: sys.maxsize}
    while lineage in left:
        lineage, step = left[lineage]
        came_by[lineage] = step
    return came_by


def newest_lineage(connection: Connection, *, dropped: bool = True) -> int:
    """The last that was begun; `dropped`: also where its snapshot is gone, as if it had not been.

    A restart has no snapshot of its own.
    """
    kept = [] if dropped else [snapshots.c.dropped_at.is_(None)]
    found = connection.execute(select(func.max(snapshots.c.lineage)).where(*kept)).scalar() or 1
    restarts = select(events.c.body).where(events.c.kind == "recovered")
    versions = [json.loads(body).get("version") for body in connection.execute(restarts).scalars()]
    return max([found, *(parse_version(one)[0] for one in versions if one)])


def parse_version(version: str) -> tuple[int, int]:
    """Read "L.S": lineage and step."""
    lineage, dot, step = version.partition(".")
    if not (dot and lineage.isdecimal() and step.isdecimal()):
        raise InputError(f"the model version is {version!r}; give LINEAGE.STEP, as in '1.20'")
    return int(lineage), int(step)
