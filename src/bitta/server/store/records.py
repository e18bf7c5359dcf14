"""Records that go into and come out of the store, their ids, and checks of their values.

Times are microseconds since 1970, UTC. `bitta.records` holds the records that the API shows.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from bitta.errors import InputError
from bitta.records import (
    MAX_COMMENT_LENGTH,
    AnnotatorKind,
    FeedbackReceipt,
    Lease,
    QuestionStatus,
    Role,
    SnapshotReason,
    SubmittedAnswer,
    Verdict,
)
from bitta.types import QueryReason

Clock: TypeAlias = Callable[[], int]
_ID_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Alphabet of Crockford: it leaves out I, L, O and U."""
_ID_LENGTH = 26
_MAX_INTEGER = 2**63 - 1
"""Largest value of an integer column."""


def now() -> int:
    """Return the current time."""
    return time.time_ns() // 1000


def new_id(at: int) -> str:
    """Return a new id of 26 characters. Ids sort by their time `at`, like ULIDs."""
    number = (at // 1000 % 2**48) << 80 | secrets.randbits(80)
    digits = reversed(range(_ID_LENGTH))
    return "".join(_ID_ALPHABET[number >> 5 * digit & 31] for digit in digits)


def new_token() -> str:
    """Return a new short secret."""
    return secrets.token_urlsafe(16)


def parse_version(version: str) -> tuple[int, int]:
    """Return lineage and step of a model version "LINEAGE.STEP"."""
    lineage, dot, step = version.partition(".")
    if not (dot and lineage.isdecimal() and step.isdecimal()):
        raise InputError(f"the model version is {version!r}; give LINEAGE.STEP, as in '1.20'")
    return int(lineage), int(step)


def check_choice(name: str, value: object, allowed: Collection[str]) -> None:
    """Accept exactly the allowed words, in the same case."""
    if type(value) is not str or value not in allowed:
        names = ", ".join(repr(word) for word in allowed)
        raise InputError(f"{name} is {value!r}; allowed: {names}")


def check_text(
    name: str,
    value: object,
    *,
    min_length: int = 1,
    max_length: int = 200,
    optional: bool = False,
) -> None:
    """Accept text that every database can store as UTF-8."""
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise InputError(f"{name} is {type(value).__name__}; give text")
    if not min_length <= len(value) <= max_length:
        raise InputError(
            f"{name} has {len(value)} characters; allowed: {min_length} to {max_length}"
        )
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{name} holds a NUL or surrogate character; leave it out")


def check_line(name: str, value: object) -> None:
    """Accept one line of printable text."""
    check_text(name, value)
    if isinstance(value, str) and not value.isprintable():
        raise InputError(f"{name} is {value!r}; leave out line breaks and unprintable characters")


def check_id(name: str, value: object, *, max_length: int, optional: bool = False) -> None:
    """Accept an id of ASCII letters and digits, because it can be part of a URL."""
    check_text(name, value, max_length=max_length, optional=optional)
    if isinstance(value, str) and not (value.isascii() and value.isalnum()):
        raise InputError(f"{name} is {value!r}; give letters and digits")


def check_bool(name: str, value: object) -> None:
    """Accept True and False."""
    if type(value) is not bool:
        raise InputError(f"{name} is {value!r}; allowed: true, false")


def check_finite(name: str, value: object, *, optional: bool = False) -> None:
    """Accept a finite number."""
    if value is None and optional:
        return
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise InputError(f"{name} is {value!r}; give a finite number")


def check_column_integer(name: str, value: object, *, optional: bool = False) -> None:
    """Accept a whole number of 0 or more that fits into a column."""
    if value is None and optional:
        return
    if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
        raise InputError(f"{name} is {value!r}; give a whole number from 0 to {_MAX_INTEGER}")


def check_weight(name: str, value: object) -> None:
    """Accept a finite number of 0 or more."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise InputError(f"{name} is {value!r}; give a finite number of 0 or more")


def check_json_object(name: str, value: object, *, max_length: int) -> None:
    """Accept None or a JSON object of limited size."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {type(value).__name__}; give an object")
    try:
        text = canonical_json(value)
        json.dumps(value, ensure_ascii=False).encode()  # exports write it in this form
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{name} is not JSON ({error}); give text, numbers and lists") from error
    if len(text) > max_length:
        raise InputError(f"{name} has {len(text)} characters as JSON; allowed: {max_length}")


