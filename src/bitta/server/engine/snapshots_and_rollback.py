"""Snapshots of the learner: files in the data folder, each with a row in the store."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from bitta.errors import InputError, SettingError
from bitta.methods import get_method
from bitta.records import SnapshotReason
from bitta.server.engine.learner import Learner, copy_into_lineage
from bitta.server.settings import ServeSettings
from bitta.server.store import (
    NewSnapshot,
    Rollback,
    Store,
    StoredSnapshot,
    new_id,
)
from bitta.server.store.errors import StoreError, UnknownSnapshot, translate_disk_error
from bitta.version import __version__

SNAPSHOT_FOLDER = "snapshots"
_ID_PATTERN = "?" * 26
"""Pattern of snapshot ids. Files with other names are never deleted."""
_RETRY_SECONDS = 5.0
"""Waiting time after a snapshot that could not be written."""
_log = logging.getLogger(__name__)


class SnapshotStore:
    """Writes, reads and deletes snapshots. A row in the store says that a file is complete."""

    def __init__(
        self,
        learner: Learner,
        store: Store,
        settings: ServeSettings,
        *,
        data_dir: Path,
        clock: Callable[[], int],
    ) -> None:
        self._learner, self._store, self._settings = learner, store, settings
        self._data_dir, self._clock = data_dir, clock
        self._folder = data_dir / SNAPSHOT_FOLDER
        self.last: StoredSnapshot | None = None
        """Snapshot that was taken or loaded last."""
        self._n_steps = 0
        """Number of learning steps since the last snapshot."""
        self._taken_at = monotonic()
        self._retry_at = 0.0

    def recover_or_start(self) -> str:
        """Load the newest readable snapshot, or store the given weights as the first one.

        Return a message that says which.
        """
        source = self._learner.weights_hash
        require_same_settings(
            self._store, self._settings, weights_hash=source, data_dir=self._data_dir
        )
        self._delete_drafts()
        if self._existing():
            snapshot = self._find_newest()
            self._delete_unknown_files()
            self._learner.load(self._path(snapshot))
            self._learner.lineage = lineage = self._next_lineage(snapshot)
            new_lineage = None if lineage == snapshot.lineage else lineage
            recovered = self._store.log_restart(snapshot.id, self._environment, lineage=new_lineage)
            self.last = snapshot
            n_answers = len(recovered.result().pending_again)
            return (
                f"version {self._learner.version} from snapshot {snapshot.id}; {n_answers} answers "
                "learned after it will be learned again"
            )
        self._store.log_event(
            "started",
            {
                "weights": source,
                "learner": self._settings.learner_settings(),
                "environment": self._environment,
            },
        ).result()
        self.take("source")
        return f"version {self._learner.version} with the given weights"

    def take_last(self) -> None:
        """Take a snapshot at the end, and log that nothing is served after it."""
        snapshot = self.take("interval")
        self._store.log_event("stopped", {"kept": snapshot.id}).result()

    def count_step(self) -> None:
        """Count a learning step since the last snapshot."""
        self._n_steps += 1

    @property
    def is_due(self) -> bool:
        """True if enough steps or time have passed since the last snapshot."""
        if not self._n_steps or monotonic() < self._retry_at:
            return False
        return (
            self._n_steps >= self._settings.snapshot_steps
            or monotonic() - self._taken_at >= self._settings.snapshot_seconds
        )

    def take(self, reason: SnapshotReason) -> StoredSnapshot:
        """Write the file, then the row, then delete old snapshots."""
        snapshot_id, version = new_id(self._clock()), self._learner.version
        path = self._folder / f"{snapshot_id}.safetensors"
        with self._cleaned_up_on_error(path):
            self._learner.save(path)
            new = _describe(path, snapshot_id, version, self._learner.weights_hash, reason)
            snapshot = self.last = self._store.add_snapshot(new).result()
        self._n_steps, self._taken_at = 0, monotonic()
        self._delete_old()
        return snapshot

    def find_before(self, n_windows: int) -> str:
        """Return the id of the newest snapshot from before the last `n_windows` windows.

        If there is none, return the id of the oldest snapshot. A snapshot counts if it is at least
        `n_windows` learning steps old, because there is at most one step per window. Snapshots from
        before the last rollback do not count.
        """
        last_step, continued = self._learner.step - n_windows, self._store.lineages_since_rollback()
        existing = [snapshot for snapshot in self._existing() if self._path(snapshot).is_file()]
        if not existing:
            raise self._unreadable_error()
        older = [s for s in existing if s.step <= min(last_step, continued.get(s.lineage, -1))]
        return (older or existing[:1])[-1].id

    def newest_id(self) -> str:
        """Return the id of the newest readable snapshot."""
        return self._find_newest().id

    def roll_back(
        self, snapshot_id: str, *, by: str, reason: str, repeat_answers: bool
    ) -> StoredSnapshot:
        """Start a new lineage from a snapshot. Return the first snapshot of the new lineage.

        The weights are loaded last: if the disk or the database fails, nothing has changed. With
        `repeat_answers`, answers that were learned after the snapshot become pending again.
        """
        existing = {snapshot.id: snapshot for snapshot in self._existing()}
        if snapshot_id not in existing:
            raise UnknownSnapshot(
                f"there is no snapshot {snapshot_id!r}; use one from the list of snapshots."
            )
        target = existing[snapshot_id]
        if not _is_intact(self._path(target), target.sha256):
            raise InputError(
                f"the file of snapshot {snapshot_id} is missing or damaged; use another snapshot."
            )
        lineage = self._store.newest_lineage() + 1
        new_snapshot_id = new_id(self._clock())
        path = self._folder / f"{new_snapshot_id}.safetensors"
        with self._cleaned_up_on_error(path):
            copy_into_lineage(self._path(target), path, lineage=lineage)
            version = f"{lineage}.{target.step}"
            new = _describe(path, new_snapshot_id, version, target.weights_hash, "rollback")
            rollback = Rollback(target.id, new, self._learner.version, reason, by, repeat_answers)
            snapshot = self._store.log_rollback(rollback).result()
        try:
            self._learner.load(path)
        except RuntimeError:  # out of memory: the next attempt writes its own snapshot
            self._delete([snapshot])
            raise
        self.last = snapshot
        self._n_steps, self._taken_at = 0, monotonic()
        return snapshot

    @property
    def _environment(self) -> dict[str, Any]:
        """Environment that a replay needs in order to compute the same numbers."""
        return {
            "bitta": __version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "execution": self._learner.execution,
            "max_distance": self._settings.max_distance,
        }

    def _next_lineage(self, snapshot: StoredSnapshot) -> int:
        """Return the snapshot's lineage if the last process stopped cleanly, else a new one.

        Steps that a crash lost may have served predictions. Their versions must not be used again.
        """
        last = self._store.last_event(("started", "recovered", "stopped"))
        stopped_cleanly = last is not None and last.body.get("kept") == snapshot.id
        return snapshot.lineage if stopped_cleanly else self._store.newest_lineage() + 1

    def _find_newest(self) -> StoredSnapshot:
        for snapshot in reversed(self._existing()):
            if _is_intact(self._path(snapshot), snapshot.sha256):
                return snapshot
        raise self._unreadable_error()

    def _unreadable_error(self) -> InputError:
        return InputError(
            "none of the snapshots can be read; put one of their files back into "
            f"{str(self._folder)!r}, or start with another data folder."
        )

    @contextmanager
    def _cleaned_up_on_error(self, path: Path) -> Iterator[None]:
        """Delete the incomplete file and its row if this block fails."""
        try:
            yield
        except (OSError, StoreError) as error:
            self._retry_at = monotonic() + _RETRY_SECONDS
            for leftover in (path, *path.parent.glob(f".{path.name}*")):
                leftover.unlink(missing_ok=True)
            if isinstance(error, StoreError):  # the row may exist although the reply was lost
                self._store.drop_snapshots([path.stem], must=True)
            reported = (
                translate_disk_error(error, "a snapshot") if isinstance(error, OSError) else error
            )
            _log.warning("a snapshot could not be written: %s", reported)
            raise reported from error

    def _delete_drafts(self) -> None:
        """Delete incomplete files of a process that was killed."""
        for draft in self._folder.glob(".*.draft"):
            draft.unlink()

    def _delete_unknown_files(self) -> None:
        """Delete files without a row, and mark rows without a file.

        Call this only after an intact snapshot was found: otherwise the folder may belong to
        another database.
        """
        existing = self._existing()
        known = {self._path(snapshot) for snapshot in existing}
        for path in self._folder.glob(f"{_ID_PATTERN}.safetensors"):
            if path not in known:
                path.unlink()
        if missing := [s.id for s in existing if not self._path(s).is_file()]:
            _log.warning("%d snapshots have no file and are dropped", len(missing))
            self._store.drop_snapshots(missing).result()

    def _delete_old(self) -> None:
        """Delete old periodic snapshots. The source, requested and rollback ones stay."""
        periodic = [snapshot for snapshot in self._existing() if snapshot.reason == "interval"]
        if old := periodic[: -self._settings.keep_snapshots]:
            self._delete(old)

    def _delete(self, snapshots: Sequence[StoredSnapshot]) -> None:
        self._store.drop_snapshots([snapshot.id for snapshot in snapshots]).result()
        for snapshot in snapshots:
            self._path(snapshot).unlink(missing_ok=True)

    def _existing(self) -> list[StoredSnapshot]:
        """List all snapshots that were not dropped, oldest first."""
        existing = [s for s in self._store.snapshots() if s.dropped_at is None]
        return sorted(existing, key=lambda snapshot: snapshot.seq)

    def _path(self, snapshot: StoredSnapshot) -> Path:
        return self._data_dir / snapshot.path


def _describe(
    path: Path, snapshot_id: str, version: str, weights_hash: str, reason: SnapshotReason
) -> NewSnapshot:
    return NewSnapshot(
        id=snapshot_id,
        model_version=version,
        path=f"{SNAPSHOT_FOLDER}/{path.name}",
        sha256=sha256(path.read_bytes()).hexdigest(),
        weights_hash=weights_hash,
        reason=reason,
    )


def _is_intact(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path.read_bytes()).hexdigest() == digest


def require_same_settings(
    store: Store, settings: ServeSettings, *, weights_hash: str, data_dir: Path
) -> None:
    """Refuse a model or settings that do not fit the snapshots in the data folder."""
    started = store.events(kinds=["started"])
    if not started or not store.snapshots():
        return
    first_weights = started[-1].body["weights"]
    if first_weights != weights_hash:
        raise SettingError(
            f"the data folder {str(data_dir)!r} was started with another model (weights "
            f"{first_weights[:12]}, given: {weights_hash[:12]}), and its snapshots belong to that "
            "one; start with it, or with another --data-dir."
        )
    before = _effective_settings(started[-1].body["learner"])
    now = _effective_settings(settings.learner_settings())
    changed = [name for name in before | now if before.get(name) != now.get(name)]
    if changed:
        changed = changed[:1] if "method" in changed else changed
        raise SettingError(
            f"the data folder {str(data_dir)!r} was started with {_list_values(before, changed)}, "
            f"given: {_list_values(now, changed)}; start with the settings of the folder, or with "
            "another --data-dir."
        )


def _effective_settings(learner: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting that a snapshot depends on, with presets and defaults filled in."""
    method, preset = learner["method"], learner["preset"]
    config = get_method(method).configure(dict(learner["settings"]), preset, name=method)
    fixed = {name: learner[name] for name in ("method", "window", "n_queries", "audits", "seed")}
    return fixed | dict(json.loads(json.dumps(asdict(config))))


def _list_values(settings: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(
        f"{name} {settings[name]!r}" if name in settings else f"no {name}" for name in names
    )
