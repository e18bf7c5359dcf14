"""What several tests of whole servers share."""

import pytest

from bitta.server.store import connect
from server.nursery import Nursery


@pytest.fixture(scope="session", autouse=True)
def _patient():
    """A machine under load takes its time to end what was killed, and its hold on a database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "_OWNER_WAITS", "60s")
        yield


@pytest.fixture(scope="session")
def nursery():
    """For servers that are started often."""
    made = Nursery()
    yield made
    made.close()
