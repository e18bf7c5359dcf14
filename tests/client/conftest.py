"""A server and its clients."""

import pytest

from bitta.client import Client
from client.fake_server import KEY, FakeServer


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def client(server):
    with Client("http://server", KEY, transport=server.transport) as made:
        yield made


@pytest.fixture
def pauses(monkeypatch):
    """Seconds that clients would have slept."""
    slept = []

    async def nap(seconds):
        slept.append(seconds)

    monkeypatch.setattr("bitta.client.client.sleep", slept.append)
    monkeypatch.setattr("bitta.client.asynchronous.sleep", nap)
    return slept
