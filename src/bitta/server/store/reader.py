"""Reads of the store. They run in any thread and do not wait for the writer."""

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
from bitta.server.store.connection import read_transaction
from bitta.server.store.images import find_image
from bitta.server.store.lineages import newest_lineage, trace_lineages
from bitta.server.store.records import (
    AnnotatorCounts,
    AuditAnswer,
    ImageRecord,
    LogEvent,
    StoreCounts,
    StoredPrediction,
    StoredQuestion,
    StoredSnapshot,
)
from bitta.server.store.schema import (
    events,
    feedback,
    images,
    keys,
    predictions,
    question_columns,
    questions,
    select_feedback,
    snapshots,
    to_feedback,
    to_question,
)

_PAGE_ROWS = 500
_RECENT_ROWS = 1000
"""Number of newest answers that `count_recent_verdicts` looks at."""


class StoreReader:
    """Reads of committed data. Each read is one short transaction."""

    def __init__(self, reader: Engine) -> None:
        self._reader = reader
        self._n_counted = 0
        """Number of predictions that were counted so far."""
        self._last_counted = -1
        """Highest position of the predictions that were counted so far."""

    def snapshots(self, *, include_dropped: bool = False) -> list[StoredSnapshot]:
        """Return the snapshots, oldest first."""
        found = select(snapshots).order_by(snapshots.c.seq)
        if not include_dropped:
            found = found.where(snapshots.c.dropped_at.is_(None))
        return [StoredSnapshot(**row) for row in self._rows(found)]

    def find_snapshot(self, snapshot_id: str) -> StoredSnapshot | None:
        """Return a snapshot, dropped or not, or None."""
        rows = self._rows(select(snapshots).where(snapshots.c.id == snapshot_id))
        return StoredSnapshot(**rows[0]) if rows else None

    def events(
        self, *, after: int = 0, limit: int = 1000, kinds: Collection[str] | None = None
    ) -> list[LogEvent]:
        """Return events of the log after a seq, in order."""
        found = select(events).where(events.c.seq > after).order_by(events.c.seq).limit(limit)
        if kinds is not None:
            found = found.where(events.c.kind.in_(kinds))
        return [_to_event(row) for row in self._rows(found)]

    def last_event(self, kinds: Collection[str]) -> LogEvent | None:
        """Return the newest event of the given kinds, or None."""
        found = select(events).where(events.c.kind.in_(kinds)).order_by(events.c.seq.desc())
        rows = self._rows(found.limit(1))
        return _to_event(rows[0]) if rows else None

    def lineages_since_rollback(self) -> dict[int, int]:
        """Return the lineages since the last rollback, each with its last step."""
        with read_transaction(self._reader) as connection:
            return trace_lineages(connection, transitions=["recovered"])

    def newest_lineage(self) -> int:
        """Return the number of the newest lineage, even if all its snapshots are dropped."""
        with read_transaction(self._reader) as connection:
            return newest_lineage(connection)

    def last_seq(self) -> int:
        """Return the seq of the newest event, or 0."""
        return int(self._rows(select(func.max(events.c.seq).label("seq")))[0]["seq"] or 0)

    def find_prediction(self, prediction_id: str) -> StoredPrediction | None:
        """Return a prediction, or None."""
        rows = self._rows(select(predictions).where(predictions.c.id == prediction_id))
        return StoredPrediction(**rows[0]) if rows else None

    def predictions(self, *, after_position: int = -1, limit: int = 1000) -> list[StoredPrediction]:
        """Return predictions in the order in which they were served."""
        found = select(predictions).where(predictions.c.position > after_position)
        rows = self._rows(found.order_by(predictions.c.position).limit(limit))
        return [StoredPrediction(**row) for row in rows]

    def find_question(self, prediction_id: str) -> StoredQuestion | None:
        """Return the question about a prediction, or None."""
        rows = self._rows(_select_questions().where(questions.c.prediction_id == prediction_id))
        return to_question(rows[0]) if rows else None

    def questions(
        self, status: QuestionStatus | None = None, *, limit: int = 100
    ) -> list[StoredQuestion]:
        """Return questions, those of the newest window first."""
        found = _select_questions()
        if status is not None:
            found = found.where(questions.c.status == status)
        return [to_question(row) for row in self._rows(found.limit(limit))]

    def count_open_questions(self, *, since: int = 0) -> int:
        """Count the open questions that were asked since a time."""
        is_open = and_(questions.c.status == "open", questions.c.asked_at >= since)
        return self._count(select(func.count().label("n")).where(is_open))

    def find_feedback(self, feedback_id: str) -> FeedbackRecord | None:
        """Return the record of an answer, or None."""
        rows = self._rows(select_feedback().where(feedback.c.id == feedback_id))
        return to_feedback(rows[0]) if rows else None

    def list_feedback(
        self, annotator_id: str | None = None, *, before: int | None = None, limit: int = 50
    ) -> list[FeedbackRecord]:
        """Return answers before a seq, newest first.

        They are those of one annotator, or of all if `annotator_id` is None.
        """
        found = select_feedback().order_by(feedback.c.seq.desc()).limit(limit)
        if annotator_id is not None:
            found = found.where(feedback.c.annotator_id == annotator_id)
        if before is not None:
            found = found.where(feedback.c.seq < before)
        return [to_feedback(row) for row in self._rows(found)]

    def all_feedback(self, *, after: int = 0) -> Iterator[FeedbackRecord]:
        """Yield all answers after a seq. Each page of rows is a transaction of its own."""
        while True:
            page = select_feedback().where(feedback.c.seq > after).order_by(feedback.c.seq)
            rows = self._rows(page.limit(_PAGE_ROWS))
            yield from map(to_feedback, rows)
            if len(rows) < _PAGE_ROWS:
                return
            after = rows[-1]["seq"]

    def counts(self) -> StoreCounts:
        """Return the numbers of predictions, questions and answers."""
        by_status = select(questions.c.status, func.count().label("n")).group_by(questions.c.status)
        n_questions = {row["status"]: row["n"] for row in self._rows(by_status)}
        n_answers = self._rows(select(*_feedback_counts()))[0]
        return StoreCounts(
            served=self._count_predictions(),
            asked=sum(n_questions.values()),
            open=n_questions.get("open", 0),
            closed=n_questions.get("closed", 0),
            expired=n_questions.get("expired", 0),
            **{name: int(n or 0) for name, n in n_answers.items()},
        )

    def count_recent_verdicts(self, *, since: int) -> int:
        """Count standing verdicts without skips since a time, up to 1000."""
        columns = (feedback.c.received_at, feedback.c.standing, feedback.c.verdict)
        newest = select(*columns).order_by(feedback.c.seq.desc()).limit(_RECENT_ROWS).subquery().c
        is_recent = (newest.received_at >= since, newest.standing, newest.verdict != "skip")
        return self._count(select(func.count().label("n")).where(*is_recent))

    def count_by_annotator(self, *, since: int = 0) -> list[AnnotatorCounts]:
        """Return the counts of each annotator with answers since a time."""
        is_verdict = feedback.c.verdict != "skip"
        answers = self._rows(
            select(
                feedback.c.annotator_id,
                func.sum(case((is_verdict, 1), else_=0)).label("answered"),
                func.sum(case((is_verdict, 0), else_=1)).label("skipped"),
            )
            .where(feedback.c.standing, feedback.c.received_at >= since)
            .group_by(feedback.c.annotator_id)
            .order_by(feedback.c.annotator_id)
        )
        agreement = {row["annotator_id"]: row for row in self._rows(_select_agreement(since))}
        no_pairs = {"compared": 0, "agreed": 0}
        counts = []
        for row in answers:
            pairs = agreement.get(row["annotator_id"], no_pairs)
            numbers = {"answered": row["answered"], "skipped": row["skipped"]}
            numbers |= {name: pairs[name] for name in no_pairs}
            counts.append(
                AnnotatorCounts(row["annotator_id"], **{k: int(n) for k, n in numbers.items()})
            )
        return counts

    def audit_answers(self, *, since: int = 0, newest: int | None = None) -> list[AuditAnswer]:
        """Return the first standing verdict on each audit after a seq, in order of seq.

        `newest` limits the number. Answers of clients are left out, because a client chooses the
        predictions that it answers.
        """
        found = (
            select(feedback, predictions.c.model_version)
            .select_from(feedback.join(predictions))
            .where(feedback.c.seq > since, *_is_audit_verdict(feedback), ~_has_earlier_verdict())
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
        """Count the audits with a standing verdict after a seq."""
        is_new = feedback.c.seq > since
        distinct = func.count(feedback.c.prediction_id.distinct()).label("n")
        found = select(distinct).where(
            is_new, *_is_audit_verdict(feedback), ~_has_earlier_verdict()
        )
        return self._count(found)

    def find_image(self, sha256: str) -> ImageRecord | None:
        """Return the record of an image, or None."""
        with read_transaction(self._reader) as connection:
            return find_image(connection, sha256)

    def deleted_images(self) -> list[str]:
        """Return the names of images whose files must not exist."""
        found = select(images.c.sha256).where(images.c.deleted_at.is_not(None))
        return [row["sha256"] for row in self._rows(found)]

    def _count_predictions(self) -> int:
        """Return the number of predictions.

        Each call reads only those that were added since the last one: positions only increase.
        """
        position = predictions.c.position
        found = select(func.count(position).label("n"), func.max(position).label("last"))
        (new,) = self._rows(found.where(position > self._last_counted))
        if new["n"]:
            self._n_counted += int(new["n"])
            self._last_counted = int(new["last"])
        return self._n_counted

    def _count(self, found: Executable) -> int:
        return int(self._rows(found)[0]["n"])

    def _rows(self, found: Executable) -> list[Mapping[str, Any]]:
        with read_transaction(self._reader) as connection:
            return [dict(row) for row in connection.execute(found).mappings()]


def _to_event(row: Mapping[str, Any]) -> LogEvent:
    return LogEvent(row["seq"], row["at"], row["kind"], json.loads(row["body"]))


def _is_audit_verdict(answers: FromClause) -> list[ColumnElement[bool]]:
    """Conditions for standing verdicts on audits, without those of clients."""
    is_by_client = exists().where(keys.c.id == answers.c.annotator_id, keys.c.role == "client")
    is_verdict = and_(answers.c.standing, answers.c.verdict != "skip")
    return [answers.c.selection_reason == "audit", is_verdict, ~is_by_client]


def _has_earlier_verdict() -> ColumnElement[bool]:
    """Condition for verdicts on a prediction that has an earlier verdict."""
    earlier = feedback.alias("earlier")
    is_earlier = and_(
        earlier.c.prediction_id == feedback.c.prediction_id, earlier.c.seq < feedback.c.seq
    )
    return exists().where(is_earlier, *_is_audit_verdict(earlier))


def _select_questions() -> Select[Any]:
    return (
        select(*question_columns())
        .select_from(questions.join(predictions))
        .order_by(questions.c.window.desc(), questions.c.row)
    )


def _feedback_counts() -> list[ColumnElement[Any]]:
    standing, verdict = feedback.c.standing, feedback.c.verdict
    is_verdict = verdict != "skip"
    conditions = {
        "answered": and_(standing, is_verdict),
        "correct": and_(standing, verdict == "correct"),
        "incorrect": and_(standing, verdict == "incorrect"),
        "skipped": and_(standing, verdict == "skip"),
        "pending": and_(feedback.c.status == "pending", is_verdict),
        "applied": feedback.c.status == "applied",
        "undone": feedback.c.undone_seq.is_not(None),
        "superseded": feedback.c.status == "superseded",
    }
    return [
        func.sum(case((condition, 1), else_=0)).label(name)
        for name, condition in conditions.items()
    ]


def _select_agreement(since: int) -> Select[Any]:
    """Count, by annotator, pairs of verdicts with other annotators, and the equal ones."""
    own, other = feedback.alias("own"), feedback.alias("other")
    is_pair = and_(
        own.c.prediction_id == other.c.prediction_id, own.c.annotator_id != other.c.annotator_id
    )
    return (
        select(
            own.c.annotator_id,
            func.count().label("compared"),
            func.sum(case((own.c.verdict == other.c.verdict, 1), else_=0)).label("agreed"),
        )
        .select_from(own.join(other, is_pair))
        .where(
            own.c.standing,
            other.c.standing,
            own.c.verdict != "skip",
            other.c.verdict != "skip",
            own.c.received_at >= since,
        )
        .group_by(own.c.annotator_id)
    )
