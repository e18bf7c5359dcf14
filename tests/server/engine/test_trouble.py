"""A disk or a database that fails at the wrong moment leaves the model as it was."""

import errno
import os
from concurrent.futures import Future

import pytest

from bitta.server.engine import learner
from bitta.server.store import Busy, Full
from small_engine import running, serve


def files(folder):
    return sorted(path.name for path in (folder / "snapshots").iterdir())


def half_written(path, state):
    """As a disk that fills up while it writes."""
    path.with_name(f".{path.name}.draft").write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refused(*_, **__):
    """As a database that is locked."""
    future = Future()
    future.set_exception(Busy("another program holds the database; try again"))
    return future


def test_going_back_on_a_full_disk_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        source, before = store.snapshots()[0].id, files(tmp_path)
        with monkeypatch.context() as full:
            full.setattr(learner, "save_state", half_written)
            with pytest.raises(Full, match=r"a snapshot cannot be kept \(No space left"):
                engine.rollback(source, by="ada", reason="to see").result(20)
        assert engine.model_version.startswith("1.")
        assert files(tmp_path) == before
        assert not store.events(kinds=["rollback"])
        assert engine.rollback(source, by="ada", reason="to see").result(20) == "2.0"
        assert serve(engine, 1).model_version == "2.0"


@pytest.mark.parametrize("change", ["snapshot", "rolled_back"])
def test_a_snapshot_whose_row_is_refused_leaves_no_file(tmp_path, monkeypatch, change):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        source, before = store.snapshots()[0].id, files(tmp_path)
        with monkeypatch.context() as locked:
            locked.setattr(store, change, refused)
            asked = (
                engine.snapshot()
                if change == "snapshot"
                else engine.rollback(source, by="ada", reason="to see")
            )
            with pytest.raises(Busy):
                asked.result(20)
        assert engine.model_version.startswith("1.")
        assert files(tmp_path) == before


def test_a_draft_left_by_a_killed_server_is_swept(tmp_path):
    (tmp_path / "snapshots").mkdir()
    left = tmp_path / "snapshots" / ".X.safetensors.draft"
    left.write_bytes(b"half")
    with running(tmp_path) as (engine, _):
        serve(engine, 0)
        assert not left.exists()
