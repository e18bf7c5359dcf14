"""What several tests of whole servers share."""

import pytest

from server.nursery import Nursery


@pytest.fixture(scope="session")
def nursery():
    """For servers that are started often."""
    made = Nursery()
    yield made
    made.close()
