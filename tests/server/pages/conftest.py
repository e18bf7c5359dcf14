"""Fixtures for the pages on a stub of the API."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def site() -> Iterator[Any]:
    """Yield a running stub."""
    pytest.importorskip("fastapi", reason="fastapi is not installed; the pages are not served")
    from server.pages.stub_server import StubSite  # noqa: PLC0415

    with StubSite() as running:
        yield running


@pytest.fixture
def visit(browser: Any, site: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens a page and signs in. Unexpected console errors fail the test."""
    contexts = []
    console_errors: list[str] = []

    def open_page(
        address: str = "/annotate", *, key: str | None = "key-ada", **options: Any
    ) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: console_errors.append(str(error)))
        page.on(
            "console",
            lambda line: console_errors.append(line.text) if line.type == "error" else None,
        )
        page.goto(site.url + address)
        if key is not None:
            page.fill("#sign-in-key", key)
            page.click("#sign-in-button")
        page.console_errors = console_errors
        return page

    yield open_page
    for context in contexts:
        context.close()
    # The browser writes failed requests to the console; tests that cause one expect it.
    assert [line for line in console_errors if "Failed to load resource" not in line] == []
