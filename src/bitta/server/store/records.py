"""What goes into the store and what comes out of it. Times are microseconds since 1970, UTC."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from bitta.records import (
    AnnotatorKind,
    FeedbackReceipt,
    FeedbackStatus,
    Lease,
    QuestionReason,
    QuestionStatus,
    Role,
    SnapshotReason,
    Verdict,
)
from bitta.server.store import strict


@dataclass(frozen=True, slots=True)
class NewPrediction:
    """One image that was served."""

    id: str
    """26 characters that sort by time: `new_id(clock())`."""
    position: int
    """Place in the stream of everything served, from 0."""
    request_id: str
    input_sha256: str
    class_index: int
    label: str
    confidence: float
    served_at: int


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """What one pass through the model served; one event."""

    model_name: str
    model_version: str
    predictions: Sequence[NewPrediction]
    during: tuple[int, int] | None = None
    """Step and epoch between whose optimiser steps it was served; None between learning steps."""
    silent: bool = False
    """Whether no questions were to be asked, if a window was full with it."""


@dataclass(frozen=True, slots=True)
class StoredPrediction:
    """A stored prediction."""

    id: str
    event_seq: int
    position: int
    request_id: str
    model_name: str
    model_version: str
    input_sha256: str
    class_index: int
    label: str
    confidence: float
    served_at: int


@dataclass(frozen=True, slots=True)
class NewQuestion:
    """A prediction that somebody should judge."""

    prediction_id: str
    step: int
    """Number of the window that asks; the newest window is leased first."""
    row: int
    """Row of the window."""
    uncertainty: float
    reason: QuestionReason
    expires_at: int
    overlap: int = 1
    """Verdicts after which it closes, and annotators that may hold it at once."""


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """A stored question with what was predicted."""

    prediction_id: str
    asked_seq: int
    step: int
    row: int
    uncertainty: float
    reason: QuestionReason
    status: QuestionStatus
    overlap: int
    asked_at: int
    expires_at: int
    class_index: int
    label: str
    confidence: float
    model_version: str
    input_sha256: str


@dataclass(frozen=True, slots=True)
class LeasedQuestion:
    """A question that one annotator holds until a moment."""

    question: StoredQuestion
    lease: Lease
    left: int
    """Open questions that this annotator could still be given, this one included."""


@dataclass(frozen=True, slots=True)
class NewAnswer:
    """One verdict as it came in; `InputError` where it is not strictly of this form."""

    prediction_id: str
    verdict: Verdict
    annotator_id: str
    idempotency_key: str
    annotator_kind: AnnotatorKind = "HUMAN"
    lease: str | None = None
    """Token of the lease it answers under; None where nobody asked, as from an application."""
    comment: str | None = None
    metadata: Mapping[str, Any] | None = None
    shown_at: int | None = None
    answered_at: int | None = None
    """As the client says; None: the moment it is received."""
    lead_time_ms: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        strict.one_of("verdict", self.verdict, get_args(Verdict))
        strict.one_of("annotator_kind", self.annotator_kind, get_args(AnnotatorKind))
        for name in ("prediction_id", "annotator_id", "idempotency_key"):
            strict.text(name, getattr(self, name), most=200)
        for name, most in (("lease", 200), ("comment", 10_000)):
            strict.text(name, getattr(self, name), least=0, most=most, optional=True)
        for name in ("shown_at", "answered_at", "lead_time_ms"):
            strict.count(name, getattr(self, name), optional=True)
        strict.weight("weight", self.weight)
        strict.tree("metadata", self.metadata, most=20_000)


@dataclass(frozen=True, slots=True)
class ExportedAnswer:
    """A verdict and what became of it, as an export tells it; `InputError` where it is not so."""

    given: NewAnswer
    id: str | None = None
    """Kept, as others may name it; None for a new one."""
    uncertainty: float | None = None
    """Counts, as the reason, where the store has no question about the prediction."""
    selection_reason: QuestionReason | None = None
    supersedes_id: str | None = None
    standing: bool = True
    undone: bool = False

    def __post_init__(self) -> None:
        for name in ("id", "supersedes_id"):
            strict.identifier(name, getattr(self, name), most=26, optional=True)
        strict.number("uncertainty", self.uncertainty, optional=True)
        if self.selection_reason is not None:
            strict.one_of("selection_reason", self.selection_reason, get_args(QuestionReason))
        for name in ("standing", "undone"):
            strict.truth(name, getattr(self, name))

    @property
    def stood(self) -> bool:
        """It was the last word of its annotator."""
        return self.standing and not self.undone


@dataclass(frozen=True, slots=True)
class ImportResult:
    """An answer that came in from a file; `record.repeated` where it was stored before."""

    record: FeedbackReceipt
    ended: bool
    """One that stood here stands no longer: this one, or the one before it."""


@dataclass(frozen=True, slots=True)
class LearnableAnswer:
    """An answer (never a skip) with what the learner needs to know of its prediction."""

    feedback_id: str
    seq: int
    prediction_id: str
    verdict: Verdict
    annotator_id: str
    weight: float
    status: FeedbackStatus
    applied_in_version: str | None
    standing: bool
    class_index: int
    position: int
    input_sha256: str
    step: int | None
    """Window and row of its question; None where nobody asked."""
    row: int | None
    overrules: bool = False
    """The memory holds the opposite, said by the same person; told by `take`."""


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """One learning step; the answers are those that entered the memory in it."""

    version: str
    """ "L.S" after the step."""
    answers: Sequence[str]
    losses: Mapping[str, float | None]
    seconds: float
    weights: str | None = None
    overruling: Sequence[str] = ()
    """Those of the answers for which the opposite, said before, left the memory."""


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A file of weights and state that lies complete on the disk."""

    id: str
    model_version: str
    path: str
    """Relative to the data folder."""
    sha256: str
    weights_hash: str
    reason: SnapshotReason


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A stored snapshot."""

    id: str
    seq: int
    model_version: str
    lineage: int
    step: int
    path: str
    sha256: str
    weights_hash: str
    reason: SnapshotReason
    created_at: int
    dropped_at: int | None


@dataclass(frozen=True, slots=True)
class RestartResult:
    """What a restart from a snapshot did to the answers."""

    seq: int
    reentered: tuple[str, ...]
    """Answers learned after the snapshot, pending again, in the order of their seq."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One entry of the log."""

    seq: int
    at: int
    kind: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """A standing verdict on a question that chance chose."""

    seq: int
    feedback_id: str
    prediction_id: str
    correct: bool
    model_version: str
    received_at: int


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """How much of everything there is."""

    served: int
    asked: int
    open: int
    closed: int
    expired: int
    answered: int
    """Standing verdicts, skips left out."""
    correct: int
    incorrect: int
    skipped: int
    pending: int
    """Verdicts not yet learned from."""
    applied: int
    undone: int
    superseded: int


@dataclass(frozen=True, slots=True)
class AnnotatorCounts:
    """What one annotator did."""

    annotator_id: str
    answered: int
    skipped: int
    compared: int
    """Pairs of standing verdicts, own and another annotator's, on one prediction."""
    agreed: int


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key, without its token."""

    id: str
    role: Role
    name: str
    created_at: int
    revoked_at: int | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """An API key at the only moment its token is known."""

    token: str
    record: KeyRecord


@dataclass(frozen=True, slots=True)
class NewImage:
    """Bytes to keep under the name of their hash."""

    content: bytes
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """A kept image; its file is gone when `deleted_at` is set."""

    sha256: str
    n_bytes: int
    shape: tuple[int, ...]
    dtype: str
    kept_at: int
    deleted_at: int | None
