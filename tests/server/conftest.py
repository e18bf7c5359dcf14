"""Shared fixtures of the server tests."""

import pytest

from bitta.server.store import connection


@pytest.fixture(scope="session", autouse=True)
def _long_owner_lock_timeout():
    """Wait longer for the lock: on a busy machine a killed process releases its database late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "OWNER_LOCK_TIMEOUT", "60s")
        yield
