"""kill -9 under load: no answer that was acknowledged is lost, none is in the memory twice."""

import os
import random
import time

import pytest

from server.forked import ForkedServer
from server.processes import check_stored, restarts
from server.store.made import database

KILLS = {"sqlite": 10, "postgresql": 10}
START = 0.5
"""Seconds within which a forked server opens its store and recovers."""


@pytest.mark.parametrize("kind", KILLS)
def test_no_acknowledged_answer_is_lost_and_none_is_learned_from_twice(tmp_path, nursery, kind):
    if kind == "postgresql" and not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    with database(kind) as url:
        server = ForkedServer(nursery, tmp_path, database=url)
        acknowledged = []
        for _, load in restarts(server, KILLS[kind]):
            assert load.statuses() == set()
            acknowledged += load.acknowledged
        for _ in range(3):
            server.begin()
            time.sleep(random.uniform(0, START))
            server.kill()
        found = check_stored(server, acknowledged)
    assert len(acknowledged) >= KILLS[kind], "hardly anything was answered"
    assert found["events_recovered"] >= KILLS[kind] - 1
    assert found["learned_from"] > 0
    assert found["events_snapshot"] > 1
