"""What can be asked of the store, in any thread, without waiting for the writer."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Engine,
    Executable,
    FromClause,
    Select,
    and_,
    case,
    exists,
    func,
    select,
)

from bitta.records import FeedbackRecord, QuestionStatus
from bitta.server.store.answers import PENDING
from bitta.server.store.lineage import learned_after
from bitta.server.store.pictures import find_image
from bitta.server.store.records import (
    AnnotatorCounts,
    AuditAnswer,
    ImageRecord,
    LearnableAnswer,
    LogEvent,
    StoreCounts,
    StoredPrediction,
    StoredQuestion,
    StoredSnapshot,
)
from bitta.server.store.rows import (
    as_answer,
    as_feedback,
    as_question,
    as_snapshot,
    feedback_records,
    learnable,
    question_columns,
)
from bitta.server.store.tables import (
    events,
    feedback,
    images,
    keys,
    predictions,
    questions,
    snapshots,
)
from bitta.server.store.trouble import reading
from bitta.server.store.ways import newest_lineage, way

_PAGE = 500


class StoreReader:
    """Reads of committed state; each is one short transaction."""

    def __init__(self, reader: Engine) -> None:
        self._reader = reader
        self._counted = (0, -1)
        """Predictions counted so far, and the highest of their positions."""

    def pending_answers(self) -> list[LearnableAnswer]:
        """Answers that no step has used or is using, by seq."""
        return [as_answer(row) for row in self._rows(learnable().where(PENDING))]

    def answers_after(self, seq: int) -> list[LearnableAnswer]:
        """Answers given after an event, whatever became of them, by seq."""
        return [as_answer(row) for row in self._rows(learnable().where(feedback.c.seq > seq))]

    def answers_applied_after(self, snapshot: StoredSnapshot) -> list[LearnableAnswer]:
        """Answers learned in the snapshot's lineage after it, by seq."""
        return [as_answer(row) for row in self._rows(learnable().where(learned_after(snapshot)))]

    def newest_snapshot(self) -> StoredSnapshot | None:
        """The newest one that was not dropped."""
        kept = select(snapshots).where(snapshots.c.dropped_at.is_(None))
        found = self._rows(kept.order_by(snapshots.c.seq.desc()).limit(1))
        return as_snapshot(found[0]) if found else None

    def snapshots(self, *, dropped: bool = False) -> list[StoredSnapshot]:
        """Snapshots, oldest first; dropped ones only on request."""
        found = select(snapshots).order_by(snapshots.c.seq)
        if not dropped:
            found = found.where(snapshots.c.dropped_at.is_(None))
        return [as_snapshot(row) for row in self._rows(found)]

    def find_snapshot(self, snapshot_id: str) -> StoredSnapshot | None:
        """One snapshot, dropped or not."""
        found = self._rows(select(snapshots).where(snapshots.c.id == snapshot_id))
        return as_snapshot(found[0]) if found else None

    def events(
        self, *, after: int = 0, limit: int = 1000, kinds: Collection[str] | None = None
    ) -> list[LogEvent]:
        """The log after an event, in order."""
        found = select(events).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
        if kinds is not None:
            found = found.where(events.c.kind.in_(kinds))
        return [_as_event(row) for row in self._rows(found)]

    def last_event(self, kinds: Collection[str]) -> LogEvent | None:
        """The newest of some kinds."""
        found = select(events).where(events.c.kind.in_(kinds)).order_by(events.c.seq.desc())
        rows = self._rows(found.limit(1))
        return _as_event(rows[0]) if rows else None

    def lineages_since_rollback(self) -> dict[int, int]:
        """Lineages that only restarts parted from the newest, with the last step of each."""
        with reading(self._reader) as connection:
            return way(connection, through=["recovered"])

    def newest_lineage(self) -> int:
        """The last that was begun, whatever became of it."""
        with reading(self._reader) as connection:
            return newest_lineage(connection)

    def last_seq(self) -> int:
        """Seq of the newest event; 0 where there is none."""
        return int(self._rows(select(func.max(events.c.seq).label("seq")))[0]["seq"] or 0)

    def find_prediction(self, prediction_id: str) -> StoredPrediction | None:
        """One prediction."""
        found = self._rows(select(predictions).where(predictions.c.id == prediction_id))
        return StoredPrediction(**found[0]) if found else None

    def predictions(self, *, after_position: int = -1, limit: int = 1000) -> list[StoredPrediction]:
        """Predictions in the order they were served."""
        found = select(predictions).where(predictions.c.position > after_position)
        rows = self._rows(found.order_by(predictions.c.position).limit(limit))
        return [StoredPrediction(**row) for row in rows]

    def find_question(self, prediction_id: str) -> StoredQuestion | None:
        """The question about a prediction."""
        found = self._rows(_questions().where(questions.c.prediction_id == prediction_id))
        return as_question(found[0]) if found else None

    def questions(
        self, status: QuestionStatus | None = None, *, limit: int = 100
    ) -> list[StoredQuestion]:
        """Questions, newest window first."""
        found = _questions() if status is None else _questions().where(questions.c.status == status)
        return [as_question(row) for row in self._rows(found.limit(limit))]

    def count_open_questions(self, *, since: int = 0) -> int:
        """How many that were asked since a moment wait for an answer."""
        waiting = and_(questions.c.status == "open", questions.c.asked_at >= since)
        found = select(func.count().label("n")).where(waiting)
        return int(self._rows(found)[0]["n"])

    def find_feedback(self, feedback_id: str) -> FeedbackRecord | None:
        """One stored answer."""
        found = self._rows(feedback_records().where(feedback.c.id == feedback_id))
        return as_feedback(found[0]) if found else None

    def list_feedback(
        self, annotator_id: str | None = None, *, before: int | None = None, limit: int = 50
    ) -> list[FeedbackRecord]:
        """Answers, newest first: of one annotator or of all, before a seq."""
        found = feedback_records().order_by(feedback.c.seq.desc()).limit(limit)
        if annotator_id is not None:
            found = found.where(feedback.c.annotator_id == annotator_id)
        if before is not None:
            found = found.where(feedback.c.seq < before)
        return [as_feedback(row) for row in self._rows(found)]

    def all_feedback(self, *, after: int = 0) -> Iterator[FeedbackRecord]:
        """Every answer by seq, read page by page so that no transaction stays open."""
        while True:
            page = feedback_records().where(feedback.c.seq > after).order_by(feedback.c.seq)
            rows = self._rows(page.limit(_PAGE))
            yield from map(as_feedback, rows)
            if len(rows) < _PAGE:
                return
            after = rows[-1]["seq"]

    def counts(self) -> StoreCounts:
        """How much of everything there is."""
        status = _count_by(select(questions.c.status.label("key")), questions.c.status)
        asked = {row["key"]: row["n"] for row in self._rows(status)}
        given = self._rows(select(*_feedback_counts()))[0]
        return StoreCounts(
            served=self._served(),
            asked=sum(asked.values()),
            open=asked.get("open", 0),
            closed=asked.get("closed", 0),
            expired=asked.get("expired", 0),
            **{name: int(n or 0) for name, n in given.items()},
        )

    def _served(self) -> int:
        """Only what has come since the last call is counted: positions go up."""
        n, top = self._counted
        position = predictions.c.position
        found = select(func.count(position).label("n"), func.max(position).label("top"))
        (new,) = self._rows(found.where(position > top))
        if new["n"]:
            self._counted = (n + int(new["n"]), int(new["top"]))
        return self._counted[0]

    def count_recent_verdicts(self, *, since: int) -> int:
        """Verdicts that came since a moment and stand, skips left out; of the newest thousand."""
        columns = (feedback.c.received_at, feedback.c.standing, feedback.c.verdict)
        newest = select(*columns).order_by(feedback.c.seq.desc()).limit(1000).subquery().c
        found = select(func.count().label("n")).where(
            newest.received_at >= since, newest.standing, newest.verdict != "skip"
        )
        return int(self._rows(found)[0]["n"])

    def count_by_annotator(self, *, since: int = 0) -> list[AnnotatorCounts]:
        """What each annotator answered since a moment, and how far they agree with one another."""
        verdict = feedback.c.verdict != "skip"
        standing = and_(feedback.c.standing, feedback.c.received_at >= since)
        done = {
            row["annotator_id"]: row
            for row in self._rows(
                select(
                    feedback.c.annotator_id,
                    func.sum(case((verdict, 1), else_=0)).label("answered"),
                    func.sum(case((verdict, 0), else_=1)).label("skipped"),
                )
                .where(standing)
                .group_by(feedback.c.annotator_id)
                .order_by(feedback.c.annotator_id)
            )
        }
        pairs = {row["annotator_id"]: row for row in self._rows(_agreement(since))}
        none = {"compared": 0, "agreed": 0}
        return [
            AnnotatorCounts(
                name,
                int(row["answered"]),
                int(row["skipped"]),
                int(pairs.get(name, none)["compared"]),
                int(pairs.get(name, none)["agreed"]),
            )
            for name, row in done.items()
        ]

    def audit_answers(self, *, since: int = 0, newest: int | None = None) -> list[AuditAnswer]:
        """The first standing verdict on each audit after a seq, by seq; the last so many.

        What clients say unasked is left out: who has something to say of it says so.
        """
        found = (
            select(feedback, predictions.c.model_version)
            .select_from(feedback.join(predictions))
            .where(feedback.c.seq > since, *_of_audits(feedback), ~_said_before())
            .order_by(feedback.c.seq.desc())
            .limit(newest)
        )
        return [
            AuditAnswer(
                row["seq"],
                row["id"],
                row["prediction_id"],
                row["verdict"] == "correct",
                row["model_version"],
                row["received_at"],
            )
            for row in reversed(self._rows(found))
        ]

    def count_audits(self, *, since: int = 0) -> int:
        """How many there are."""
        distinct = func.count(feedback.c.prediction_id.distinct()).label("n")
        new = feedback.c.seq > since
        found = select(distinct).where(new, *_of_audits(feedback), ~_said_before())
        return int(self._rows(found)[0]["n"])

    def find_image(self, sha256: str) -> ImageRecord | None:
        """A kept image's row."""
        with reading(self._reader) as connection:
            return find_image(connection, sha256)

    def deleted_images(self) -> list[str]:
        """Names of images that must not lie on the disk."""
        found = select(images.c.sha256).where(images.c.deleted_at.is_not(None))
        return [row["sha256"] for row in self._rows(found)]

    def _rows(self, found: Executable) -> list[Mapping[str, Any]]:
        with reading(self._reader) as connection:
            return [dict(row) for row in connection.execute(found).mappings()]


