"""Everybody can use the pages: no serious finding of axe-core, no sideways scrolling on a phone."""

from pathlib import Path

import pytest

from server.pages.acting import press, ready, saved

AXE = Path(__file__).with_name("axe.min.js")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def findings(page):
    """What axe-core calls serious, in light and in dark."""
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


def test_the_annotators_page_has_no_serious_violation(visit):
    # The tests' own script is let past the policy; the page's stays under it everywhere else.
    page = visit(key=None, bypass_csp=True)
    page.wait_for_selector("#sign-in-key")
    assert findings(page) == []
    page.fill("#sign-in-key", "key-ada")
    page.click("#sign-in-button")
    press(page, "c")
    press(page, "x")
    saved(page)
    ready(page)
    assert findings(page) == []
    page.click("#history-open")
    page.wait_for_selector("#history-list button")
    assert findings(page) == []
    page.keyboard.press("Escape")
    page.click("#keys-open")
    assert findings(page) == []


def test_the_operators_page_has_no_serious_violation(visit, site):
    site.state.collapse = {"state": "suspect", "reasons": ["entropy of the classes fell"]}
    page = visit("/operate", key="key-op", bypass_csp=True)
    page.wait_for_selector("#versions li")
    page.wait_for_selector("#accuracy-plot .band")
    assert findings(page) == []
    page.click("#pause")
    assert findings(page) == []


@pytest.mark.parametrize(("address", "key"), [("/annotate", "key-ada"), ("/operate", "key-op")])
def test_a_phone_shows_everything_without_scrolling_sideways(visit, site, address, key):
    site.state.labels[0] = "a-very-long-label-without-any-space-in-it-" * 3
    page = visit(address, key=key, **PHONE)
    page.wait_for_selector("#question-view #correct[aria-disabled=false], #accuracy-plot .band")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_on_a_phone_picture_and_buttons_are_on_the_screen_and_large_enough_to_hit(visit, site):
    page = visit(**PHONE)
    ready(page)
    for name in ("correct", "incorrect", "skip", "undo"):
        box = page.locator(f"#{name}").bounding_box()
        assert box["height"] >= 44
        assert box["y"] + box["height"] <= 844
    page.tap("#correct")
    saved(page)
    assert len(site.state.feedback) == 1


def test_everything_is_reached_by_the_tab_key_in_order(visit):
    page = visit()
    ready(page)
    page.focus("#sign-out")
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id"))
    assert order == ["incorrect", "correct", "undo", "skip", "comment-open"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
