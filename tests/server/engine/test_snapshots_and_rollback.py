"""Snapshots when the disk or the database fails."""

import errno
import os
from concurrent.futures import Future

import pytest

from bitta.errors import InputError
from bitta.server.engine import learner
from bitta.server.store import Store, StoreBusy, StoreFull, UnknownSnapshot
from small_engine import answer, running, serve, until


def files(folder):
    return sorted(path.name for path in (folder / "snapshots").iterdir())


def half_written(path, state):
    """Fail like a disk that fills up during the write."""
    path.with_name(f".{path.name}.draft").write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse(*_, **__):
    """Fail like a locked database."""
    future = Future()
    future.set_exception(StoreBusy("another program locks the database; try again"))
    return future


def break_updates(engine, error):
    """Let optimiser updates fail from the second on. Return the adapter."""
    adapter = engine._worker.learner._session.adapter
    update, done = adapter.update, []

    def fail(*arguments):
        if done:
            raise error
        done.append(1)
        return update(*arguments)

    adapter.update = fail
    return adapter


def test_rollback_on_full_disk_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        source, before = store.snapshots()[0].id, files(tmp_path)
        with monkeypatch.context() as full:
            full.setattr(learner, "save_state", half_written)
            with pytest.raises(StoreFull, match=r"a snapshot cannot be written \(No space left"):
                engine.rollback(source, by="ada", reason="to see").result(20)
        assert engine.model_version.startswith("1.")
        assert files(tmp_path) == before
        assert not store.events(kinds=["rollback"])
        assert engine.rollback(source, by="ada", reason="to see").result(20) == "2.0"
        assert serve(engine, 1).model_version == "2.0"


@pytest.mark.parametrize("change", ["add_snapshot", "log_rollback"])
def test_snapshot_with_refused_row_leaves_no_file(tmp_path, monkeypatch, change):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        source, before = store.snapshots()[0].id, files(tmp_path)
        with monkeypatch.context() as locked:
            locked.setattr(store, change, refuse)
            asked = (
                engine.snapshot()
                if change == "add_snapshot"
                else engine.rollback(source, by="ada", reason="to see")
            )
            with pytest.raises(StoreBusy):
                asked.result(20)
        assert engine.model_version.startswith("1.")
        assert files(tmp_path) == before


def make_snapshots(folder):
    """Return the snapshots of the source, of a request and of the stop, newest last."""
    with running(folder) as (engine, store):
        serve(engine, 0, n=1)
        engine.snapshot().result(20)
        return store.snapshots()


def test_snapshot_file_without_row_is_deleted_at_start(tmp_path):
    """A process that is killed between writing file and row leaves such a file."""
    make_snapshots(tmp_path)
    left, other = (tmp_path / "snapshots" / f"{'A' * n}.safetensors" for n in (26, 5))
    left.write_bytes(b"whole")
    other.write_bytes(b"put there by somebody")
    with running(tmp_path) as (_, store):
        assert not left.exists()
        assert other.exists()
        named = {tmp_path / snapshot.path for snapshot in store.snapshots()}
        assert {path for path in (tmp_path / "snapshots").iterdir() if path != other} == named


def test_snapshot_without_file_is_not_loaded_and_not_listed(tmp_path):
    source, *_, newest = make_snapshots(tmp_path)
    (tmp_path / newest.path).unlink()
    with running(tmp_path) as (engine, store):
        assert source.id in [snapshot.id for snapshot in store.snapshots()]
        assert newest.id not in [snapshot.id for snapshot in store.snapshots()]
        with pytest.raises(UnknownSnapshot, match="there is no snapshot"):
            engine.rollback(newest.id, by="ada", reason="to see").result(20)


def test_rollback_target_has_a_file(tmp_path):
    with running(tmp_path) as (engine, store):
        serve(engine, 0, n=1)
        newest = engine.snapshot().result(20)
        snapshots = engine._worker.snapshots
        assert snapshots.find_before(0) == newest.id
        (tmp_path / newest.path).unlink()
        assert snapshots.find_before(0) == store.snapshots()[0].id


