"""How a server treats its model, its requests and its questions."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bitta.config import require
from bitta.server.engine.learner import LearnerConfig
from bitta.server.guard import GuardSettings

Keep: TypeAlias = Literal["none", "queried", "all"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of the one thread that owns the model."""

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    guard: GuardSettings = field(default_factory=GuardSettings)
    max_batch: int = 64
    """Samples served together at most; a larger request is served alone."""
    max_wait: float = 0.002
    """Seconds that a request waits for others to be served with, where the last were."""
    max_waiting: int = 4096
    """Samples that may wait to be served, and predictions to be stored; a request beyond is
    refused."""
    duty: float = 0.5
    """Share of the worker's time that asking and learning may take."""
    rollback: bool = True
    """Whether it goes back by itself when the model has collapsed."""
    keep_images: Keep = "queried"
    """Which inputs are written to disk: with none, an answer that comes after a restart, or late,
    is about nothing any more; with all, the log can be replayed."""
    recent_bytes: int = 256 << 20
    """Memory for the inputs of the newest predictions, which answers may be about."""
    snapshot_steps: int = 20
    """Learning steps between two snapshots, at most."""
    snapshot_seconds: float = 60.0
    """Seconds between two snapshots, at most, while it learns."""
    keep_snapshots: int = 20
    """Snapshots that are kept beside the source."""
    question_seconds: float = 3600.0
    """Age at which a question nobody answered expires."""
    max_open: int = 30
    """Questions of the last minute that may wait; while as many do, windows raise no more."""
    overlap: int = 1
    """Annotators who are given the same question."""

    def __post_init__(self) -> None:
        for name in (
            "max_batch",
            "max_waiting",
            "snapshot_steps",
            "keep_snapshots",
            "max_open",
            "overlap",
        ):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.max_wait >= 0, "max_wait", self.max_wait, "0 seconds or more")
        require(0 < self.duty <= 1, "duty", self.duty, "above 0, at most 1")
        require(self.recent_bytes >= 0, "recent_bytes", self.recent_bytes, "0 or more")
        for name in ("snapshot_seconds", "question_seconds"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0 seconds")
