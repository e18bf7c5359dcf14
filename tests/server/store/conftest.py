"""Stores on SQLite and on PostgreSQL."""

import os

import pytest

from bitta.server.store import Store
from server.store import factories


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def kind(request):
    if request.param == "postgresql" and not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    return request.param


@pytest.fixture
def url(kind):
    with factories.temporary_database(kind) as address:
        yield address


@pytest.fixture
def clock():
    return factories.ManualClock()


@pytest.fixture
def reopen(url, tmp_path, clock):
    """Function that opens the store of this test, after closing the one before."""
    opened = []

    def again(**settings):
        if opened:
            opened[-1].close()
        opened.append(Store.open(url, tmp_path, clock=clock, **settings))
        return opened[-1]

    yield again
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen):
    return reopen()
