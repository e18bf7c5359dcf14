"""Tests that a server with a full disk loses nothing and continues when there is space."""

import os
import shutil
import subprocess
from hashlib import sha256

import pytest

from bitta.client import UnavailableError
from made_pictures import encoded, gradient
from server.processes import QUICK_SETTINGS, ForkedServer, Load, check_stored, until

pytestmark = pytest.mark.full

SETTINGS = f"max_queued_images = 128\n{QUICK_SETTINGS}"
"""Few predictions may wait, so that they are refused soon."""


@pytest.fixture
def disk(tmp_path):
    """Mount a small disk."""
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
def server(tmp_path, disk, forker):
    server = ForkedServer(forker, tmp_path, data_dir=disk / "data", settings=SETTINGS)
    yield server
    server.kill()


def fill(disk):
    """Write until the disk is full. Return the file."""
    filler = disk / "filler"
    file = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        os.close(file)
    return filler


def fill_until_refused(disk, load):
    """Fill the disk until predictions are refused. Deleted drafts free space, so repeat it."""
    until(
        lambda: fill(disk) and load.refused["predict"],
        seconds=60,
        what="predictions are refused",
    )
    return fill(disk)


def fill_until_message(disk, request, message, *, what):
    """Fill the disk until a message appears. The database may have space for a few more writes."""
    messages = []

    def refused():
        fill(disk)
        messages.append(request())
        return message in messages[-1]

    until(refused, seconds=60, what=what)
    return messages[-1]


def check_snapshots(server):
    """Check that every row has an intact file, and that there are no other files."""
    with server.open_store() as store:
        digests = {
            server.data_dir / snapshot.path: snapshot.sha256 for snapshot in store.snapshots()
        }
    for path, digest in digests.items():
        assert sha256(path.read_bytes()).hexdigest() == digest
    assert set((server.data_dir / "snapshots").iterdir()) == set(digests)


def test_full_disk_refuses_requests_until_there_is_space(server, disk):
    server.start()
    with Load(server, images=16) as load, server.client("client") as client:
        until(lambda: len(load.acknowledged) > 5, seconds=60, what="questions are answered")
        [served] = client.predict(encoded(gradient()))
        filler = fill_until_refused(disk, load)

        def answer():
            try:
                client.answer(served, correct=True)
            except UnavailableError as error:
                return f"{error.status} {error}"
            return "stored"

        def snapshot():
            status, body = server.request("POST", "/v1/snapshots")
            return f"{status} {body}"

        message = fill_until_message(
            disk, answer, "the database is full", what="answers are refused"
        )
        assert message.startswith("503 ")
        fill_until_message(
            disk, server.not_ready_reason, "the disk of the data folder has", what="it is not ready"
        )
        full = "a snapshot cannot be written (No space left on device)"
        message = fill_until_message(disk, snapshot, full, what="snapshots are refused")
        assert message.startswith("503 ")
        assert "unavailable" in message
        before, learned, predicted = len(load.acknowledged), server.n_steps(), load.n_predicted
        filler.unlink()
        server.wait_ready()
        until(lambda: len(load.acknowledged) > before + 5, seconds=60, what="answers continue")
        until(lambda: server.n_steps() > learned, seconds=60, what="learning continues")
        until(lambda: load.n_predicted > predicted, seconds=60, what="predictions continue")
        assert client.answer(served, correct=True).id not in load.acknowledged
        assert server.request("POST", "/v1/snapshots")[0] == 201
    assert load.statuses() == {503}
    assert "cannot be stored: the database is full" in str(load.refused["predict"][0])
    assert "raceback" not in server.log.read_text()
    assert server.stop() == 0
    check_snapshots(server)
    check_stored(server, load.acknowledged)


def test_server_killed_on_full_disk_restarts_when_there_is_space(server, disk):
    server.start()
    with Load(server, images=16) as load:
        until(lambda: len(load.acknowledged) > 5, seconds=60, what="questions are answered")
        filler = fill_until_refused(disk, load)
        server.kill()
    fill(disk)
    with pytest.raises(AssertionError, match=r"(?s)the server ended:.*(is full|No space left)"):
        server.start()
    filler.unlink()
    server.start()
    assert server.request("POST", "/v1/snapshots")[0] == 201
    server.kill()
    assert "raceback" not in server.log.read_text()
    check_snapshots(server)
    check_stored(server, load.acknowledged)
