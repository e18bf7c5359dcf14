"""kill -9 of a whole server under load, again and again."""

import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import sqlalchemy as sa

from server.processes import ServerProcess, check_stored, kill_and_restart
from server.store.factories import temporary_database

SECONDS = 3.0
"""Within which a server with the demo's model is to be ready again, every time."""
NO_POSTGRESQL = (
    "BITTA_TEST_POSTGRES is not set: give it the address of a PostgreSQL database, or start one "
    'with ". .ci/services" in the same shell'
)


def missing(kind):
    """Why a server cannot be run on this kind of database; empty where it can."""
    url = os.environ.get("BITTA_TEST_POSTGRES")
    if kind == "sqlite" or not url:
        return "" if kind == "sqlite" else NO_POSTGRESQL
    try:
        sa.create_engine(url, poolclass=sa.NullPool).connect().close()
    except sa.exc.OperationalError as error:
        return f"nobody answers at BITTA_TEST_POSTGRES ({error.orig})"
    return ""


def kills(kind, n, tell):
    """Kill a server on this kind of database n times; what was found, and what is wrong."""
    if why := missing(kind):
        return {}, [f"was not run; {why}"]
    seconds, cpu, acknowledged, refused, predicted = [], [], [], set(), 0
    with TemporaryDirectory() as folder, temporary_database(kind) as url:
        server = ServerProcess(Path(folder), database=url)
        try:
            for number, (took, load) in enumerate(kill_and_restart(server, n), 1):
                seconds.append(round(took, 3))
                cpu.append(round(server.cpu_seconds(), 2))
                acknowledged += load.acknowledged
                refused |= load.statuses()
                predicted += load.n_predicted
                tell(f"{number} of {n} kills, {len(acknowledged)} answers, ready in {took:.2f} s")
            stored = check_stored(server, acknowledged)
        finally:
            server.kill()
    found = {
        "kills": n + n // 10,
        "predictions_served": predicted,
        **stored,
        "seconds_to_ready": timed(seconds, cpu),
    }
    return found, _wrong(found, refused)


def timed(seconds, cpu):
    """All restarts in their order, and what is to be said of them.

    What one had of a processor tells whether it was slow or was kept waiting.
    """
    return {
        "median": median(seconds),
        "longest": max(seconds),
        "allowed": SECONDS,
        "too_long": sum(one >= SECONDS for one in seconds),
        "all": seconds,
        "cpu": cpu,
    }


def _wrong(found, refused):
    wrong, ready = [], found["seconds_to_ready"]
    if refused:
        wrong.append(f"requests were answered with {sorted(refused)}")
    if found["learned_from"] == 0 or found["acknowledged"] < found["kills"]:
        wrong.append("hardly anything was answered or learned")
    if found["events_snapshot"] < found["kills"] / 5:
        wrong.append("hardly any snapshot was taken")
    if ready["too_long"]:
        wrong.append(
            f"{ready['too_long']} of {len(ready['all'])} restarts took {SECONDS:g} s or more, "
            f"the longest {ready['longest']:.1f} s with "
            f"{ready['cpu'][ready['all'].index(ready['longest'])]:.1f} s of a processor"
        )
    return wrong
