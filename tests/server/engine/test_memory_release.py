"""When a worker gives memory back."""

import pytest

from bitta.server.engine.worker import RELEASE_SECONDS, MemoryRelease
from small_engine import running, serve, until


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def released_at(now):
    return []


@pytest.fixture
def release(now, released_at):
    return MemoryRelease(release=lambda: released_at.append(now[0]), clock=lambda: now[0])


def test_used_memory_is_given_back_once_the_time_has_come(release, now, released_at):
    release.record_work()
    release.release_if_due()
    now[0] += RELEASE_SECONDS - 1
    release.release_if_due()
    assert released_at == []
    now[0] += 1
    release.release_if_due()
    assert released_at == [100.0 + RELEASE_SECONDS]


def test_nothing_is_given_back_where_nothing_was_used_since(release, now, released_at):
    now[0] += RELEASE_SECONDS
    release.release_if_due()
    assert released_at == []
    release.record_work()
    release.release_if_due()
    now[0] += 5 * RELEASE_SECONDS
    release.release_if_due()
    assert released_at == [100.0 + RELEASE_SECONDS]


def test_the_time_begins_anew_with_each_giving_back(release, now, released_at):
    for _ in range(int(3 * RELEASE_SECONDS)):
        now[0] += 1
        release.record_work()
        release.release_if_due()
    assert released_at == [
        100 + RELEASE_SECONDS,
        100 + 2 * RELEASE_SECONDS,
        100 + 3 * RELEASE_SECONDS,
    ]


@pytest.mark.parametrize("learns", [True, False])
def test_a_worker_gives_back_after_it_has_served_or_learned(tmp_path, learns):
    with running(tmp_path) as (engine, _):
        now, released_at = [0.0], []
        worker = engine._worker
        worker.memory_release = MemoryRelease(
            release=lambda: released_at.append(worker.learner.step), clock=lambda: now[0]
        )
        if not learns:
            engine.pause("me", "").result(10)
        serve(engine, 0)
        until(lambda: engine.status().n_steps == learns)
        assert released_at == []
        now[0] = RELEASE_SECONDS
        until(lambda: released_at)
        assert released_at == [int(learns)]
        engine.ping().result(10)
        assert len(released_at) == 1, "nothing was done since"
