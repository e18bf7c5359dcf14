"""A server whose disk is full says so, loses nothing, and goes on once there is room."""

import os
import shutil
import subprocess
from hashlib import sha256

import pytest

from bitta.client import UnavailableError
from made_pictures import encoded, gradient
from server.forked import ForkedServer
from server.processes import QUICK, Load, check_stored, until

SETTINGS = f"max_waiting = 128\n{QUICK}"
"""Predictions are refused soon once they cannot be stored."""


@pytest.fixture
def disk(tmp_path):
    """A small one of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command; apt install mount to make a small disk")
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted; run as root: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def server(tmp_path, disk, nursery):
    server = ForkedServer(nursery, tmp_path, data_dir=disk / "data", settings=SETTINGS)
    yield server
    server.kill()


def fill(disk):
    """Until not a byte more goes in."""
    ballast = disk / "ballast"
    file = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        os.close(file)
    return ballast


def fill_until_refused(disk, load):
    """Room that comes back, as when a snapshot half written is given up, is filled again."""
    until(
        lambda: fill(disk) and load.refused["predict"],
        seconds=60,
        what="predictions are refused",
    )
    return fill(disk)


def on_full(disk, tried, told, *, what):
    """What is told in the end: the database may have room of its own for a write or two more."""
    heard = []

    def refused():
        fill(disk)
        heard.append(tried())
        return told in heard[-1]

    until(refused, seconds=60, what=what)
    return heard[-1]


def check_snapshots(server):
    """Every row names a whole file, and no other file lies around."""
    with server.store() as store:
        kept = {server.data_dir / each.path: each.sha256 for each in store.snapshots()}
    for path, digest in kept.items():
        assert sha256(path.read_bytes()).hexdigest() == digest
    assert set((server.data_dir / "snapshots").iterdir()) == set(kept)


def test_a_full_disk_is_told_and_what_was_refused_goes_on_when_there_is_room(server, disk):
    server.start()
    with Load(server, images=16) as load, server.client("client") as client:
        until(lambda: len(load.acknowledged) > 5, seconds=60, what="questions are answered")
        [served] = client.predict(encoded(gradient()))
        ballast = fill_until_refused(disk, load)

        def answer():
            try:
                client.answer(served, correct=True)
            except UnavailableError as error:
                return f"{error.status} {error}"
            return "stored"

        def snapshot():
            status, body = server.call("POST", "/v1/snapshots")
            return f"{status} {body}"

        told = on_full(disk, answer, "the database is full", what="answers are refused")
        assert told.startswith("503 ")
        on_full(disk, server.ready, "the disk of the data folder has", what="it is not ready")
        full = "a snapshot cannot be written (No space left on device)"
        told = on_full(disk, snapshot, full, what="snapshots are refused")
        assert told.startswith("503 ")
        assert "unavailable" in told
        before, learned, predicted = len(load.acknowledged), server.steps(), load.n_predicted
        ballast.unlink()
        server.wait_ready()
        until(lambda: len(load.acknowledged) > before + 5, seconds=60, what="answers go on")
        until(lambda: server.steps() > learned, seconds=60, what="learning goes on")
        until(lambda: load.n_predicted > predicted, seconds=60, what="predictions go on")
        assert client.answer(served, correct=True).id not in load.acknowledged
        assert server.call("POST", "/v1/snapshots")[0] == 201
    assert load.statuses() == {503}
    assert "cannot be stored: the database is full" in str(load.refused["predict"][0])
    assert "raceback" not in server.log.read_text()
    assert server.stop() == 0
    check_snapshots(server)
    check_stored(server, load.acknowledged)


def test_a_server_killed_on_a_full_disk_starts_again_when_there_is_room(server, disk):
    server.start()
    with Load(server, images=16) as load:
        until(lambda: len(load.acknowledged) > 5, seconds=60, what="questions are answered")
        ballast = fill_until_refused(disk, load)
        server.kill()
    fill(disk)
    with pytest.raises(AssertionError, match=r"(?s)the server ended:.*(no room|No space) left"):
        server.start()
    ballast.unlink()
    server.start()
    assert server.call("POST", "/v1/snapshots")[0] == 201
    server.kill()
    assert "raceback" not in server.log.read_text()
    check_snapshots(server)
    check_stored(server, load.acknowledged)
