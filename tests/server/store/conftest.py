"""A store of each kind of database."""

import os

import pytest

from bitta.server.store import Store
from server.store import made


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request):
    if request.param == "postgresql" and not os.environ.get("BITTA_TEST_POSTGRES"):
        pytest.skip("BITTA_TEST_POSTGRES is not set; give the address of a PostgreSQL database")
    return request.param


@pytest.fixture
def url(kind):
    with made.database(kind) as address:
        yield address


@pytest.fixture
def watch():
    return made.Watch()


@pytest.fixture
def reopen(url, tmp_path, watch):
    """Open the store of this test, as often as it is wanted, one at a time."""
    opened = []

    def again(**settings):
        if opened:
            opened[-1].close()
        opened.append(Store.open(url, tmp_path, clock=watch, **settings))
        return opened[-1]

    yield again
    for store in opened:
        store.close()


@pytest.fixture
def store(reopen):
    return reopen()