def canonical_json(value: Mapping[str, Any]) -> str:
    """Return JSON that is the same text for the same content. It is ASCII."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


@dataclass(frozen=True, slots=True)
class NewPrediction:
    """Prediction that was served for one image."""

    id: str
    """Made by `new_id`, so that it sorts by time."""
    position: int
    """Number of the image in the stream of all served images, from 0."""
    request_id: str
    input_sha256: str
    class_index: int
    label: str
    confidence: float
    served_at: int


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """Predictions of one forward pass. The log records them as one event."""

    model_name: str
    model_version: str
    predictions: Sequence[NewPrediction]
    during: tuple[int, int] | None = None
    """Learning step during which the batch was served, and number of its finished updates."""
    skips_questions: bool = False
    """True if no questions are asked about the window that this batch completes."""


@dataclass(frozen=True, slots=True)
class StoredPrediction:
    """Row of the table of predictions."""

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
    """Question about a prediction."""

    prediction_id: str
    window: int
    """Number of the window that the prediction is in. Newer windows are leased first."""
    row: int
    """Row of the prediction in the window."""
    uncertainty: float
    reason: QueryReason
    expires_at: int
    overlap: int = 1
    """Number of verdicts that close it, and of annotators who can hold it at the same time."""


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """Row of the table of questions, with fields of its prediction."""

    prediction_id: str
    asked_seq: int
    window: int
    row: int
    uncertainty: float
    reason: QueryReason
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
    """Question that an annotator holds until the lease ends."""

    question: StoredQuestion
    lease: Lease
    left: int
    """Number of open questions that this annotator could get, including this one."""


@dataclass(frozen=True, slots=True)
class NewAnswer(SubmittedAnswer):
    """Submitted answer with its annotator. Raises `InputError` for invalid values."""

    annotator_id: str
    idempotency_key: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_choice("verdict", self.verdict, get_args(Verdict))
        check_choice("annotator_kind", self.annotator_kind, get_args(AnnotatorKind))
        for name in ("prediction_id", "annotator_id", "idempotency_key"):
            check_text(name, getattr(self, name))
        check_text("lease", self.lease, min_length=0, optional=True)
        check_text(
            "comment", self.comment, min_length=0, max_length=MAX_COMMENT_LENGTH, optional=True
        )
        for name in ("shown_at", "answered_at", "lead_time_ms"):
            check_column_integer(name, getattr(self, name), optional=True)
        check_weight("weight", self.weight)
        check_json_object("metadata", self.metadata, max_length=20_000)


@dataclass(frozen=True, slots=True)
class ExportedAnswer:
    """Answer that was read from an export. Raises `InputError` for invalid values."""

    answer: NewAnswer
    id: str | None = None
    """Id in the exporting store, kept because other answers can refer to it; None for a new id."""
    uncertainty: float | None = None
    """Used, like `selection_reason`, only if the store has no question about the prediction."""
    selection_reason: QueryReason | None = None
    supersedes_id: str | None = None
    standing: bool = True
    undone: bool = False

    def __post_init__(self) -> None:
        for name in ("id", "supersedes_id"):
            check_id(name, getattr(self, name), max_length=26, optional=True)
        check_finite("uncertainty", self.uncertainty, optional=True)
        if self.selection_reason is not None:
            check_choice("selection_reason", self.selection_reason, get_args(QueryReason))
        for name in ("standing", "undone"):
            check_bool(name, getattr(self, name))

    @property
    def is_standing(self) -> bool:
        """True if it was neither undone nor replaced."""
        return self.standing and not self.undone


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of the import of one answer."""

    record: FeedbackReceipt
    replaced_standing_answer: bool
    """True if a standing answer of this store no longer stands, because of this import."""


@dataclass(frozen=True, slots=True)
class LearnableAnswer:
    """Answer, never a skip, with the fields of its prediction that the learner needs."""

    feedback_id: str
    prediction_id: str
    verdict: Verdict
    annotator_id: str
    class_index: int
    position: int
    input_sha256: str
    replaces_answer: bool = False
    """True if it contradicts a learned answer of the same annotator. `claim_answers` sets it."""


@dataclass(frozen=True, slots=True)
class LearnedStep:
    """Learning step, with the answers that it added to the memory."""

    version: str
    """Model version after the step."""
    answers: Sequence[str]
    losses: Mapping[str, float | None]
    seconds: float
    replacing: Sequence[str] = ()
    """Answers of the step that replace the opposite learned answer of the same annotator."""


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """Snapshot of the model whose file is complete and durable."""

    id: str
    model_version: str
    path: str
    """Path relative to the data folder."""
    sha256: str
    weights_hash: str
    reason: SnapshotReason


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """Row of the table of snapshots."""

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
class Rollback:
    """Return to a snapshot. A new snapshot with the same weights begins a new lineage."""

    target_id: str
    """Snapshot to which the model returns."""
    new_snapshot: NewSnapshot
    from_version: str
    reason: str
    by: str
    repeats_answers: bool = False
    """True if answers that were claimed or learned after the target become pending again."""


@dataclass(frozen=True, slots=True)
class RestartResult:
    """Effect of a restart from a snapshot on the answers."""

    seq: int
    pending_again: tuple[str, ...]
    """Answers that were learned after the snapshot, in order of seq. They are pending again."""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Entry of the event log."""

    seq: int
    at: int
    kind: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """Standing verdict on an audit: a question about a randomly drawn prediction."""

    seq: int
    feedback_id: str
    prediction_id: str
    correct: bool
    model_version: str
    received_at: int


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Numbers of predictions, questions and answers."""

    served: int
    asked: int
    open: int
    closed: int
    expired: int
    answered: int
    """Standing verdicts without skips."""
    correct: int
    incorrect: int
    skipped: int
    pending: int
    """Verdicts that were not learned yet."""
    applied: int
    undone: int
    superseded: int


@dataclass(frozen=True, slots=True)
class AnnotatorCounts:
    """Numbers of answers of one annotator."""

    annotator_id: str
    answered: int
    skipped: int
    compared: int
    """Pairs of standing verdicts of this and another annotator on the same prediction."""
    agreed: int


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """API key without its token."""

    id: str
    role: Role
    name: str
    created_at: int
    revoked_at: int | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """API key with its token, which is known only when the key is created."""

    token: str
    record: KeyRecord


@dataclass(frozen=True, slots=True)
class NewImage:
    """Image to keep. Its name is the hash of its content."""

    content: bytes
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """Row of the table of images. The file is gone if `deleted_at` is set."""

    sha256: str
    n_bytes: int
    shape: tuple[int, ...]
    dtype: str
    kept_at: int
    deleted_at: int | None
