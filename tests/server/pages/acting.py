"""What a person does on the annotator's page."""

from typing import Any

_AHEAD = """() => {
  const places = Object.keys(localStorage).filter((name) => name.startsWith("bitta.held."));
  const held = places.flatMap((name) => JSON.parse(localStorage[name]));
  const entries = performance.getEntriesByType("resource").filter((entry) => entry.responseEnd > 0);
  const fetched = new Set(entries.map((entry) => entry.name));
  const here = ({ image_url }) => fetched.has(new URL(image_url, location.href).href);
  return held.length === 2 && held.every(here);
}"""


def open_page(browser: Any, url: str, key: str) -> tuple[Any, list[str]]:
    """Sign in in a browser of its own; gives the page, and what errors its console will show."""
    page = browser.new_context().new_page()
    page.set_default_timeout(30_000)
    heard: list[str] = []
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("console", lambda line: heard.append(line.text) if line.type == "error" else None)
    page.goto(url)
    page.fill("#sign-in-key", key)
    page.click("#sign-in-button")
    return page, heard


def ready(page: Any) -> str:
    """Wait for a question that can be answered, and give its prediction id."""
    page.wait_for_selector("#question-view:not([hidden]) #correct[aria-disabled=false]")
    page.wait_for_timeout(230)  # A press sooner than anybody sees is ignored.
    return str(page.get_attribute("#question-view", "data-prediction"))


def press(page: Any, key: str) -> str:
    """Answer the question on the screen with a key; gives its prediction id."""
    prediction = ready(page)
    page.keyboard.press(key)
    return prediction


def saved(page: Any) -> None:
    """Wait until the page says that everything is saved."""
    page.wait_for_selector("#state[data-state=saved]")


def verdicts(state: Any, annotator: str = "ada") -> dict[str, str]:
    """Verdicts that stand, by prediction id."""
    return {one["prediction_id"]: one["verdict"] for one in state.standing(annotator)}


def ahead(page: Any) -> None:
    """Wait for the next question and its picture; then two can be answered without a network."""
    page.wait_for_function(_AHEAD)


def says(page: Any, selector: str, text: str) -> None:
    """Wait until an element has a text in it."""
    from playwright.sync_api import expect  # noqa: PLC0415

    expect(page.locator(selector)).to_contain_text(text, timeout=30_000)
