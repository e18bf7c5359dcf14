"""Kill a server under load with SIGKILL, many times."""

import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import sqlalchemy as sa

from server.processes import ServerProcess, check_stored, kill_and_restart
from server.store.factories import temporary_database

MAX_SECONDS = 3.0
"""Longest allowed time until a restarted server with the demo's model is ready."""
NO_POSTGRESQL = (
    "BITTA_TEST_POSTGRES is not set: give it the address of a PostgreSQL database, or start one "
    'with ". .ci/services" in the same shell'
)


def missing_database_reason(kind):
    """Return why this kind of database cannot be used; empty if it can."""
    url = os.environ.get("BITTA_TEST_POSTGRES")
    if kind == "sqlite" or not url:
        return "" if kind == "sqlite" else NO_POSTGRESQL
    try:
        sa.create_engine(url, poolclass=sa.NullPool).connect().close()
    except sa.exc.OperationalError as error:
        return f"BITTA_TEST_POSTGRES cannot be reached ({error.orig})"
    return ""


def check_kills(kind, n, print_line):
    """Kill a server on this kind of database n times. Return measurements and problems."""
    if why := missing_database_reason(kind):
        return {}, [f"was not run; {why}"]
    seconds, cpu, acknowledged, refused, predicted = [], [], [], set(), 0
    with TemporaryDirectory() as folder, temporary_database(kind) as url:
        server = ServerProcess(Path(folder), database=url)
        try:
            for number, (restart_seconds, load) in enumerate(kill_and_restart(server, n), 1):
                seconds.append(round(restart_seconds, 3))
                cpu.append(round(server.cpu_seconds(), 2))
                acknowledged += load.acknowledged
                refused |= load.statuses()
                predicted += load.n_predicted
                print_line(
                    f"{number} of {n} kills, {len(acknowledged)} answers, "
                    f"ready in {restart_seconds:.2f} s"
                )
            stored = check_stored(server, acknowledged)
        finally:
            server.kill()
    found = {
        "kills": n + n // 10,
        "predictions_served": predicted,
        **stored,
        "seconds_to_ready": summarise_restarts(seconds, cpu),
    }
    return found, _problems(found, refused)


def summarise_restarts(seconds, cpu):
    """Summarise all restarts. The processor time shows if a slow restart waited for the machine."""
    return {
        "median": median(seconds),
        "longest": max(seconds),
        "allowed": MAX_SECONDS,
        "too_long": sum(s >= MAX_SECONDS for s in seconds),
        "all": seconds,
        "cpu": cpu,
    }


def _problems(found, refused):
    problems, ready = [], found["seconds_to_ready"]
    if refused:
        problems.append(f"requests were answered with status {sorted(refused)}")
    if found["learned_from"] == 0 or found["acknowledged"] < found["kills"]:
        problems.append("too few answers were given or learned")
    if found["events_snapshot"] < found["kills"] / 5:
        problems.append("too few snapshots were taken")
    if ready["too_long"]:
        problems.append(
            f"{ready['too_long']} of {len(ready['all'])} restarts took {MAX_SECONDS:g} s or more, "
            f"the longest {ready['longest']:.1f} s with "
            f"{ready['cpu'][ready['all'].index(ready['longest'])]:.1f} s of a processor"
        )
    return problems