def test_folder_without_known_snapshots_is_not_changed(tmp_path):
    """The folder may belong to another database, or may not be mounted yet."""
    make_snapshots(tmp_path)
    for path in (tmp_path / "snapshots").iterdir():
        path.rename(path.with_stem(path.stem[::-1]))
    before = files(tmp_path)
    with pytest.raises(InputError, match="none of the snapshots can be read"), running(tmp_path):
        pass
    assert files(tmp_path) == before
    with Store.open(None, tmp_path) as store:
        assert len(store.snapshots()) == len(before)


def test_stored_rollback_with_lost_reply_is_not_listed(tmp_path, monkeypatch):
    with running(tmp_path) as (engine, store):
        serve(engine, 0, n=1)
        rolled_back = store.log_rollback

        def lost(*given, **named):
            rolled_back(*given, **named).result(20)
            return refuse()

        with monkeypatch.context() as broken:
            broken.setattr(store, "log_rollback", lost)
            with pytest.raises(StoreBusy):
                engine.rollback(store.snapshots()[0].id, by="ada", reason="?").result(20)
        store.expire_questions(0).result(20)  # written after the rollback
        assert [snapshot.reason for snapshot in store.snapshots()] == ["source"]
        source = store.snapshots()[0].id
        assert engine.rollback(source, by="ada", reason="again").result(20) == "3.0"


def test_draft_of_killed_server_is_deleted_at_start(tmp_path):
    (tmp_path / "snapshots").mkdir()
    left = tmp_path / "snapshots" / ".X.safetensors.draft"
    left.write_bytes(b"half")
    with running(tmp_path) as (engine, _):
        serve(engine, 0)
        assert not left.exists()


def test_unexpected_error_in_step_rolls_back_and_serving_continues(tmp_path):
    """The answer is in the memory already. Without a rollback it would be added twice."""
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "to break it").result(20)
        record = answer(store, serve(engine, 0).prediction_ids[2])
        adapter = break_updates(engine, KeyError("on purpose"))
        engine.resume("ada").result(20)
        until(lambda: engine.model_version == "2.0")
        assert len(adapter.memory.correct) == 1
        assert engine.is_alive
        assert serve(engine, 1).model_version == "2.0"
        assert "on purpose" in engine.status().reason
        assert len(engine._worker.learner._session.adapter.memory.correct) == 0
        assert store.find_feedback(record.id).status == "pending"


def test_worker_is_alive_during_a_long_step(tmp_path):
    with running(tmp_path) as (engine, _):
        worker, was_alive = engine._worker, []

        def observed(function):
            def observe_then_call(*arguments):
                worker.last_active_at -= 1000.0
                function(*arguments)
                was_alive.append(engine.is_alive)

            return observe_then_call

        worker._serve_in_interrupt = observed(worker._serve_in_interrupt)
        worker._serve_between_updates = observed(worker._serve_between_updates)
        serve(engine, 0)
        while not engine.status().n_learning_steps:
            engine.ping().result(20)
        assert was_alive
        assert all(was_alive)


def test_window_restored_by_rollback_asks_only_about_new_samples(tmp_path):
    """The first four samples are in the window again, but other samples have their positions."""
    with running(tmp_path, rollback=False, n_queries=8) as (engine, store):
        engine.pause("ada", "to go back").result(20)
        serve(engine, 0, n=4)
        kept = engine.snapshot().result(20)
        for number in (1, 2):
            serve(engine, number, n=4)
        engine.rollback(kept.id, by="ada", reason="to see").result(20)
        new = serve(engine, 3, n=4)
        engine.ping().result(20)
        store.expire_questions(0).result(20)  # written after the questions
        *_, last = store.events(kinds=["asked"])
        asked = {question["prediction_id"] for question in last.body["questions"]}
        assert asked == set(new.prediction_ids)
