"""Test that kill -9 under load loses no acknowledged answer and stores none twice in the memory."""

import os
import random
import time

import pytest

from server.processes import ForkedServer, check_stored, kill_and_restart
from server.store.factories import temporary_database

pytestmark = pytest.mark.full

KILLS = {"sqlite": 10, "postgresql": 10}
START_SECONDS = 0.5
"""Time in which a forked server opens its store and recovers."""


@pytest.mark.parametrize("kind", KILLS)
def test_kills_lose_no_acknowledged_answer_and_repeat_none(tmp_path, forker, kind):
    if kind == "postgresql" and not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    with temporary_database(kind) as url:
        server = ForkedServer(forker, tmp_path, database=url)
        acknowledged = []
        for _, load in kill_and_restart(server, KILLS[kind]):
            assert not load.refused["ask"] + load.refused["answer"]
            statuses = {error.status for error in load.refused["predict"]}
            assert statuses <= {503}, "predictions are refused only if the server is overloaded"
            acknowledged += load.acknowledged
        for _ in range(3):
            server.spawn()
            time.sleep(random.uniform(0, START_SECONDS))
            server.kill()
        found = check_stored(server, acknowledged)
    assert len(acknowledged) >= KILLS[kind], "there were too few answers"
    assert found["events_recovered"] >= KILLS[kind] - 1
    assert found["learned_from"] > 0
    assert found["events_snapshot"] > 1
