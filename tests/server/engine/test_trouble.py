"""A disk or a database that fails at the wrong moment leaves the model as it was."""

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
    """As a disk that fills up while it writes."""
    path.with_name(f".{path.name}.draft").write_bytes(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refused(*_, **__):
    """As a database that is locked."""
    future = Future()
    future.set_exception(StoreBusy("another program holds the database; try again"))
    return future


def breaking(engine, error):
    """Let the steps of the optimiser fail from the second on; the adapter."""
    adapter = engine._worker.learner._session.adapter
    descend, done = adapter._descend, []

    def fail(*given):
        if done:
            raise error
        done.append(1)
        return descend(*given)

    adapter._descend = fail
    return adapter


def test_going_back_on_a_full_disk_is_refused_and_changes_nothing(tmp_path, monkeypatch):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        source, before = store.snapshots()[0].id, files(tmp_path)
        with monkeypatch.context() as full:
            full.setattr(learner, "save_state", half_written)
            with pytest.raises(StoreFull, match=r"a snapshot cannot be kept \(No space left"):
                engine.rollback(source, by="ada", reason="to see").result(20)
        assert engine.model_version.startswith("1.")
        assert files(tmp_path) == before
        assert not store.events(kinds=["rollback"])
        assert engine.rollback(source, by="ada", reason="to see").result(20) == "2.0"
        assert serve(engine, 1).model_version == "2.0"


@pytest.mark.parametrize("change", ["add_snapshot", "log_rollback"])
def test_a_snapshot_whose_row_is_refused_leaves_no_file(tmp_path, monkeypatch, change):
    with running(tmp_path) as (engine, store):
        serve(engine, 0)
        source, before = store.snapshots()[0].id, files(tmp_path)
        with monkeypatch.context() as locked:
            locked.setattr(store, change, refused)
            asked = (
                engine.snapshot()
                if change == "add_snapshot"
                else engine.rollback(source, by="ada", reason="to see")
            )
            with pytest.raises(StoreBusy):
                asked.result(20)
        assert engine.model_version.startswith("1.")
        assert files(tmp_path) == before


def two_snapshots(folder):
    """Of the source and of what was served after it, newest last."""
    with running(folder) as (engine, store):
        serve(engine, 0, n=1)
        engine.snapshot().result(20)
        return store.snapshots()


def test_a_whole_snapshot_that_no_row_names_is_swept(tmp_path):
    """As a process leaves it that is killed between the file and the row."""
    two_snapshots(tmp_path)
    left, other = (tmp_path / "snapshots" / f"{'A' * n}.safetensors" for n in (26, 5))
    left.write_bytes(b"whole")
    other.write_bytes(b"put there by somebody")
    with running(tmp_path) as (_, store):
        assert not left.exists()
        assert other.exists()
        named = {tmp_path / one.path for one in store.snapshots()}
        assert {path for path in (tmp_path / "snapshots").iterdir() if path != other} == named


def test_a_snapshot_without_a_file_is_neither_begun_from_nor_listed(tmp_path):
    source, *_, newest = two_snapshots(tmp_path)
    (tmp_path / newest.path).unlink()
    with running(tmp_path) as (engine, store):
        assert source.id in [one.id for one in store.snapshots()]
        assert newest.id not in [one.id for one in store.snapshots()]
        with pytest.raises(UnknownSnapshot, match="there is no snapshot"):
            engine.rollback(newest.id, by="ada", reason="to see").result(20)


def test_the_guard_goes_back_to_a_snapshot_that_is_there(tmp_path):
    with running(tmp_path) as (engine, store):
        serve(engine, 0, n=1)
        newest = engine.snapshot().result(20)
        snapshots = engine._worker.snapshots
        assert snapshots.find_before(0) == newest.id
        (tmp_path / newest.path).unlink()
        assert snapshots.find_before(0) == store.snapshots()[0].id


def test_a_folder_without_any_of_our_snapshots_is_left_as_it_is(tmp_path):
    """It may be of another database, or not mounted yet."""
    two_snapshots(tmp_path)
    for path in (tmp_path / "snapshots").iterdir():
        path.rename(path.with_stem(path.stem[::-1]))
    before = files(tmp_path)
    with pytest.raises(InputError, match="none of the snapshots can be read"), running(tmp_path):
        pass
    assert files(tmp_path) == before
    with Store.open(None, tmp_path) as store:
        assert len(store.snapshots()) == len(before)


def test_a_rollback_that_was_stored_though_its_reply_was_lost_is_not_listed(tmp_path, monkeypatch):
    with running(tmp_path) as (engine, store):
        serve(engine, 0, n=1)
        rolled_back = store.log_rollback

        def lost(*given, **named):
            rolled_back(*given, **named).result(20)
            return refused()

        with monkeypatch.context() as broken:
            broken.setattr(store, "log_rollback", lost)
            with pytest.raises(StoreBusy):
                engine.rollback(store.snapshots()[0].id, by="ada", reason="?").result(20)
        store.expire_questions(0).result(20)  # behind what is written of it
        assert [one.reason for one in store.snapshots()] == ["source"]
        source = store.snapshots()[0].id
        assert engine.rollback(source, by="ada", reason="again").result(20) == "3.0"


def test_a_draft_left_by_a_killed_server_is_swept(tmp_path):
    (tmp_path / "snapshots").mkdir()
    left = tmp_path / "snapshots" / ".X.safetensors.draft"
    left.write_bytes(b"half")
    with running(tmp_path) as (engine, _):
        serve(engine, 0)
        assert not left.exists()


def test_a_step_that_broke_off_by_our_own_mistake_is_gone_back_from_and_serving_goes_on(tmp_path):
    """Its answer was in the memory already, and would enter it a second time."""
    with running(tmp_path) as (engine, store):
        engine.pause("ada", "to break it").result(20)
        record = answer(store, serve(engine, 0).prediction_ids[2])
        adapter = breaking(engine, KeyError("on purpose"))
        engine.resume("ada").result(20)
        until(lambda: engine.model_version == "2.0")
        assert len(adapter.memory.correct) == 1
        assert engine.is_alive
        assert serve(engine, 1).model_version == "2.0"
        assert "on purpose" in engine.status().reason
        assert len(engine._worker.learner._session.adapter.memory.correct) == 0
        assert store.find_feedback(record.id).status == "pending"


def test_a_worker_inside_a_step_lives_as_long_as_it_gets_further(tmp_path):
    with running(tmp_path) as (engine, _):
        worker, lived = engine._worker, []

        def look(given):
            def looking(*arguments):
                worker.last_active_at -= 1000.0
                given(*arguments)
                lived.append(engine.is_alive)

            return looking

        worker._serve_in_interrupt = look(worker._serve_in_interrupt)
        worker._serve_between_updates = look(worker._serve_between_updates)
        serve(engine, 0)
        while not engine.status().n_steps:
            engine.ping().result(20)
        assert lived
        assert all(lived)


def test_after_going_back_nothing_is_asked_about_samples_at_other_positions(tmp_path):
    """The first four are in the window again, at positions where others were served since."""
    with running(tmp_path, rollback=False, n_queries=8) as (engine, store):
        engine.pause("ada", "to go back").result(20)
        serve(engine, 0, n=4)
        kept = engine.snapshot().result(20)
        for number in (1, 2):
            serve(engine, number, n=4)
        engine.rollback(kept.id, by="ada", reason="to see").result(20)
        new = serve(engine, 3, n=4)
        engine.ping().result(20)
        store.expire_questions(0).result(20)  # behind what was asked
        *_, last = store.events(kinds=["asked"])
        asked = {one["prediction_id"] for one in last.body["questions"]}
        assert asked == set(new.prediction_ids)
