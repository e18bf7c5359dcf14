"""The store: everything that must outlive the process, in one order."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from sqlalchemy import Connection

from bitta.errors import SettingError
from bitta.records import FeedbackReceipt, UndoReceipt
from bitta.server.store import answers, pictures, questions
from bitta.server.store import lineage as lineages
from bitta.server.store.connect import Clock, Place, is_new, now
from bitta.server.store.errors import StoreUnavailable
from bitta.server.store.ids import new_id, new_token
from bitta.server.store.images import ImageFiles, name_of
from bitta.server.store.keys import ApiKeys
from bitta.server.store.log import append
from bitta.server.store.migrate import migrate
from bitta.server.store.reads import StoreReader
from bitta.server.store.records import (
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
    ServedBatch,
    StoredSnapshot,
)
from bitta.server.store.writer import Writer

T = TypeVar("T")


class Store(StoreReader):
    """One database and one folder of files, owned by one process.

    Changes go through one writer thread and return futures; a future that is done is durable.
    Reads (of `StoreReader`) run on connections of their own, in any thread.
    """

    images: ImageFiles
    """Files of images; read here, written by `keep_images`."""
    keys: ApiKeys
    """API keys: create, list, revoke, verify."""

    def __init__(self, place: Place, clock: Clock) -> None:
        super().__init__(place.reader)
        self._place = place
        self._clock = clock
        self._writer = Writer(place.writer)
        self.images = ImageFiles(place.folder / "images")
        self.keys = ApiKeys(place.reader, self.submit, clock)

    @classmethod
    def open(
        cls,
        url: str | None,
        data_dir: Path,
        *,
        clock: Clock = now,
        alone: bool = True,
        make: bool = True,
        busy_seconds: float = 5.0,
    ) -> Self:
        """Open or make the database, brought to this version's schema.

        `url` None is a SQLite file in the data folder. `alone=False` is for commands beside a
        server that runs (keys, exports): it owns nothing, and must not learn, serve or ask.
        `make=False` is for those that are of no use where no server has run.
        """
        if not make and is_new(url, data_dir):
            raise SettingError(
                f"there is no database in {str(data_dir)!r}; give the server's --data-dir or "
                "--database."
            )
        place = Place.take(url, data_dir, alone=alone, busy_seconds=busy_seconds)
        try:
            migrate(place, alone=alone)
        except BaseException:
            place.leave()
            raise
        store = cls(place, clock)
        try:
            if alone:
                store._finish_what_was_begun()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Write what waits, then let go of the database and the folder."""
        self._writer.close()
        self._place.leave()

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
        """Run a change with the next group; its future is done once it is durable.

        A change is run again when another of its group fails, so it changes nothing but the
        database. `must`: it has already happened, so it waits, in order, until a full or locked
        database can take it, rather than fail. `before` runs on the writer's thread ahead of the
        transaction, maybe more than once; where it raises, there is no change. `after` runs once
        it is durable, before its future is done.
        """
        return self._writer.submit(change, must=must, before=before, after=after)

    @property
    def last_write_error(self) -> StoreUnavailable | None:
        """Why the database has taken nothing lately; None where it has, or nothing was tried."""
        return self._writer.trouble

    def add_listener(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` (on the writer's thread, briefly) after each commit; returns the stop."""
        return self._writer.listen(heard)

    def log_served_batch(self, batch: ServedBatch) -> Future[None]:
        """Log what was served; written behind, never lost while the process lives."""
        return self.submit(partial(questions.served, batch=batch, at=self._clock()), must=True)

    def add_questions(self, asks: Sequence[NewQuestion]) -> Future[None]:
        """Open questions; they can be leased from now on."""
        return self.submit(partial(questions.asked, asks=asks, at=self._clock()), must=True)

    def lease_question(
        self, annotator_id: str, *, seconds: float, besides: Collection[str] = ()
    ) -> Future[LeasedQuestion | None]:
        """Give an annotator a question: a held one again, else of the newest window.

        Within a window audits come first, since an order by uncertainty would bias what they
        estimate, then the most uncertain. Never one that this annotator answered or skipped, nor
        one that others hold or have answered `overlap` times, nor one in `besides`.
        """
        change = partial(
            questions.lease,
            annotator_id=annotator_id,
            token=new_token(),
            seconds=seconds,
            besides=frozenset(besides),
            clock=self._clock,
        )
        return self.submit(change)

    def expire_questions(self, at: int | None = None) -> Future[list[str]]:
        """Mark open questions whose time is over; the ids of their predictions."""
        return self.submit(partial(questions.expire, at=self._clock() if at is None else at))

    def add_answer(self, given: NewAnswer) -> Future[FeedbackReceipt]:
        """Store a verdict once; the same key and body again give the stored record.

        Raises `IdempotencyConflict` (same key, other body), `UnknownPrediction`, `QuestionExpired`.
        """
        at = self._clock()
        return self.submit(partial(answers.answer, given=given, feedback_id=new_id(at), at=at))

    def import_answer(self, told: ExportedAnswer) -> Future[ImportResult]:
        """Store an answer as it was exported, whether its question is still open or not.

        Undone or replaced there, it does not stand here. Raises `IdempotencyConflict` (same key,
        something else said), `UnknownPrediction`.
        """
        at = self._clock()
        change = partial(answers.restore, told=told, feedback_id=told.id or new_id(at), at=at)
        return self.submit(change)

    def undo_answer(self, feedback_id: str, by: str) -> Future[UndoReceipt]:
        """Take an answer back; a question it had closed opens again. `UnknownFeedback`."""
        change = partial(answers.undo, feedback_id=feedback_id, by=by, at=self._clock())
        return self.submit(change)

    def claim_answers(self, limit: int | None = None) -> Future[list[LearnableAnswer]]:
        """Claim pending answers, oldest first, for the step about to be computed.

        From here to `learned` or `release` an undo says that the answer is applied, so that
        nobody is told otherwise while the step runs. A restart forgets the claim.
        """
        return self.submit(partial(lineages.take, limit=limit, at=self._clock()))

    def release_answers(self, feedback_ids: Sequence[str]) -> Future[None]:
        """Give claimed answers back, as the step was not made; those undone meanwhile stay so."""
        return self.submit(partial(lineages.release, feedback_ids=feedback_ids), must=True)

    def release_all_answers(self) -> Future[None]:
        """Give back whatever is claimed, by a `take` whose outcome is not known too."""
        return self.submit(lineages.forget_taken, must=True)

    def log_learned_step(self, step: LearnedStep) -> Future[None]:
        """Log a step and mark its answers as applied, in one transaction."""
        return self.submit(partial(lineages.learned, step=step, at=self._clock()), must=True)

    def expire_answers(self, feedback_ids: Sequence[str], reason: str) -> Future[None]:
        """Mark pending answers as expired: their image is not there to learn from."""
        change = partial(
            lineages.unusable, feedback_ids=feedback_ids, reason=reason, at=self._clock()
        )
        return self.submit(change, must=True)

    def add_snapshot(self, new: NewSnapshot) -> Future[StoredSnapshot]:
        """Record a snapshot whose file is already durable."""
        return self.submit(partial(lineages.snapshot, new=new, at=self._clock()))

    def drop_snapshots(self, ids: Sequence[str], *, must: bool = False) -> Future[None]:
        """Mark snapshots as dropped; do this first, then remove their files.

        `must`: their files are gone already.
        """
        return self.submit(partial(lineages.drop_snapshots, ids=ids, at=self._clock()), must=must)

    def log_rollback(
        self,
        to: str,
        new: NewSnapshot,
        *,
        from_version: str,
        reason: str,
        by: str,
        again: bool = False,
    ) -> Future[StoredSnapshot]:
        """Log a rollback to snapshot `to`, and the snapshot that begins the new lineage.

        `again`: answers claimed, or learned after `to`, pend again, as after a restart.
        """
        change = partial(
            lineages.rolled_back,
            to=to,
            new=new,
            from_version=from_version,
            reason=reason,
            by=by,
            again=again,
            at=self._clock(),
        )
        return self.submit(change)

    def log_restart(
        self,
        snapshot_id: str,
        environment: Mapping[str, Any] = MappingProxyType({}),
        *,
        lineage: int | None = None,
    ) -> Future[RestartResult]:
        """Log a restart from a snapshot: answers learned after it in its lineage pend again.

        `lineage` is the one that begins, where the process before ended in disorder.
        """
        change = partial(
            lineages.recovered,
            snapshot_id=snapshot_id,
            lineage=lineage,
            environment=environment,
            at=self._clock(),
        )
        return self.submit(change)

    def log_event(self, kind: str, body: Mapping[str, Any]) -> Future[int]:
        """Log anything else (started, paused, resumed, ...); its seq."""
        return self.submit(partial(append, kind=kind, body=dict(body), at=self._clock()))

    def keep_images(self, images: Sequence[NewImage]) -> Future[list[ImageRecord]]:
        """Write files, then their rows; what is submitted after this is not stored before it."""
        contents = [image.content for image in images]
        names = [name_of(content) for content in contents]

        def write() -> None:
            self.images.keep(contents)

        change = partial(pictures.kept, images=images, names=names, at=self._clock())
        # Afterwards again: a deletion that came between file and row has taken the file.
        kept = self.submit(change, must=True, before=write, after=lambda _: write())
        kept.add_done_callback(partial(self.images.note, n=len(images)))
        return kept

    def delete_image(self, sha256: str, by: str) -> Future[bool]:
        """Remove a kept image for good; False where there was none."""
        change = partial(pictures.deleted, sha256=sha256, by=by, at=self._clock())
        return self.submit(change, after=lambda was: self.images.remove(sha256) if was else None)

    def _finish_what_was_begun(self) -> None:
        """By a process that ended: steps that were not made, deletions whose file still lies."""
        self.submit(lineages.forget_taken).result()
        self.images.sweep(self.deleted_images())
