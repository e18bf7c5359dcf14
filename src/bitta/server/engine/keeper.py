"""Snapshots: taken, dropped, gone back to, and begun from."""

from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from time import monotonic

import torch

from bitta.errors import InputError
from bitta.server.engine.config import EngineConfig
from bitta.server.engine.learner import Learner
from bitta.server.store import NewSnapshot, Snapshot, SnapshotReason, Store, new_id
from bitta.server.store.errors import UnknownSnapshot
from bitta.version import __version__

FOLDER = "snapshots"


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
        self.last: Snapshot | None = None
        """The newest that was taken or begun from."""
        self._steps = 0
        self._since = monotonic()

    def begin(self) -> str:
        """Go on from the newest state that can be read, or begin; tells which in a sentence."""
        for snapshot in reversed(self._kept()):
            path = self._path(snapshot)
            if _intact(path, snapshot.sha256):
                self._learner.load(path)
                self._learner.lineage = snapshot.lineage
                self.last = snapshot
                recovered = self._store.recovered(snapshot.id).result()
                return (
                    f"version {snapshot.model_version} from snapshot {snapshot.id}; "
                    f"{len(recovered.reentered)} answers learned from after it are taken in again"
                )
        if self._kept():
            raise InputError(
                "none of the snapshots can be read; put one of their files back into "
                f"{str(self._data_dir / FOLDER)!r}, or start with another data folder."
            )
        self._store.event(
            "started",
            {
                "weights": self._learner.weights,
                "learner": asdict(self._config.learner),
                "environment": {
                    "bitta": __version__,
                    "torch": torch.__version__,
                    "threads": torch.get_num_threads(),
                    "execution": self._learner.execution,
                },
            },
        ).result()
        self.take("source")
        return f"version {self._learner.version}, as given"

    def learned(self) -> None:
        """One more step since the last snapshot."""
        self._steps += 1

    @property
    def due(self) -> bool:
        """Whether enough has been learned since the last one."""
        if not self._steps:
            return False
        seconds = monotonic() - self._since
        return (
            self._steps >= self._config.snapshot_steps or seconds >= self._config.snapshot_seconds
        )

    def take(self, reason: SnapshotReason) -> Snapshot:
        """Write the state, then the row; drop what is too old."""
        snapshot = self.last = self._store.snapshot(self._written(reason)).result()
        self._steps, self._since = 0, monotonic()
        self._drop_old()
        return snapshot

    def older_than(self, windows: int) -> str:
        """The newest snapshot of this lineage from before so many windows; else the first of all.

        A step learns from one window at most.
        """
        lineage, step = map(int, self._learner.version.split("."))
        kept = self._kept()
        fit = [one for one in kept if one.lineage == lineage and one.step <= step - windows]
        return (fit or kept[:1])[-1].id

    def roll_back(self, snapshot_id: str, *, by: str, reason: str) -> Snapshot:
        """Begin another lineage from a snapshot; its own snapshot is stored with the event."""
        kept = {snapshot.id: snapshot for snapshot in self._kept()}
        if snapshot_id not in kept:
            raise UnknownSnapshot(f"there is no snapshot {snapshot_id!r}; take one that is listed.")
        path = self._path(kept[snapshot_id])
        if not _intact(path, kept[snapshot_id].sha256):
            raise InputError(f"the file of snapshot {snapshot_id} is missing or damaged.")
        lineage = max(snapshot.lineage for snapshot in kept.values()) + 1
        before = self._learner.version
        self._learner.go_back(path, lineage=lineage)
        snapshot = self.last = self._store.rolled_back(
            snapshot_id, self._written("rollback"), from_version=before, reason=reason, by=by
        ).result()
        self._steps, self._since = 0, monotonic()
        return snapshot

    def _written(self, reason: SnapshotReason) -> NewSnapshot:
        name = new_id(self._clock())
        path = self._data_dir / FOLDER / f"{name}.safetensors"
        self._learner.save(path)
        return NewSnapshot(
            id=name,
            model_version=self._learner.version,
            path=f"{FOLDER}/{path.name}",
            sha256=sha256(path.read_bytes()).hexdigest(),
            weights_hash=self._learner.weights,
            reason=reason,
        )

    def _drop_old(self) -> None:
        """All but the source, the newest, and those that began a lineage."""
        kept = [one for one in self._kept() if one.reason == "interval"]
        old = kept[: -self._config.keep_snapshots]
        if old:
            self._store.drop_snapshots([one.id for one in old]).result()
            for one in old:
                self._path(one).unlink(missing_ok=True)

    def _kept(self) -> list[Snapshot]:
        """Oldest first."""
        kept = [one for one in self._store.snapshots() if one.dropped_at is None]
        return sorted(kept, key=lambda one: one.seq)

    def _path(self, snapshot: Snapshot) -> Path:
        return self._data_dir / snapshot.path


def _intact(path: Path, digest: str) -> bool:
    return path.is_file() and sha256(path.read_bytes()).hexdigest() == digest