def _as_event(row: Mapping[str, Any]) -> LogEvent:
    return LogEvent(row["seq"], row["at"], row["kind"], json.loads(row["body"]))


def _of_audits(given: FromClause) -> list[ColumnElement[bool]]:
    """Hold for standing verdicts on audits by those who were asked."""
    client = exists().where(keys.c.id == given.c.annotator_id, keys.c.role == "client")
    verdict = and_(given.c.standing, given.c.verdict != "skip")
    return [given.c.selection_reason == "audit", verdict, ~client]


def _said_before() -> ColumnElement[bool]:
    """Hold for an audit that somebody else has judged before."""
    first = feedback.alias("first")
    same = and_(first.c.prediction_id == feedback.c.prediction_id, first.c.seq < feedback.c.seq)
    return exists().where(same, *_of_audits(first))


def _questions() -> Select[Any]:
    return (
        select(*question_columns())
        .select_from(questions.join(predictions))
        .order_by(questions.c.step.desc(), questions.c.row)
    )


def _count_by(found: Select[Any], column: Any) -> Select[Any]:
    return found.add_columns(func.count().label("n")).group_by(column)


def _feedback_counts() -> list[Any]:
    standing, verdict = feedback.c.standing, feedback.c.verdict
    used = verdict != "skip"
    conditions = {
        "answered": and_(standing, used),
        "correct": and_(standing, verdict == "correct"),
        "incorrect": and_(standing, verdict == "incorrect"),
        "skipped": and_(standing, verdict == "skip"),
        "pending": and_(feedback.c.status == "pending", used),
        "applied": feedback.c.status == "applied",
        "undone": feedback.c.undone_seq.is_not(None),
        "superseded": feedback.c.status == "superseded",
    }
    return [
        func.sum(case((condition, 1), else_=0)).label(name)
        for name, condition in conditions.items()
    ]


def _agreement(since: int) -> Select[Any]:
    mine, theirs = feedback.alias("mine"), feedback.alias("theirs")
    pairs = mine.join(
        theirs,
        and_(
            mine.c.prediction_id == theirs.c.prediction_id,
            mine.c.annotator_id != theirs.c.annotator_id,
        ),
    )
    return (
        select(
            mine.c.annotator_id,
            func.count().label("compared"),
            func.sum(case((mine.c.verdict == theirs.c.verdict, 1), else_=0)).label("agreed"),
        )
        .select_from(pairs)
        .where(
            mine.c.standing,
            theirs.c.standing,
            mine.c.verdict != "skip",
            theirs.c.verdict != "skip",
            mine.c.received_at >= since,
        )
        .group_by(mine.c.annotator_id)
    )
