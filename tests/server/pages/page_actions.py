"""Actions of a person on the pages, and waiting for their effects."""

from typing import Any

_HOLDS_TWO_LOADED_QUESTIONS = """() => {
  const names = Object.keys(localStorage).filter((name) => name.startsWith("bitta.held."));
  const held = names.flatMap((name) => JSON.parse(localStorage[name]));
  const entries = performance.getEntriesByType("resource").filter((entry) => entry.responseEnd > 0);
  const fetched = new Set(entries.map((entry) => entry.name));
  const isLoaded = ({ image_url }) => fetched.has(new URL(image_url, location.href).href);
  return held.length === 2 && held.every(isLoaded);
}"""


def open_page(browser: Any, url: str, key: str) -> tuple[Any, list[str]]:
    """Open a page in a new context and sign in. Return the page and the list of console errors."""
    page = browser.new_context().new_page()
    page.set_default_timeout(30_000)
    console_errors: list[str] = []
    page.on("pageerror", lambda error: console_errors.append(str(error)))
    page.on(
        "console", lambda line: console_errors.append(line.text) if line.type == "error" else None
    )
    page.goto(url)
    page.fill("#sign-in-key", key)
    page.click("#sign-in-button")
    return page, console_errors


def wait_for_question(page: Any) -> str:
    """Wait for a question that can be answered, and return its prediction id."""
    page.wait_for_selector("#question-view:not([hidden]) #correct[aria-disabled=false]")
    page.wait_for_timeout(230)  # The page ignores presses within 200 ms.
    return str(page.get_attribute("#question-view", "data-prediction"))


def press_key(page: Any, key: str) -> str:
    """Answer the question on the screen with a key, and return its prediction id."""
    prediction = wait_for_question(page)
    page.keyboard.press(key)
    return prediction


def wait_until_saved(page: Any) -> None:
    """Wait until the page shows that everything is saved."""
    page.wait_for_selector("#state[data-state=saved]")


def verdicts(state: Any, annotator: str = "ada") -> dict[str, str]:
    """Return the current verdicts of an annotator, by prediction id."""
    return {one["prediction_id"]: one["verdict"] for one in state.current_answers(annotator)}


def wait_until_prefetched(page: Any) -> None:
    """Wait until two questions and their pictures are loaded. They can be answered offline."""
    page.wait_for_function(_HOLDS_TWO_LOADED_QUESTIONS)


def wait_for_text(page: Any, selector: str, text: str) -> None:
    """Wait until an element contains a text."""
    from playwright.sync_api import expect  # noqa: PLC0415

    expect(page.locator(selector)).to_contain_text(text, timeout=30_000)
