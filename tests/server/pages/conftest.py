"""The pages, served by a stub of the API."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def site() -> Iterator[Any]:
    """Give a state and the address where its stub answers."""
    pytest.importorskip("fastapi", reason="fastapi is not installed; the pages are not served")
    from server.pages.serving import Site  # noqa: PLC0415

    with Site() as running:
        yield running


@pytest.fixture
def visit(browser: Any, site: Any) -> Iterator[Callable[..., Any]]:
    """Open a page in a browser of its own and sign in; no console error is left unseen."""
    contexts = []
    heard: list[str] = []

    def open_page(
        address: str = "/annotate", *, key: str | None = "key-ada", **options: Any
    ) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("console", lambda line: heard.append(line.text) if line.type == "error" else None)
        page.goto(site.url + address)
        if key is not None:
            page.fill("#sign-in-key", key)
            page.click("#sign-in-button")
        page.heard = heard
        return page

    yield open_page
    for context in contexts:
        context.close()
    # The browser writes failed requests to the console; tests that cause one expect it.
    assert [line for line in heard if "Failed to load resource" not in line] == []
