"""What GET /v1/status says, part by part."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from bitta.records import Role
from bitta.server.api.models import Time


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )


class ModelPart(_Part):
    """What is served."""

    name: str
    classes: list[str]
    version: str
    weights: str | None


class LearningPart(_Part):
    """Whether and how it learns."""

    state: Literal["on", "paused"]
    reason: str | None
    duty: float
    steps: int
    last_step_at: Time | None
    losses: dict[str, float | None]


class LatencyPart(_Part):
    """Milliseconds."""

    p50: float | None
    p99: float | None


class ServedPart(_Part):
    """Traffic."""

    n: int
    per_second: float
    latency_ms: LatencyPart


class QuestionsPart(_Part):
    """Questions by what became of them."""

    open: int
    asked: int
    answered: int
    skipped: int
    expired: int


class AuditsPart(_Part):
    """Accuracy on questions that chance chose, with its interval."""

    n: int
    correct: int
    accuracy: float | None
    low: float | None
    high: float | None


class ConfidencePart(_Part):
    """Mean confidence lately, and in the first windows."""

    recent: float | None
    reference: float | None


class DistancePart(_Part):
    """How far the weights are from the source's."""

    now: float | None
    limit: float | None


class CollapsePart(_Part):
    """What the guard says."""

    state: Literal["ok", "suspect", "collapsed", "rolled back"]
    reasons: list[str]


class HistoryPart(_Part):
    """Columns of equal length, oldest first."""

    at: list[Time]
    accuracy: list[float | None]
    low: list[float | None]
    high: list[float | None]
    confidence: list[float | None]
    agreement: list[float | None]
    answers_per_minute: list[float | None]
    latency_ms: list[float | None]
    latency_p99_ms: list[float | None]


class AnnotatorPart(_Part):
    """What one annotator did."""

    id: str
    name: str
    answered: int
    skipped: int
    agreement: float | None
    """Share of verdicts shared with others, where somebody else answered too."""


class MePart(_Part):
    """The caller."""

    id: str
    role: Role
    answered_today: int
    answered: int


class StatusBody(_Part):
    """Everything the operator's page shows."""

    model: ModelPart
    learning: LearningPart
    served: ServedPart
    questions: QuestionsPart
    audits: AuditsPart
    agreement: float | None
    confidence: ConfidencePart
    distance: DistancePart
    collapse: CollapsePart
    snapshots: int
    history: HistoryPart
    annotators: list[AnnotatorPart]
    """Everybody for operators; otherwise the caller alone."""
    me: MePart
