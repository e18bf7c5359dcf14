"""Fixtures of the client tests: a fake server and a client."""

import pytest

from bitta.client import Client
from client.fake_server import KEY, FakeServer


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def client(server):
    with Client("http://server", KEY, transport=server.transport) as client:
        yield client


@pytest.fixture
def pauses(monkeypatch):
    """Seconds for which clients would have slept. Nothing sleeps."""
    seconds = []

    async def async_sleep(delay):
        seconds.append(delay)

    monkeypatch.setattr("bitta.client.client.sleep", seconds.append)
    monkeypatch.setattr("bitta.client.client.async_sleep", async_sleep)
    return seconds
