"""What several tests of whole servers share."""

import pytest

from bitta.server.store import connection


@pytest.fixture(scope="session", autouse=True)
def _patient():
    """A machine under load takes its time to end what was killed, and its hold on a database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "OWNER_LOCK_TIMEOUT", "60s")
        yield
