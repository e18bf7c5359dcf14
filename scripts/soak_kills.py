"""kill -9 of a whole server under load, again and again."""

import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from server.processes import ServerProcess, check_stored, restarts
from server.store.made import database

SECONDS = 3.0
"""Within which a server with the demo's model is to be ready again."""


def kills(kind, n, tell):
    """Kill a server on this kind of database n times; what was found, and what is wrong."""
    if kind == "postgresql" and not os.environ.get("BITTA_TEST_POSTGRES"):
        return {"skipped": "BITTA_TEST_POSTGRES is not set; give the address of a database"}, []
    seconds, acknowledged, refused, predicted = [], [], set(), 0
    with TemporaryDirectory() as folder, database(kind) as url:
        server = ServerProcess(Path(folder), database=url)
        try:
            for number, (took, load) in enumerate(restarts(server, n), 1):
                seconds.append(took)
                acknowledged += load.acknowledged
                refused |= load.statuses()
                predicted += load.n_predicted
                tell(f"{number} of {n} kills, {len(acknowledged)} answers, ready in {took:.1f} s")
            stored = check_stored(server, acknowledged)
        finally:
            server.kill()
    found = {
        "kills": n + n // 10,
        "predictions_served": predicted,
        **stored,
        "seconds_to_ready": {"median": median(seconds), "max": max(seconds), "all": seconds},
    }
    return found, _wrong(found, refused)


def _wrong(found, refused):
    wrong = []
    if refused:
        wrong.append(f"requests were answered with {sorted(refused)}")
    if found["learned_from"] == 0 or found["acknowledged"] < found["kills"]:
        wrong.append("hardly anything was answered or learned")
    if found["events_snapshot"] < found["kills"] / 5:
        wrong.append("hardly any snapshot was taken")
    if found["seconds_to_ready"]["median"] > SECONDS:
        wrong.append(f"it took longer than {SECONDS:g} s to be ready, in the median")
    return wrong
