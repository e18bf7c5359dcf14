"""State of the stub of the API: questions, answers, and the data that the pages show."""

import io
import math
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

KEYS = {
    "key-ada": {"id": "ada", "role": "annotator", "name": "Ada"},
    "key-bo": {"id": "bo", "role": "annotator", "name": "Bo"},
    "key-op": {"id": "op", "role": "operator", "name": "Olga"},
    "key-app": {"id": "app", "role": "client", "name": "App"},
}
CLASSES = ["airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def now_microseconds() -> int:
    """Return microseconds since the epoch."""
    return time.time_ns() // 1000


@dataclass
class State:
    """State of the stub, and the failures that a test wants."""

    n_questions: int = 200
    lease_seconds: float = 120.0
    labels: dict[int, str] = field(default_factory=dict)
    feedback: list[dict[str, Any]] = field(default_factory=list)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    leased: list[tuple[str, str]] = field(default_factory=list)
    posts: list[tuple[str, str]] = field(default_factory=list)
    expired_ids: set[str] = field(default_factory=set)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    lost_responses: list[int] = field(default_factory=list)
    """Statuses that replace the next responses to answers. The answers are stored."""
    is_unavailable: bool = False
    """True: answers get status 503 and are not stored."""
    refusal: str | None = None
    applied_ids: set[str] = field(default_factory=set)
    pause_reason: str | None = None
    version: str = "1.40"
    collapse: dict[str, Any] = field(default_factory=lambda: {"state": "ok", "reasons": []})
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_stopping: bool = False
    accepts_streams: bool = True
    """False: event streams are refused, and open ones end."""
    started_at: int = field(default_factory=now_microseconds)

    def __post_init__(self) -> None:
        for step, reason in ((0, "source"), (20, "interval"), (40, "interval")):
            self.snapshots.append(
                {
                    "id": f"snap{step}",
                    "seq": step,
                    "model_version": f"1.{step}",
                    "reason": reason,
                    "created_at": self.started_at - (41 - step) * 60_000_000,
                    "dropped_at": None,
                }
            )

    def label(self, index: int) -> str:
        """Return the label served for a question."""
        return self.labels.get(index, CLASSES[index % len(CLASSES)])

    def record(self, kind: str, body: dict[str, Any]) -> int:
        """Append an event and return its seq."""
        self.events.append((len(self.events) + 1, kind, body))
        return len(self.events)

    def current_answers(self, annotator: str | None = None) -> list[dict[str, Any]]:
        """Return the answers that were neither undone nor replaced."""
        return [
            one
            for one in self.feedback
            if one["standing"] and annotator in (None, one["annotator_id"])
        ]

    def is_open(self, index: int) -> bool:
        """Return True if a question is open."""
        name = prediction_id_of(index)
        return name not in self.expired_ids and not any(
            one["prediction_id"] == name and one["verdict"] != "skip"
            for one in self.current_answers()
        )

    def open_questions(self) -> list[int]:
        """Return the indices of the open questions."""
        return [index for index in range(self.n_questions) if self.is_open(index)]


def prediction_id_of(index: int) -> str:
    """Return the prediction id of a question."""
    return f"PREDICTION{index:016d}"


def picture(index: int) -> bytes:
    """Return a small picture of a coloured shape, as PNG."""
    rows, columns = np.mgrid[0:32, 0:32]
    hue = index * 2.4
    ground = np.stack([150 + 60 * np.cos(hue + shift + rows / 24) for shift in (0, 2, 4)], axis=-1)
    away = np.hypot(rows - 16 - 4 * math.sin(index), columns - 16 - 4 * math.cos(index))
    reach = 9 + 2 * np.cos((2 + index % 4) * np.arctan2(rows - 16, columns - 16))
    ground[away < reach] = [70 + 60 * math.cos(hue + 3 + shift) for shift in (0, 2, 4)]
    noise = np.random.default_rng(index).normal(0, 9, ground.shape)
    file = io.BytesIO()
    Image.fromarray(np.clip(ground + noise, 0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def questions(state: State) -> list[dict[str, Any]]:
    """Return the questions of GET /v1/questions."""
    return [
        {
            "prediction_id": prediction_id_of(index),
            "label": state.label(index),
            "confidence": 0.35 + 0.06 * (index % 7),
            "uncertainty": 0.95 - 0.07 * (index % 7),
            "reason": "audit" if index % 4 == 3 else "uncertain",
            "status": "open",
            "asked_at": state.started_at - index * 9_000_000,
            "expires_at": state.started_at + 600_000_000,
            "model_version": state.version,
        }
        for index in state.open_questions()[:50]
    ]


def status(state: State, me: dict[str, str]) -> dict[str, Any]:
    """Return the body of GET /v1/status."""
    counts = {
        one["id"]: sum(answer["verdict"] != "skip" for answer in state.current_answers(one["id"]))
        for one in KEYS.values()
    }
    people = [one for one in KEYS.values() if one["role"] == "annotator"]
    shown = people if me["role"] == "operator" else [one for one in people if one["id"] == me["id"]]
    n_open = len(state.open_questions())
    return {
        "model": {
            "name": "cifar10-resnet8",
            "classes": CLASSES,
            "version": state.version,
            "weights": "9f2c",
        },
        "learning": {
            "state": "on" if state.pause_reason is None else "paused",
            "reason": state.pause_reason,
            "duty": 0.5,
            "steps": 40,
            "last_step_at": now_microseconds() - 4_000_000,
            "losses": {},
        },
        "served": {"n": 20480, "per_second": 31.2, "latency_ms": {"p50": 11.8, "p99": 38.4}},
        "questions": {
            "open": n_open,
            "asked": state.n_questions,
            "answered": sum(counts.values()),
            "skipped": sum(one["verdict"] == "skip" for one in state.current_answers()),
            "expired": len(state.expired_ids),
        },
        "audits": {"n": 212, "correct": 171, "accuracy": 0.807, "low": 0.748, "high": 0.854},
        "agreement": 0.78,
        "confidence": {"recent": 0.712, "reference": 0.764},
        "distance": {"now": 0.0412, "limit": 0.1},
        "collapse": state.collapse,
        "snapshots": len(state.snapshots),
        "history": _history(state.started_at),
        "annotators": [
            {
                "id": one["id"],
                "name": one["name"],
                "answered": counts[one["id"]],
                "skipped": 0,
                "agreement": 0.91,
            }
            for one in shown
        ],
        "me": {
            "id": me["id"],
            "role": me["role"],
            "answered_today": counts[me["id"]],
            "answered": counts[me["id"]],
        },
    }


def _history(began: int) -> dict[str, list[float | None]]:
    """Return the history of an hour in which accuracy drops and recovers."""
    chance = np.random.default_rng(7)
    moments = np.arange(60)
    dip = np.exp(-(((moments - 24) / 9.0) ** 2))
    accuracy = 0.81 - 0.3 * dip + 0.01 * chance.standard_normal(60)
    width = 0.05 + 0.08 * np.exp(-moments / 12)
    rows: dict[str, list[float | None]] = {
        "at": [began - int(60_000_000 * (59 - moment)) for moment in moments],
        "accuracy": [None, None, *accuracy[2:].tolist()],
        "low": [None, None, *(accuracy - width)[2:].tolist()],
        "high": [None, None, *np.minimum(1, accuracy + width)[2:].tolist()],
        "confidence": (
            0.712 + 0.05 * np.exp(-moments / 6) - 0.15 * dip + 0.012 * chance.standard_normal(60)
        ).tolist(),
        "agreement": (0.82 - 0.3 * dip + 0.02 * chance.standard_normal(60)).tolist(),
        "answers_per_minute": (9 + 4 * dip + chance.normal(0, 1.2, 60)).tolist(),
        "latency_ms": (12 + 2 * chance.random(60)).tolist(),
    }
    return rows
