"""Records of predictions, questions and answers, shared by the server's store, API and client.

The fields of a record are the fields of its JSON object in the API. Times are microseconds since
1970, UTC. An answer "stands" unless it was undone or replaced by a later answer of the same
annotator.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

from bitta.types import QueryReason

Verdict: TypeAlias = Literal["correct", "incorrect", "skip"]
"""Judgement of a served label. "skip": the annotator cannot tell."""
AnnotatorKind: TypeAlias = Literal["HUMAN", "CODE", "MODEL"]
"""Kind of annotator: a person, a program that knows the truth, or a model that judges."""
FeedbackStatus: TypeAlias = Literal["pending", "applied", "expired", "superseded"]
"""State of an answer. "pending": not learned yet. "applied": learned. "expired": its image is gone,
so it cannot be learned. "superseded": replaced or undone before it was learned, or replaced by an
equal answer after it was learned."""
QuestionStatus: TypeAlias = Literal["open", "closed", "expired"]
"""State of a question: it takes answers, has enough of them, or was not answered in time."""
SnapshotReason: TypeAlias = Literal["source", "interval", "asked", "rollback"]
"""Reason for a snapshot: the source model, a regular interval, an operator, or a rollback."""
Role: TypeAlias = Literal["client", "annotator", "operator"]
"""Role of an API key."""
_SCHEMA_CONFIG = {"extra": "forbid", "use_attribute_docstrings": True}
"""Configuration of pydantic for the records that are response schemas of the API."""
MAX_COMMENT_LENGTH = 2000
"""Largest number of characters of a comment."""


@dataclass(frozen=True, slots=True)
class ServedPrediction:
    """Prediction that was served for one image."""

    prediction_id: str
    """Id by which an answer refers to the prediction."""
    label: str
    class_index: int
    confidence: float
    model_version: str


@dataclass(frozen=True, slots=True)
class Lease:
    """Reservation of a question for one annotator."""

    __pydantic_config__ = _SCHEMA_CONFIG
    token: str
    """Secret that the annotator sends with the answer."""
    until: int
    """Time at which the reservation ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedQuestion:
    """Question to one annotator: is `label` right for this image?"""

    __pydantic_config__ = _SCHEMA_CONFIG
    prediction_id: str
    label: str
    """The class that was served. The answer judges this class."""
    class_index: int
    confidence: float
    uncertainty: float
    reason_shown: None = None
    """Always null. Annotators who know which questions are audits would answer them differently."""
    image_url: str | None
    """Path of the image on the server; null if the image was not kept."""
    input_sha256: str
    """Hash of the model's input, so that the sender of the image can recognise it."""
    asked_at: int
    expires_at: int
    lease: Lease
    model_version: str

    @property
    def has_image(self) -> bool:
        """True if the server can show the image."""
        return self.image_url is not None


@dataclass(frozen=True, slots=True)
class SubmittedAnswer:
    """One answer as it is submitted. The fields are those of the body of POST /v1/feedback."""

    prediction_id: str
    verdict: Verdict
    """Verdict on the label that was served."""
    _: KW_ONLY
    lease: str | None = None
    """Token of the lease. Applications that answer about their own predictions have none."""
    comment: str | None = None
    metadata: Mapping[str, Any] | None = None
    """Any data of the caller, stored unchanged."""
    shown_at: int | None = None
    """Time at which the annotator saw the question."""
    answered_at: int | None = None
    """Time of the answer according to the annotator. None means the time of receipt."""
    lead_time_ms: int | None = None
    """Milliseconds that the annotator took."""
    annotator_kind: AnnotatorKind = "HUMAN"


@dataclass(frozen=True, slots=True)
class FeedbackRecord:
    """One answer as it is stored, shown and exported."""

    __pydantic_config__ = _SCHEMA_CONFIG
    id: str
    idempotency_key: str
    seq: int
    """Number of its event. Events are numbered in the order in which they were stored."""
    prediction_id: str
    request_id: str
    model_name: str
    model_version: str
    input_sha256: str
    predicted_class: int
    predicted_label: str
    confidence: float
    uncertainty: float | None
    """Null if no question was asked about this prediction. `selection_reason` is then null too."""
    selection_reason: QueryReason | None
    verdict: Verdict
    annotator_id: str
    annotator_kind: AnnotatorKind
    comment: str | None
    metadata: Mapping[str, Any] | None
    shown_at: int | None
    answered_at: int
    received_at: int
    lead_time_ms: int | None
    """Milliseconds that the annotator took."""
    status: FeedbackStatus
    """A skip stays pending, because nothing can be learned from it."""
    supersedes_id: str | None
    applied_in_version: str | None
    weight: float
    standing: bool
    """True unless the answer was undone or replaced by a later one of the same annotator."""
    undone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackReceipt(FeedbackRecord):
    """Record of an answer that was just submitted."""

    repeated: bool = False
    """True if an earlier request with the same idempotency key stored it."""


@dataclass(frozen=True, slots=True)
class UndoReceipt:
    """Result of undoing an answer."""

    __pydantic_config__ = _SCHEMA_CONFIG
    undone: str
    """Id of the answer."""
    applied: bool
    """True if the model had already learned from the answer."""
    note: str
    """Sentence that tells people whether the model had learned from the answer."""
