"""The operator's page in a real browser."""

from server.pages.acting import press, ready, says
from server.pages.serving import until


def test_an_annotators_key_does_not_open_it(visit):
    page = visit("/operate")
    says(page, "#sign-in-note", "this page needs a key for an operator")
    assert page.locator("#dashboard").is_hidden()


def test_it_plots_what_is_measured_with_the_interval_of_the_accuracy(visit):
    page = visit("/operate", key="key-op")
    page.wait_for_selector("#accuracy-plot .band")
    assert page.locator(".plot svg path.line").count() == 5
    assert page.text_content("#accuracy") == "80.7 %"
    assert "74.8 % to 85.4 %" in page.text_content("#accuracy-note")
    assert page.text_content("#confidence-note") == "5.2 points below the start (76.4 %)"
    assert page.locator("#confidence-plot .reference").count() == 1
    assert "Accuracy: " in page.get_attribute("#accuracy-plot svg", "aria-label")
    assert page.heard == []


def test_a_rollback_needs_a_yes_and_takes_a_reason(visit, site):
    page = visit("/operate", key="key-op")
    page.click("[data-snapshot=snap20] button")
    page.click("#confirm-cancel")
    assert site.state.version == "1.40"
    page.click("[data-snapshot=snap20] button")
    page.fill("#confirm-reason", "frogs <b>everywhere</b>")
    page.click("#confirm-go")
    says(page, "#version", "Version 2.20")
    assert site.state.events[-1][2]["reason"] == "frogs <b>everywhere</b>"
    says(page, "#log", "Rolled back from version 1.40 by op: frogs <b>everywhere</b>")


def test_learning_is_paused_with_a_reason_and_goes_on(visit, site):
    page = visit("/operate", key="key-op")
    page.click("#pause")
    page.fill("#confirm-reason", "camera is being moved")
    page.click("#confirm-go")
    says(page, "#learning", "learning paused: camera is being moved")
    assert site.state.paused == "camera is being moved"
    page.click("#resume")
    says(page, "#learning", "learning: 40 steps")
    assert site.state.paused is None


def test_questions_say_why_they_are_asked_and_a_collapse_is_said_in_words(visit, site):
    page = visit("/operate", key="key-op")
    page.wait_for_selector("#questions li")
    assert page.locator("#questions li").count() == 12
    assert "The model was unsure" in page.text_content("#questions li:nth-child(1)")
    assert "Random audit" in page.text_content("#questions li:nth-child(4)")
    assert page.locator("#warning").is_hidden()
    reason = "audit accuracy fell to 31 %"
    site.state.collapse = {"state": "rolled back", "reasons": [reason]}
    says(page, "#warning", "The model collapsed and was rolled back")
    assert reason in page.text_content("#warning-list")


def test_a_version_is_marked_while_it_serves_and_no_longer(visit, site):
    page = visit("/operate", key="key-op")
    page.wait_for_selector("#versions .chip:visible")
    assert page.locator("#versions .chip:visible").count() == 1
    site.state.version = "1.41"
    says(page, "#version", "Version 1.41")
    until(lambda: page.locator("#versions .chip:visible").count() == 0)


def test_an_answer_is_seen_without_a_reload(visit):
    operator, annotator = visit("/operate", key="key-op"), visit()
    ready(annotator)
    says(operator, "#connection", "Live")
    press(annotator, "c")
    says(operator, "#log", "An answer came in.")
    until(lambda: operator.text_content("#people tr:first-child .number") == "1")


def test_it_comes_back_after_the_network_did(visit, site):
    page = visit("/operate", key="key-op")
    says(page, "#connection", "Live")
    with site.without_streams():
        says(page, "#connection", "Reconnecting")
    says(page, "#connection", "Live")
