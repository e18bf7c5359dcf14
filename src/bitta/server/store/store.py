"""Store of the server: all data that must outlive the process."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection

from bitta.errors import SettingError
from bitta.records import FeedbackReceipt, UndoReceipt
from bitta.server.store import answers, lineages, pending_answers, predictions_and_questions
from bitta.server.store.connection import Database, is_missing
from bitta.server.store.errors import StoreUnavailable
from bitta.server.store.images import KeptImages, add_images, image_name, mark_image_deleted
from bitta.server.store.keys import ApiKeys
from bitta.server.store.reader import StoreReader
from bitta.server.store.records import (
    Clock,
    ExportedAnswer,
    ImageRecord,
    ImportResult,
    LearnableAnswer,
    LearnedStep,
    LeasedQuestion,
    NewAnswer,
    NewImage,
    NewQuestion,
    NewSnapshot,
    RestartResult,
    Rollback,
    ServedBatch,
    StoredSnapshot,
    new_id,
    new_token,
    now,
)
from bitta.server.store.writer import Writer, append_event

T = TypeVar("T")


class Store(StoreReader):
    """One database and one folder of files, owned by one process.

    Methods that change the store return futures. When a future is done, its change is durable. All
    changes go through one writing thread. The reads of `StoreReader` use other connections.
    """

    images: KeptImages
    """Image files. Use it to read; write with `Store.keep_images`."""
    keys: ApiKeys
    """API keys."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database.reader)
        self._database = database
        self._clock = clock
        self._writer = Writer(database.writer)
        self.images = KeptImages(database.folder / "images")
        self.keys = ApiKeys(database.reader, self.submit, clock)

    @classmethod
    def open(
        cls,
        url: str | None,
        data_dir: Path,
        *,
        clock: Clock = now,
        exclusive: bool = True,
        create: bool = True,
        busy_seconds: float = 5.0,
    ) -> Self:
        """Open the database, or create it, and upgrade its schema.

        Without a `url` it is a SQLite file in the data folder. Commands that run beside a server
        (keys, exports) open it with `exclusive=False`: they do not lock the folder, and must not
        serve, ask or learn. `create=False` refuses a database that does not exist.
        """
        if not create and is_missing(url, data_dir):
            raise SettingError(
                f"there is no database in {str(data_dir)!r}; give the server's --data-dir or "
                "--database."
            )
        database = Database.connect(url, data_dir, exclusive=exclusive, busy_seconds=busy_seconds)
        try:
            database.migrate()
        except BaseException:
            database.close()
            raise
        store = cls(database, clock)
        try:
            if exclusive:
                store._clean_up()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Write all queued changes, then release the database and the folder."""
        self._writer.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        change: Callable[[Connection], T],
        *,
        must: bool = False,
        before: Callable[[], object] | None = None,
        after: Callable[[T], object] | None = None,
    ) -> Future[T]:
        """Run a change in the next transaction. Its future is done once it is durable.

        A change may run again if another one in its transaction fails, so it must change nothing
        but the database. `must` is for changes that record what has already happened: while the
        database is full or locked they wait, in order, and do not fail. `before` runs on the
        writing thread ahead of the transaction, possibly more than once; if it raises, there is no
        change. `after` runs when the change is durable, before its future is done.
        """
        return self._writer.submit(change, must=must, before=before, after=after)

    @property
    def last_write_error(self) -> StoreUnavailable | None:
        """Error of the last attempt to write, if it failed and was recent."""
        return self._writer.last_error

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each commit. Return a function that removes it.

        The listener runs on the writing thread and must be fast.
        """
        return self._writer.add_listener(listener)

    def log_served_batch(self, batch: ServedBatch) -> Future[None]:
        """Log a batch that was served. It is lost only if the process ends before it is written."""
        change = partial(predictions_and_questions.log_served_batch, batch=batch, at=self._clock())
        return self.submit(change, must=True)

    def add_questions(self, new: Sequence[NewQuestion]) -> Future[None]:
        """Open questions, so that annotators can lease them."""
        change = partial(predictions_and_questions.add_questions, new=new, at=self._clock())
        return self.submit(change, must=True)

    def lease_question(
        self, annotator_id: str, *, seconds: float, exclude: Collection[str] = ()
    ) -> Future[LeasedQuestion | None]:
        """Lease a question to an annotator: the one they hold, or one of the newest window.

        Within a window, audits come first and then the most uncertain ones. The order of audits
        does not depend on their uncertainty, which would bias the accuracy. A question is not
        leased to an annotator who answered or skipped it, nor if `overlap` others hold or have
        answered it, nor if its prediction is in `exclude`.
        """
        change = partial(
            predictions_and_questions.lease_question,
            annotator_id=annotator_id,
            token=new_token(),
            seconds=seconds,
            exclude=frozenset(exclude),
            clock=self._clock,
        )
        return self.submit(change)

    def expire_questions(self, at: int | None = None) -> Future[list[str]]:
        """Mark open questions that have expired. Return the ids of their predictions."""
        at = self._clock() if at is None else at
        return self.submit(partial(predictions_and_questions.expire_questions, at=at))

    def add_answer(self, answer: NewAnswer) -> Future[FeedbackReceipt]:
        """Store an answer once. The same key and body again return the stored record.

        Raises `IdempotencyConflict` for the same key with another body, `UnknownPrediction`, and
        `QuestionExpired`.
        """
        at = self._clock()
        change = partial(answers.add_answer, answer=answer, feedback_id=new_id(at), at=at)
        return self.submit(change)

    def import_answer(self, exported: ExportedAnswer) -> Future[ImportResult]:
        """Store an exported answer, even if its question has expired.

        An answer that was undone or replaced in the exporting store does not become a standing
        answer here. Raises `IdempotencyConflict` for the same key with another body, and
        `UnknownPrediction`.
        """
        at = self._clock()
        feedback_id = exported.id or new_id(at)
        change = partial(answers.import_answer, exported=exported, feedback_id=feedback_id, at=at)
        return self.submit(change)

    def undo_answer(self, feedback_id: str, by: str) -> Future[UndoReceipt]:
        """Undo an answer. A question that it had closed opens again.

        Raises `UnknownFeedback`.
        """
        change = partial(answers.undo_answer, feedback_id=feedback_id, by=by, at=self._clock())
        return self.submit(change)

    def claim_answers(self, limit: int | None = None) -> Future[list[LearnableAnswer]]:
        """Claim pending answers, oldest first, for the learning step that is about to run.

        Until `log_learned_step` or `release_answers`, an undo reports a claimed answer as applied,
        because the running step may learn it. A restart releases all claims.
        """
        return self.submit(partial(pending_answers.claim_answers, limit=limit, at=self._clock()))

    def release_answers(self) -> Future[None]:
        """Release all claimed answers, even those of a `claim_answers` with unknown outcome.

        Answers that were undone meanwhile stay undone.
        """
        return self.submit(pending_answers.release_answers, must=True)

    def log_learned_step(self, step: LearnedStep) -> Future[None]:
        """Log a learning step and mark its answers as applied, in one transaction."""
        change = partial(pending_answers.log_learned_step, step=step, at=self._clock())
        return self.submit(change, must=True)

    def expire_answers(self, feedback_ids: Sequence[str], reason: str) -> Future[None]:
        """Mark pending answers as expired: their images are missing, so nothing can be learned."""
        change = partial(
            pending_answers.expire_answers,
            feedback_ids=feedback_ids,
            reason=reason,
            at=self._clock(),
        )
        return self.submit(change, must=True)

    def add_snapshot(self, new: NewSnapshot) -> Future[StoredSnapshot]:
        """Record a snapshot whose file is durable."""
        return self.submit(partial(lineages.add_snapshot, new=new, at=self._clock()))

    def drop_snapshots(self, ids: Sequence[str], *, must: bool = False) -> Future[None]:
        """Mark snapshots as dropped. Remove their files afterwards.

        `must` is for snapshots whose files are already missing.
        """
        change = partial(lineages.drop_snapshots, ids=ids, at=self._clock())
        return self.submit(change, must=must)

    def log_rollback(self, rollback: Rollback) -> Future[StoredSnapshot]:
        """Log a rollback, and add the snapshot that begins the new lineage.

        Raises `UnknownSnapshot`.
        """
        return self.submit(partial(lineages.log_rollback, rollback=rollback, at=self._clock()))

    def log_restart(
        self,
        snapshot_id: str,
        environment: Mapping[str, Any] = MappingProxyType({}),
        *,
        lineage: int | None = None,
    ) -> Future[RestartResult]:
        """Log a restart from a snapshot. Answers that were learned after it become pending.

        `lineage` is the number of the new lineage; None if the previous process stopped cleanly and
        its lineage continues. Raises `UnknownSnapshot`.
        """
        change = partial(
            lineages.log_restart,
            snapshot_id=snapshot_id,
            lineage=lineage,
            environment=environment,
            at=self._clock(),
        )
        return self.submit(change)

    def log_event(self, kind: str, body: Mapping[str, Any]) -> Future[int]:
        """Log an event of another kind, such as started, paused or resumed. Return its seq."""
        return self.submit(partial(append_event, kind=kind, body=dict(body), at=self._clock()))

    def keep_images(self, new: Sequence[NewImage]) -> Future[list[ImageRecord]]:
        """Write images to files and record them. Changes submitted later are stored later."""
        contents = [image.content for image in new]
        names = [image_name(content) for content in contents]

        def write_files() -> None:
            self.images.write(contents)

        change = partial(add_images, new=new, names=names, at=self._clock())
        # The files are written again afterwards: a deletion may have come before the commit.
        kept = self.submit(change, must=True, before=write_files, after=lambda _: write_files())
        kept.add_done_callback(partial(self.images.count_failures, n=len(new)))
        return kept

    def delete_image(self, sha256: str, by: str) -> Future[bool]:
        """Delete a kept image. Return False if there is none."""

        def remove_file(is_deleted: bool) -> None:
            if is_deleted:
                self.images.remove(sha256)

        change = partial(mark_image_deleted, sha256=sha256, by=by, at=self._clock())
        return self.submit(change, after=remove_file)

    def _clean_up(self) -> None:
        """Release claims, and finish deletions of images, that a killed process left."""
        self.submit(pending_answers.release_answers).result()
        self.images.clean_up(self.deleted_images())
