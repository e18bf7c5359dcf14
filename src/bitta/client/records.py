"""What a server tells. Times are microseconds since 1970, UTC."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from bitta.client.errors import UnavailableError

Verdict: TypeAlias = Literal["correct", "incorrect", "skip"]
Kind: TypeAlias = Literal["HUMAN", "CODE", "MODEL"]
"""Who answers: a person, a program that knows, or a model that judges."""


@dataclass(frozen=True, slots=True)
class Served:
    """The prediction for one image."""

    prediction_id: str
    """Names it in every answer."""
    label: str
    class_index: int
    confidence: float
    model_version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Is this label right for this image? Held by its receiver until `lease_until`."""

    prediction_id: str
    label: str
    class_index: int
    confidence: float
    uncertainty: float
    model_version: str
    asked_at: int
    expires_at: int
    lease: str
    lease_until: int
    left: int
    """Open questions, this one included."""
    has_image: bool
    input_sha256: str | None = None
    """Where the server tells it."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """From the body of /v1/queue/next."""
        asked, names = body["question"], cls.__dataclass_fields__
        same = {name: value for name, value in asked.items() if name in names and name != "lease"}
        return cls(
            **same,
            lease=asked["lease"]["token"],
            lease_until=asked["lease"]["until"],
            left=body["left"],
            has_image=asked["image_url"] is not None,
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that is stored."""

    id: str
    """For `undo`."""
    prediction_id: str
    verdict: Verdict
    status: str
    """pending, applied, expired or superseded."""
    repeated: bool
    """Whether it had been stored before, and this was a repetition."""
    record: Mapping[str, Any]
    """All that is stored of it."""


@dataclass(frozen=True, slots=True)
class Undone:
    """An answer that was taken back; `applied` if the model had learned from it before."""

    feedback_id: str
    applied: bool
    note: str


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model takes."""

    model: str
    name: str
    shape: tuple[int, ...]
    """Of one image, as an array."""

    @classmethod
    def of(cls, model: str, metadata: Mapping[str, Any]) -> Self:
        """From the body of /v2/models/NAME."""
        given = metadata["inputs"]
        if len(given) != 1:
            names = ", ".join(each["name"] for each in given)
            raise UnavailableError(
                f"model {model!r} takes {len(given)} inputs ({names}); this client sends one."
            )
        return cls(model, given[0]["name"], tuple(given[0]["shape"][1:]))
