"""What goes in and out under /v1: strict, complete, with an example each."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from bitta.records import (
    AnnotatorKind,
    FeedbackStatus,
    QuestionReason,
    QuestionStatus,
    Role,
    SnapshotReason,
    Verdict,
)
from bitta.server.api.text import Comment, Metadata, Name, whole

Whole = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(whole)]
Time = Annotated[Whole, Field(description="Microseconds since 1970, UTC.")]
PREDICTION = "01JCPQ8M3V5N7R9T1W3Y5Z7B9D"


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(
        extra="forbid",
        strict=True,
        from_attributes=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        json_schema_extra={"examples": [fields]} if fields else None,
    )


class ErrorBody(BaseModel):
    """Why a request was refused."""

    model_config = _example(error="the key is unknown or was revoked.", code="unauthorized")

    error: str
    """A sentence for people: what was given, what is allowed, what to do."""
    code: str
    """A word for programs."""


class Lease(BaseModel):
    """The right to answer a question first."""

    model_config = _example(token="k3J9...", until=1794787200000000)

    token: str
    until: Time


class AskedQuestion(BaseModel):
    """Is this label right for this picture?"""

    model_config = _example()

    prediction_id: str
    label: str
    """The class that was served, which is the class judged."""
    class_index: int
    confidence: float
    uncertainty: float
    reason_shown: None = None
    """Never told: to know which questions are audits would change how they are answered."""
    image_url: str | None
    """Where the picture is; null where it was not kept."""
    input_sha256: str
    """Of what the model was given, so that whoever sent it knows it again."""
    asked_at: Time
    expires_at: Time
    lease: Lease
    model_version: str


class NextQuestion(BaseModel):
    """A question under a lease, and how many there are."""

    model_config = _example()

    question: AskedQuestion
    left: int
    """Open questions that this annotator could still be given, this one included."""


class FeedbackBody(BaseModel):
    """One verdict on one prediction."""

    model_config = _example(
        prediction_id=PREDICTION,
        verdict="correct",
        shown_at=1794787190000000,
        answered_at=1794787191840000,
        lead_time_ms=1840,
    )

    prediction_id: Name
    verdict: Verdict
    """Whether the label served is right; "skip" where somebody cannot tell."""
    lease: Name | None = None
    """Token of the lease; left out by applications that answer about their own predictions."""
    comment: Comment | None = None
    metadata: Metadata | None = None
    """Anything of the caller's own, kept as it is."""
    shown_at: Time | None = None
    answered_at: Time | None = None
    """When the verdict was given, where it is sent later; one in the future counts as now."""
    lead_time_ms: Whole | None = None
    annotator_kind: AnnotatorKind = "HUMAN"


class Record(BaseModel):
    """Feedback as it is stored and exported."""

    model_config = _example()

    id: str
    idempotency_key: str
    seq: int
    """Place in the total order of everything that happened."""
    prediction_id: str
    request_id: str
    model_name: str
    model_version: str
    input_sha256: str
    predicted_class: int
    predicted_label: str
    confidence: float
    uncertainty: float | None
    """Null, as the reason, where nobody asked."""
    selection_reason: QuestionReason | None
    verdict: Verdict
    annotator_id: str
    annotator_kind: AnnotatorKind
    comment: str | None
    metadata: dict[str, Any] | None
    shown_at: Time | None
    answered_at: Time
    received_at: Time
    lead_time_ms: int | None
    status: FeedbackStatus
    supersedes_id: str | None
    applied_in_version: str | None
    weight: float
    standing: bool
    """Neither undone nor replaced by a later answer of the same annotator."""
    undone: bool


class Records(BaseModel):
    """A page of feedback, newest first."""

    model_config = _example()

    feedback: list[Record]
    next: int | None
    """Give it as `before` for the page that follows; null at the end."""


class UndoneBody(BaseModel):
    """An answer that was taken back."""

    model_config = _example(undone=PREDICTION, applied=False, note="It was not learned from.")

    undone: str
    applied: bool
    """Whether the model had already learned from it."""
    note: str


class SnapshotBody(BaseModel):
    """A version that can be gone back to."""

    model_config = _example(
        id=PREDICTION,
        seq=4711,
        model_version="1.40",
        lineage=1,
        step=40,
        weights_hash="9f2c...",
        reason="interval",
        created_at=1794787200000000,
    )

    id: str
    seq: int
    model_version: str
    lineage: int
    step: int
    weights_hash: str
    reason: SnapshotReason
    created_at: Time


class Snapshots(BaseModel):
    """Versions that can be gone back to, newest first."""

    model_config = _example()

    snapshots: list[SnapshotBody]


class RollbackBody(BaseModel):
    """Which version to go back to, and why."""

    model_config = _example(snapshot_id=PREDICTION, reason="it took cats for dogs")

    snapshot_id: Name
    reason: Comment = ""


class VersionBody(BaseModel):
    """The version that is served now."""

    model_config = _example(model_version="2.40")

    model_version: str


class ReasonBody(BaseModel):
    """Why."""

    model_config = _example(reason="maintenance of camera 3")

    reason: Comment = ""


class AdaptationBody(BaseModel):
    """Whether the model learns."""

    model_config = _example(state="paused")

    state: Literal["on", "paused"]


class KeyBody(BaseModel):
    """A key that somebody has typed in."""

    model_config = _example(key="bitta_...")

    key: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Me(BaseModel):
    """The owner of the key of this request."""

    model_config = _example(id="k_7QX2", role="annotator", name="Ada")

    id: str
    role: Role
    name: str


class DeletedBody(BaseModel):
    """An image that is gone."""

    model_config = _example(
        deleted="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    )

    deleted: str


class QuestionBody(BaseModel):
    """A question and why it is asked."""

    model_config = _example()

    prediction_id: str
    label: str
    class_index: int
    confidence: float
    uncertainty: float
    reason: QuestionReason
    status: QuestionStatus
    asked_at: Time
    expires_at: Time
    model_version: str
    image_url: str | None


class Questions(BaseModel):
    """Questions, newest first."""

    model_config = _example()

    questions: list[QuestionBody]
