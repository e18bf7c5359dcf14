"""Shared fixtures."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from process_forker import ProcessForker

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of data outside of the repository: golden runs of the published code, checkpoints."""
    folder = os.environ.get("BITTA_TEST_DATA")
    if not folder:
        pytest.skip(
            "BITTA_TEST_DATA is not set; point it at the folder that holds golden/, checkpoints/, "
            "cifar100/ and pacs/"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def forker():
    """Process that starts `bitta` commands without imports."""
    process_forker = ProcessForker()
    yield process_forker
    process_forker.close()


@pytest.fixture(scope="module")  # its event loop excludes any other one
def browser() -> Iterator[Any]:
    """Chromium browser for tests of pages."""
    api = pytest.importorskip(
        "playwright.sync_api",
        reason="playwright is not installed; pip install playwright to test the pages",
    )
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} does not exist; apt install chromium to test the pages")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield opened
        opened.close()
