"""What the stub of the API knows, and what a test makes it do."""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

KEYS = {
    "key-ada": {"id": "ada", "role": "annotator", "name": "Ada"},
    "key-bo": {"id": "bo", "role": "annotator", "name": "Bo"},
    "key-op": {"id": "op", "role": "operator", "name": "Olga"},
    "key-app": {"id": "app", "role": "client", "name": "App"},
}
CLASSES = ["airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def micro() -> int:
    """Return microseconds since the epoch."""
    return time.time_ns() // 1000


@dataclass
class State:
    """Everything the stub knows, and what a test makes it do."""

    n_questions: int = 200
    lease_seconds: float = 120.0
    labels: dict[int, str] = field(default_factory=dict)
    feedback: list[dict[str, Any]] = field(default_factory=list)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    given_out: list[tuple[str, str]] = field(default_factory=list)
    posts: list[tuple[str, str]] = field(default_factory=list)
    expired: set[str] = field(default_factory=set)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    failing: list[int] = field(default_factory=list)
    """Statuses with which the next answers are met after they were stored."""
    down: bool = False
    """Answers are met with 503 and not stored."""
    refuse: str | None = None
    applied: set[str] = field(default_factory=set)
    paused: str | None = None
    version: str = "1.40"
    collapse: dict[str, Any] = field(default_factory=lambda: {"state": "ok", "reasons": []})
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: bool = False
    streaming: bool = True
    """Whether event streams are taken; those that are open come to their end."""
    began: int = field(default_factory=micro)

    def __post_init__(self) -> None:
        for step, reason in ((0, "source"), (20, "interval"), (40, "interval")):
            self.snapshots.append(
                {
                    "id": f"snap{step}",
                    "seq": step,
                    "model_version": f"1.{step}",
                    "reason": reason,
                    "created_at": self.began - (41 - step) * 60_000_000,
                    "dropped_at": None,
                }
            )

    def label(self, place: int) -> str:
        """Return the label served for a question."""
        return self.labels.get(place, CLASSES[place % len(CLASSES)])

    def record(self, kind: str, body: dict[str, Any]) -> int:
        """Write an event and give its seq."""
        self.events.append((len(self.events) + 1, kind, body))
        return len(self.events)

    def standing(self, annotator: str | None = None) -> list[dict[str, Any]]:
        """Answers that count, of one annotator or of all."""
        return [
            one
            for one in self.feedback
            if one["standing"] and annotator in (None, one["annotator_id"])
        ]

    def is_open(self, place: int) -> bool:
        """Whether nobody has judged a question yet."""
        name = identity(place)
        return name not in self.expired and not any(
            one["prediction_id"] == name and one["verdict"] != "skip" for one in self.standing()
        )

    def open_places(self) -> list[int]:
        """Questions without a verdict."""
        return [place for place in range(self.n_questions) if self.is_open(place)]


def identity(place: int) -> str:
    """Return the prediction id of a question."""
    return f"PREDICTION{place:016d}"
