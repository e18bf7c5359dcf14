"""When a worker gives memory back."""

import pytest

from bitta.server.engine.tidy import EVERY, Tidy
from small_engine import running, serve, until


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def given(now):
    return []


@pytest.fixture
def tidy(now, given):
    return Tidy(give_back=lambda: given.append(now[0]), clock=lambda: now[0])


def test_used_memory_is_given_back_once_the_time_has_come(tidy, now, given):
    tidy.used()
    tidy.when_due()
    now[0] += EVERY - 1
    tidy.when_due()
    assert given == []
    now[0] += 1
    tidy.when_due()
    assert given == [100.0 + EVERY]


def test_nothing_is_given_back_where_nothing_was_used_since(tidy, now, given):
    now[0] += EVERY
    tidy.when_due()
    assert given == []
    tidy.used()
    tidy.when_due()
    now[0] += 5 * EVERY
    tidy.when_due()
    assert given == [100.0 + EVERY]


def test_the_time_begins_anew_with_each_giving_back(tidy, now, given):
    for _ in range(int(3 * EVERY)):
        now[0] += 1
        tidy.used()
        tidy.when_due()
    assert given == [100 + EVERY, 100 + 2 * EVERY, 100 + 3 * EVERY]


@pytest.mark.parametrize("learns", [True, False])
def test_a_worker_gives_back_after_it_has_served_or_learned(tmp_path, learns):
    with running(tmp_path) as (engine, _):
        now, given = [0.0], []
        worker = engine._worker
        worker.tidy = Tidy(
            give_back=lambda: given.append(worker.learner.step), clock=lambda: now[0]
        )
        if not learns:
            engine.pause("me", "").result(10)
        serve(engine, 0)
        until(lambda: engine.status().n_steps == learns)
        assert given == []
        now[0] = EVERY
        until(lambda: given)
        assert given == [int(learns)]
        engine.ping().result(10)
        assert len(given) == 1, "nothing was done since"
