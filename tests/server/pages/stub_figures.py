"""Pictures, questions and figures that the stub of the API shows."""

import io
import math
from typing import Any

import numpy as np
from PIL import Image

from server.pages.stub_state import CLASSES, KEYS, State, identity, micro


def picture(place: int) -> bytes:
    """Draw a small picture of a coloured shape."""
    rows, columns = np.mgrid[0:32, 0:32]
    hue = place * 2.4
    ground = np.stack([150 + 60 * np.cos(hue + shift + rows / 24) for shift in (0, 2, 4)], axis=-1)
    away = np.hypot(rows - 16 - 4 * math.sin(place), columns - 16 - 4 * math.cos(place))
    reach = 9 + 2 * np.cos((2 + place % 4) * np.arctan2(rows - 16, columns - 16))
    ground[away < reach] = [70 + 60 * math.cos(hue + 3 + shift) for shift in (0, 2, 4)]
    noise = np.random.default_rng(place).normal(0, 9, ground.shape)
    file = io.BytesIO()
    Image.fromarray(np.clip(ground + noise, 0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def questions(state: State) -> list[dict[str, Any]]:
    """List what is asked and why."""
    return [
        {
            "prediction_id": identity(place),
            "label": state.label(place),
            "confidence": 0.35 + 0.06 * (place % 7),
            "uncertainty": 0.95 - 0.07 * (place % 7),
            "reason": "audit" if place % 4 == 3 else "uncertain",
            "status": "open",
            "asked_at": state.began - place * 9_000_000,
            "expires_at": state.began + 600_000_000,
            "model_version": state.version,
        }
        for place in state.open_places()[:50]
    ]


def status(state: State, me: dict[str, str]) -> dict[str, Any]:
    """Give the body of /v1/status for somebody."""
    counts = {
        one["id"]: sum(answer["verdict"] != "skip" for answer in state.standing(one["id"]))
        for one in KEYS.values()
    }
    people = [one for one in KEYS.values() if one["role"] == "annotator"]
    shown = people if me["role"] == "operator" else [one for one in people if one["id"] == me["id"]]
    n_open = len(state.open_places())
    return {
        "model": {
            "name": "cifar10-resnet8",
            "classes": CLASSES,
            "version": state.version,
            "weights": "9f2c",
        },
        "learning": {
            "state": "on" if state.paused is None else "paused",
            "reason": state.paused,
            "duty": 0.5,
            "steps": 40,
            "last_step_at": micro() - 4_000_000,
            "losses": {},
        },
        "served": {"n": 20480, "per_second": 31.2, "latency_ms": {"p50": 11.8, "p99": 38.4}},
        "questions": {
            "open": n_open,
            "asked": state.n_questions,
            "answered": sum(counts.values()),
            "skipped": sum(one["verdict"] == "skip" for one in state.standing()),
            "expired": len(state.expired),
        },
        "audits": {"n": 212, "correct": 171, "accuracy": 0.807, "low": 0.748, "high": 0.854},
        "agreement": 0.78,
        "confidence": {"recent": 0.712, "reference": 0.764},
        "distance": {"now": 0.0412, "limit": 0.1},
        "collapse": state.collapse,
        "snapshots": len(state.snapshots),
        "history": _history(state.began),
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
    """Give an hour in which something went wrong and the answers mended it."""
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
