"""A data folder goes on with the model and settings it began with, but those that may change."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bitta.errors import SettingError
from bitta.methods import method_named
from bitta.server.engine.learner import LearnerConfig
from bitta.server.store import Store


def require_same(store: Store, given: LearnerConfig, *, weights: str, data_dir: Path) -> None:
    """Refuse weights and settings other than the snapshots', which would have to be left aside."""
    started = store.events(kinds=["started"])
    if not started or not store.snapshots():
        return
    if (began := started[-1].body["weights"]) != weights:
        raise SettingError(
            f"the data folder {str(data_dir)!r} was begun with another model (weights "
            f"{began[:12]}, given: {weights[:12]}), and its snapshots are of that one; start with "
            "it, or with another --data-dir."
        )
    before, now = _meant(started[-1].body["learner"]), _meant(asdict(given))
    other = [name for name in before | now if before.get(name) != now.get(name)]
    if other:
        other = other[:1] if "method" in other else other
        raise SettingError(
            f"the data folder {str(data_dir)!r} was begun with {_told(before, other)}, and is "
            f"given {_told(now, other)}; start with what it was begun with, or with another "
            "--data-dir."
        )


def _meant(learner: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting that a state holds, whether it was given, of a preset, or left out."""
    method, preset = learner["method"], learner["preset"]
    config = method_named(method).configure(dict(learner["settings"]), preset, name=method)
    fixed = {name: learner[name] for name in ("method", "window", "n_queries", "audits", "seed")}
    return fixed | dict(json.loads(json.dumps(asdict(config))))


def _told(settings: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(
        f"{name} {settings[name]!r}" if name in settings else f"no {name}" for name in names
    )
