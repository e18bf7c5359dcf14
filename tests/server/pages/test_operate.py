"""The operator's page: plots, rollback, pause, questions, versions, events."""

import pytest

from server.pages.page_actions import press_key, wait_for_question, wait_for_text
from server.pages.stub_server import until

pytestmark = pytest.mark.full


def test_annotator_key_is_refused(visit):
    page = visit("/operate")
    wait_for_text(page, "#sign-in-note", "this page needs a key for an operator")
    assert page.locator("#dashboard").is_hidden()


def test_plots_show_the_status_with_the_interval_of_the_accuracy(visit):
    page = visit("/operate", key="key-op")
    page.wait_for_selector("#accuracy-plot .band")
    assert page.locator(".plot svg path.line").count() == 5
    assert page.text_content("#accuracy") == "80.7 %"
    assert "74.8 % to 85.4 %" in page.text_content("#accuracy-note")
    assert page.text_content("#confidence-note") == "5.2 points below the start (76.4 %)"
    assert page.locator("#confidence-plot .reference").count() == 1
    assert page.text_content("#rate-note") == "200 questions asked, 0 expired; 0 answers, 0 skipped"
    assert "Accuracy: " in page.get_attribute("#accuracy-plot svg", "aria-label")
    assert page.console_errors == []


def test_rollback_needs_confirmation_and_takes_a_reason(visit, site):
    page = visit("/operate", key="key-op")
    page.click("[data-snapshot=snap20] button")
    page.click("#confirm-cancel")
    assert site.state.version == "1.40"
    page.click("[data-snapshot=snap20] button")
    page.fill("#confirm-reason", "frogs <b>everywhere</b>")
    page.click("#confirm-go")
    wait_for_text(page, "#version", "Version 2.20")
    assert site.state.events[-1][2]["reason"] == "frogs <b>everywhere</b>"
    wait_for_text(page, "#log", "Rolled back from version 1.40 by op: frogs <b>everywhere</b>")


def test_learning_pauses_with_a_reason_and_resumes(visit, site):
    page = visit("/operate", key="key-op")
    page.click("#pause")
    page.fill("#confirm-reason", "camera is being moved")
    page.click("#confirm-go")
    wait_for_text(page, "#learning", "learning paused: camera is being moved")
    assert site.state.pause_reason == "camera is being moved"
    page.click("#resume")
    wait_for_text(page, "#learning", "learning: 40 steps")
    assert site.state.pause_reason is None


def test_questions_have_reasons_and_a_collapse_shows_a_warning(visit, site):
    page = visit("/operate", key="key-op")
    page.wait_for_selector("#questions li")
    assert page.locator("#questions li").count() == 12
    assert "The model was unsure" in page.text_content("#questions li:nth-child(1)")
    assert "Random audit" in page.text_content("#questions li:nth-child(4)")
    assert page.locator("#warning").is_hidden()
    reason = "audit accuracy fell to 31 %"
    site.state.collapse = {"state": "rolled back", "reasons": [reason]}
    wait_for_text(page, "#warning", "The model collapsed and was rolled back")
    assert reason in page.text_content("#warning-list")


def test_only_the_served_version_is_marked(visit, site):
    page = visit("/operate", key="key-op")
    page.wait_for_selector("#versions .chip:visible")
    assert page.locator("#versions .chip:visible").count() == 1
    site.state.version = "1.41"
    wait_for_text(page, "#version", "Version 1.41")
    until(lambda: page.locator("#versions .chip:visible").count() == 0)


def test_new_answer_appears_without_reload(visit):
    operator, annotator = visit("/operate", key="key-op"), visit()
    wait_for_question(annotator)
    wait_for_text(operator, "#connection", "Live")
    press_key(annotator, "c")
    wait_for_text(operator, "#log", "An answer was stored.")
    until(lambda: operator.text_content("#people tr:first-child .number") == "1")


def test_page_reconnects_after_a_restart(visit, site):
    page = visit("/operate", key="key-op")
    wait_for_text(page, "#connection", "Live")
    with site.without_streams():
        wait_for_text(page, "#connection", "Reconnecting")
    wait_for_text(page, "#connection", "Live")
