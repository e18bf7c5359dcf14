"""Snapshots: taken, dropped, gone back to, and begun from."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from bitta.errors import InputError
from bitta.records import SnapshotReason
from bitta.server.engine.config import EngineConfig
from bitta.server.engine.continued import require_same
from bitta.server.engine.learner import Learner, copy_into_lineage
from bitta.server.store import (
    NewSnapshot,
    Store,
    StoredSnapshot,
    new_id,
)
from bitta.server.store.errors import StoreError, UnknownSnapshot
from bitta.server.store.trouble import of_disk
from bitta.version import __version__

FOLDER = "snapshots"
_NAME = "?" * 26
"""As `new_id` makes them; what lies there otherwise is not ours."""
_PATIENCE = 5.0  # seconds before a snapshot that could not be kept is tried again
_log = logging.getLogger(__name__)


class Keeper:
    """Owns the files of a learner's states; a row says that a file is complete."""

    def __init__(
        self,
        learner: Learner,
        store: Store,
        config: EngineConfig,
        *,
        data_dir: Path,
        clock: Callable[[], int],
    ) -> None:
        self._learner, self._store, self._config = learner, store, config
        self._data_dir, self._clock = data_dir, clock
        self.last: StoredSnapshot | None = None
        """The newest that was taken or begun from."""
        self._steps = 0
        self._since = monotonic()
        self._not_before = 0.0

    def begin(self) -> str:
        """Go on from the newest state that can be read, or begin; tells which in a sentence."""
        source = self._learner.weights
        require_same(self._store, self._config.learner, weights=source, data_dir=self._data_dir)
        self._sweep_drafts()
        if self._kept():
            snapshot = self._newest()
            self._sweep()
            self._learner.load(self._path(snapshot))
            self._learner.lineage = lineage = self._next_lineage(snapshot)
            other = None if lineage == snapshot.lineage else lineage
            recovered = self._store.log_restart(snapshot.id, self._environment, lineage=other)
            self.last = snapshot
            return (
                f"version {self._learner.version} from snapshot {snapshot.id}; "
                f"{len(recovered.result().reentered)} answers learned from after it are taken in "
                "again"
            )
        self._store.log_event(
            "started",
            {
                "weights": source,
                "learner": asdict(self._config.learner),
                "environment": self._environment,
            },
        ).result()
        self.take("source")
        return f"version {self._learner.version}, as given"

    def _next_lineage(self, snapshot: StoredSnapshot) -> int:
        """Another one, unless the process before has kept its last state and said so.

        Steps that were lost have served, maybe; their versions must not name other weights.
        """
        last = self._store.last_event(("started", "recovered", "stopped"))
        orderly = last is not None and last.body.get("kept") == snapshot.id
        return snapshot.lineage if orderly else self._store.newest_lineage() + 1

    def stopped(self) -> None:
        """Keep the last state, and say so: nothing serves after it."""
        snapshot = self.take("interval")
        self._store.log_event("stopped", {"kept": snapshot.id}).result()

    def learned(self) -> None:
        """One more step since the last snapshot."""
        self._steps += 1

    @property
    def _environment(self) -> dict[str, Any]:
        """What a replay must have alike."""
        return {
            "bitta": __version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "execution": self._learner.execution,
            "max_distance": self._config.learner.max_distance,
        }

    @property
    def due(self) -> bool:
        """Whether enough has been learned since the last one."""
        if not self._steps or monotonic() < self._not_before:
            return False
        seconds = monotonic() - self._since
        return (
            self._steps >= self._config.snapshot_steps or seconds >= self._config.snapshot_seconds
        )

    def take(self, reason: SnapshotReason) -> StoredSnapshot:
        """Write the state, then the row; drop what is too old."""
        name, version = new_id(self._clock()), self._learner.version
        path = self._data_dir / FOLDER / f"{name}.safetensors"
        with self._kept_whole(path):
            self._learner.save(path)
            new = _described(path, name, version, self._learner.weights, reason)
            snapshot = self.last = self._store.add_snapshot(new).result()
        self._steps, self._since = 0, monotonic()
        self._drop_old()
        return snapshot

    def older_than(self, windows: int) -> str:
        """The newest snapshot of this lineage from before so many windows; else the first of all.

        A step learns from one window at most. A lineage that a restart has ended goes on in this.
        """
        most, ended = self._learner.step - windows, self._store.lineages_since_rollback()
        kept = [one for one in self._kept() if self._path(one).is_file()]
        fit = [one for one in kept if one.step <= min(most, ended.get(one.lineage, -1))]
        if not kept:
            raise self._none_whole()
        return (fit or kept[:1])[-1].id

    def newest(self) -> str:
        """The newest snapshot that can be read."""
        return self._newest().id

    def _newest(self) -> StoredSnapshot:
        for snapshot in reversed(self._kept()):
            if _intact(self._path(snapshot), snapshot.sha256):
                return snapshot
        raise self._none_whole()

    def _none_whole(self) -> InputError:
        return InputError(
            "none of the snapshots can be read; put one of their files back into "
            f"{str(self._data_dir / FOLDER)!r}, or start with another data folder."
        )

    def roll_back(self, snapshot_id: str, *, by: str, reason: str, again: bool) -> StoredSnapshot:
        """Begin another lineage from a snapshot; its own snapshot is stored with the event."""
        kept = {snapshot.id: snapshot for snapshot in self._kept()}
        if snapshot_id not in kept:
            raise UnknownSnapshot(f"there is no snapshot {snapshot_id!r}; take one that is listed.")
        path = self._path(kept[snapshot_id])
        if not _intact(path, kept[snapshot_id].sha256):
            raise InputError(f"the file of snapshot {snapshot_id} is missing or damaged.")
        return self._begun_anew(kept[snapshot_id], by=by, reason=reason, again=again)

    def _begun_anew(
        self, target: StoredSnapshot, *, by: str, reason: str, again: bool
    ) -> StoredSnapshot:
        """The model goes back last: where the disk or the database fails, nothing has changed."""
        lineage = self._store.newest_lineage() + 1
        name = new_id(self._clock())
        path = self._data_dir / FOLDER / f"{name}.safetensors"
        with self._kept_whole(path):
            copy_into_lineage(self._path(target), path, lineage=lineage)
            version = f"{lineage}.{target.step}"
            new = _described(path, name, version, target.weights_hash, "rollback")
            snapshot = self._store.log_rollback(
                target.id,
                new,
                from_version=self._learner.version,
                reason=reason,
                by=by,
                again=again,
            ).result()
        try:
            self._learner.load(path)
        except RuntimeError:  # for want of memory, as torch says it: the next try makes its own
            self._drop([snapshot])
            raise
        self.last = snapshot
        self._steps, self._since = 0, monotonic()
        return snapshot

    @contextmanager
    def _kept_whole(self, path: Path) -> Iterator[None]:
        """Let no file lie around that is half written or that no row names."""
        try:
            yield
        except (OSError, StoreError) as error:
            self._not_before = monotonic() + _PATIENCE
            for left in (path, *path.parent.glob(f".{path.name}*")):
                left.unlink(missing_ok=True)
            if isinstance(error, StoreError):  # it may have been stored, and the reply was lost
                self._store.drop_snapshots([path.stem], must=True)
            why = of_disk(error, "a snapshot") if isinstance(error, OSError) else error
            _log.warning("no snapshot was kept: %s", why)
            raise why from error

    def _sweep_drafts(self) -> None:
        """What a process that was killed had begun to write."""
        for left in (self._data_dir / FOLDER).glob(".*.draft"):
            left.unlink()

    def _sweep(self) -> None:
        """Files that no row names go, rows whose file is missing are marked.

        Only once one of them was found whole: else this may be the folder of another database.
        """
        kept = self._kept()
        named = {self._path(one) for one in kept}
        for left in (self._data_dir / FOLDER).glob(f"{_NAME}.safetensors"):
            if left not in named:
                left.unlink()
        if gone := [one.id for one in kept if not self._path(one).is_file()]:
            _log.warning("%d snapshots without a file are left out", len(gone))
            self._store.drop_snapshots(gone).result()

    def _drop_old(self) -> None:
        """All but the source, the newest, and those that somebody asked for or went back to."""
        kept = [one for one in self._kept() if one.reason == "interval"]
        if old := kept[: -self._config.keep_snapshots]:
            self._drop(old)

    def _drop(self, old: Sequence[StoredSnapshot]) -> None:
        self._store.drop_snapshots([one.id for one in old]).result()
        for one in old:
            self._path(one).unlink(missing_ok=True)

    def _kept(self) -> list[StoredSnapshot]:
        """Oldest first."""
        kept = [one for one in self._store.snapshots() if one.dropped_at is None]
        return sorted(kept, key=lambda one: one.seq)

    def _path(self, snapshot: StoredSnapshot) -> Path:
        return self._data_dir / snapshot.path


def _described(
    path: Path, name: str, version: str, weights: str, reason: SnapshotReason
) -> NewSnapshot:
    return NewSnapshot(
        id=name,
        model_version=version,
        path=f"{FOLDER}/{path.name}",
        sha256=sha256(path.read_bytes()).hexdigest(),
        weights_hash=weights,
        reason=reason,
    )


def _intact(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path.read_bytes()).hexdigest() == digest
