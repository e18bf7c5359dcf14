"""Schemas of request and response bodies under /v1. Request bodies are strict."""

from collections.abc import Iterable
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)

from bitta.records import (
    MAX_COMMENT_LENGTH,
    AnnotatorKind,
    AskedQuestion,
    FeedbackRecord,
    QuestionStatus,
    Role,
    SnapshotReason,
    Verdict,
)
from bitta.types import QueryReason

_MAX_DEPTH = 8
_MAX_VALUES = 200
_MAX_METADATA_TEXT = 2000
_WITHOUT_NUL = r"^[^\x00]*$"
_EXAMPLE_ID = "01JCPQ8M3V5N7R9T1W3Y5Z7B9D"


def _require_storable(text: str) -> str:
    """Refuse NUL, which PostgreSQL cannot store, and lone surrogates, which UTF-8 cannot encode."""
    if "\x00" in text:
        raise ValueError("text must not contain the character U+0000")
    _require_no_surrogates(text)
    return text


def _require_no_surrogates(text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("text must not contain half of a surrogate pair")


def _require_small_tree(value: Any) -> Any:
    """Refuse JSON that is too deep or too large, or that holds values that cannot be stored."""
    _check_values(value, _MAX_DEPTH, [_MAX_VALUES])
    return value


def _check_values(value: Any, max_depth: int, n_left: list[int]) -> None:
    n_left[0] -= 1
    if max_depth < 0 or n_left[0] < 0:
        raise ValueError(
            f"at most {_MAX_VALUES} values, nested at most {_MAX_DEPTH} deep, are allowed"
        )
    if isinstance(value, str):
        _require_no_surrogates(value)
        if len(value) > _MAX_METADATA_TEXT:
            raise ValueError(f"text may have at most {_MAX_METADATA_TEXT} characters")
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError("numbers must be finite")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_values(key, max_depth - 1, n_left)
            _check_values(inner, max_depth - 1, n_left)
    elif isinstance(value, list):
        for inner in value:
            _check_values(inner, max_depth - 1, n_left)


def _to_integer(value: Any) -> Any:
    """Accept 5.0 as 5: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_to_integer)]
Time = Annotated[Count, Field(description="Microseconds since 1970, UTC.")]
Comment = Annotated[
    str,
    StringConstraints(max_length=MAX_COMMENT_LENGTH, pattern=_WITHOUT_NUL),
    AfterValidator(_require_storable),
]
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=_WITHOUT_NUL),
    AfterValidator(_require_storable),
]
Metadata = Annotated[
    dict[str, Any],
    BeforeValidator(_require_small_tree),
    Field(description=f"At most {_MAX_VALUES} values, nested at most {_MAX_DEPTH} deep."),
]


def shared_fields(record: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a store record whose names are in `names`, the fields of a schema.

    The caller gives the schema's other fields.
    """
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def _config(**example: Any) -> ConfigDict:
    """Return the configuration of a schema, with an example if fields are given."""
    return ConfigDict(
        extra="forbid",
        strict=True,
        from_attributes=True,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        json_schema_extra={"examples": [example]} if example else None,
    )


# Errors, sessions


class ErrorBody(BaseModel):
    """Reason why a request was refused."""

    model_config = _config(error="the key is unknown or was revoked.", code="unauthorized")

    error: str
    """Sentence for people: what was given, what is allowed, what to do."""
    code: str
    """Code for programs."""


class SignInRequest(BaseModel):
    """Key that a person entered."""

    model_config = _config(key="bitta_...")

    key: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class CallerBody(BaseModel):
    """Owner of the key of this request."""

    model_config = _config(id="k_7QX2", role="annotator", name="Ada")

    id: str
    role: Role
    name: str


# Questions and feedback


class NextQuestion(BaseModel):
    """Question with its lease, and the number of open questions."""

    model_config = _config()

    question: AskedQuestion
    left: int
    """Open questions that this annotator could get, including this one."""


class FeedbackRequest(BaseModel):
    """One verdict on one prediction."""

    # The fields are those of `SubmittedAnswer`, with the limits of the API.

    model_config = _config(
        prediction_id=_EXAMPLE_ID,
        verdict="correct",
        shown_at=1794787190000000,
        answered_at=1794787191840000,
        lead_time_ms=1840,
    )

    prediction_id: Name
    verdict: Verdict
    """Verdict on the label that was served; "skip" if the annotator cannot tell."""
    lease: Name | None = None
    """Token of the lease. Clients that answer about their own predictions have none."""
    comment: Comment | None = None
    metadata: Metadata | None = None
    """Any data of the caller, stored unchanged."""
    shown_at: Time | None = None
    answered_at: Time | None = None
    """Time of the verdict, if it is sent later. A time in the future counts as now."""
    lead_time_ms: Count | None = None
    annotator_kind: AnnotatorKind = "HUMAN"


class FeedbackPage(BaseModel):
    """One page of feedback, newest first."""

    model_config = _config()

    feedback: list[FeedbackRecord]
    next: int | None
    """Value of `before` for the next page, or null on the last page."""


class QuestionItem(BaseModel):
    """Question with the reason why it is asked."""

    model_config = _config()

    prediction_id: str
    label: str
    class_index: int
    confidence: float
    uncertainty: float
    reason: QueryReason
    status: QuestionStatus
    asked_at: Time
    expires_at: Time
    model_version: str
    image_url: str | None


class QuestionList(BaseModel):
    """Questions, newest first."""

    model_config = _config()

    questions: list[QuestionItem]


# Operation


class SnapshotItem(BaseModel):
    """Model version that is kept on disk."""

    model_config = _config(
        id=_EXAMPLE_ID,
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


class SnapshotList(BaseModel):
    """Snapshots, newest first."""

    model_config = _config()

    snapshots: list[SnapshotItem]


class RollbackRequest(BaseModel):
    """Snapshot to roll back to, and the reason."""

    model_config = _config(snapshot_id=_EXAMPLE_ID, reason="it took cats for dogs")

    snapshot_id: Name
    reason: Comment = ""


class VersionBody(BaseModel):
    """Model version that is served now."""

    model_config = _config(model_version="2.40")

    model_version: str


class PauseRequest(BaseModel):
    """Reason for the pause."""

    model_config = _config(reason="maintenance of camera 3")

    reason: Comment = ""


class LearningState(BaseModel):
    """State of learning."""

    model_config = _config(state="paused")

    state: Literal["on", "paused"]


class DeletedImage(BaseModel):
    """Hash of an image that was deleted."""

    model_config = _config(
        deleted="9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    )

    deleted: str


# Status


class _StatusSection(BaseModel):
    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )


class ModelStatus(_StatusSection):
    """Model that is served."""

    name: str
    classes: list[str]
    version: str
    weights: str | None
    """Hash of the weights of the newest snapshot."""


class LearningStatus(_StatusSection):
    """Learning of the model."""

    state: Literal["on", "paused"]
    reason: str | None
    """Reason for the pause."""
    duty: float
    """Share of the worker's time spent on asking and learning."""
    steps: int
    last_step_at: Time | None
    losses: dict[str, float | None]


class LatencyStatus(_StatusSection):
    """Latency of predictions in milliseconds."""

    p50: float | None
    p99: float | None


class TrafficStatus(_StatusSection):
    """Served images."""

    n: int
    per_second: float
    latency_ms: LatencyStatus


class QuestionCounts(_StatusSection):
    """Numbers of questions, and of standing answers."""

    open: int
    asked: int
    """All questions so far."""
    answered: int
    """Standing verdicts without skips. They include answers about predictions without a question,
    and several answers to one question."""
    skipped: int
    """Standing skips."""
    expired: int
    """Questions that were not answered in time."""


class AuditStatus(_StatusSection):
    """Accuracy on audits (questions about random samples), with its 95 % interval."""

    n: int
    correct: int
    accuracy: float | None
    low: float | None
    high: float | None


class ConfidenceStatus(_StatusSection):
    """Mean confidence of the newest windows and of the first windows."""

    recent: float | None
    reference: float | None


class DistanceStatus(_StatusSection):
    """Distance of the weights from the source weights."""

    now: float | None
    limit: float | None


class CollapseStatus(_StatusSection):
    """State of the model according to the guard, and the reasons."""

    state: Literal["ok", "suspect", "collapsed", "rolled back"]
    reasons: list[str]


class StatusHistory(_StatusSection):
    """Columns of equal length, oldest row first."""

    at: list[Time]
    accuracy: list[float | None]
    low: list[float | None]
    high: list[float | None]
    confidence: list[float | None]
    agreement: list[float | None]
    answers_per_minute: list[float | None]
    latency_ms: list[float | None]
    latency_p99_ms: list[float | None]


class AnnotatorStatus(_StatusSection):
    """Answers of one annotator."""

    id: str
    name: str
    answered: int
    skipped: int
    agreement: float | None
    """Share of equal verdicts among the predictions that another annotator answered too."""


class CallerStatus(_StatusSection):
    """Answers of the caller."""

    id: str
    role: Role
    answered_today: int
    answered: int


class StatusBody(_StatusSection):
    """Status of the server, as the operator's page shows it."""

    model: ModelStatus
    learning: LearningStatus
    served: TrafficStatus
    questions: QuestionCounts
    audits: AuditStatus
    agreement: float | None
    """Share of samples where the policy (mean of repeated predictions) gives the served label."""
    confidence: ConfidenceStatus
    distance: DistanceStatus
    collapse: CollapseStatus
    snapshots: int
    history: StatusHistory
    annotators: list[AnnotatorStatus]
    """All annotators for operators, otherwise the caller alone."""
    me: CallerStatus
