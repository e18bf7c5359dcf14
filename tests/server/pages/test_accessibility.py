"""Accessibility: axe-core, phone screens, keyboard."""

from pathlib import Path

import pytest

from server.pages.page_actions import press_key, wait_for_question, wait_until_saved

pytestmark = pytest.mark.full

AXE = Path(__file__).with_name("axe.min.js")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def violations(page):
    """Return the serious violations that axe-core finds, in the light and the dark scheme."""
    if not page.evaluate("'axe' in window"):
        page.add_script_tag(path=AXE)
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found += page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{one['id']}: {one['help']} {[node['html'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def test_annotator_page_has_no_serious_violation(visit):
    # The policy of the page would block the script of axe-core.
    page = visit(key=None, bypass_csp=True)
    page.wait_for_selector("#sign-in-key")
    assert violations(page) == []
    page.fill("#sign-in-key", "key-ada")
    page.click("#sign-in-button")
    press_key(page, "c")
    press_key(page, "x")
    wait_until_saved(page)
    wait_for_question(page)
    assert violations(page) == []
    page.click("#history-open")
    page.wait_for_selector("#history-list button")
    assert violations(page) == []
    page.keyboard.press("Escape")
    page.click("#keys-open")
    assert violations(page) == []


def test_operator_page_has_no_serious_violation(visit, site):
    site.state.collapse = {"state": "suspect", "reasons": ["entropy of the classes fell"]}
    page = visit("/operate", key="key-op", bypass_csp=True)
    page.wait_for_selector("#versions li")
    page.wait_for_selector("#accuracy-plot .band")
    assert violations(page) == []
    page.click("#pause")
    assert violations(page) == []


@pytest.mark.parametrize(("address", "key"), [("/annotate", "key-ada"), ("/operate", "key-op")])
def test_phone_needs_no_horizontal_scrolling(visit, site, address, key):
    site.state.labels[0] = "a-very-long-label-without-any-space-in-it-" * 3
    page = visit(address, key=key, **PHONE)
    page.wait_for_selector("#question-view #correct[aria-disabled=false], #accuracy-plot .band")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_phone_shows_large_buttons_without_scrolling(visit, site):
    page = visit(**PHONE)
    wait_for_question(page)
    for name in ("correct", "incorrect", "skip", "undo"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["height"] >= 44
        assert box["y"] + box["height"] <= 844
    page.tap("#correct")
    wait_until_saved(page)
    assert len(site.state.feedback) == 1


def test_tab_key_reaches_the_buttons_in_order(visit):
    page = visit()
    wait_for_question(page)
    page.focus("#sign-out")
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id"))
    assert order == ["incorrect", "correct", "undo", "skip", "comment-open"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
