"""Shared fixtures."""

import os
from pathlib import Path

import pytest

from nursery import Nursery


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Data that is not part of the repository: golden runs of the published code, checkpoints."""
    folder = os.environ.get("BITTA_TEST_DATA")
    if not folder:
        pytest.skip(
            "BITTA_TEST_DATA is not set; point it at the folder that holds golden/, checkpoints/, "
            "cifar100/ and pacs/"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def nursery():
    """For commands that are started often."""
    made = Nursery()
    yield made
    made.close()
