"""The annotator's page with lost networks and responses, ended leases, and several tabs."""

import pytest

from server.pages.page_actions import (
    press_key,
    verdicts,
    wait_for_question,
    wait_for_text,
    wait_until_prefetched,
    wait_until_saved,
)
from server.pages.stub_server import until
from server.pages.stub_state import now_microseconds

pytestmark = pytest.mark.full


def test_offline_answers_are_kept_and_sent_once(visit, site):
    page = visit()
    expected = {press_key(page, "c"): "correct"}
    wait_until_saved(page)
    wait_for_question(page)
    wait_until_prefetched(page)
    page.context.set_offline(True)
    expected[press_key(page, "x")] = "incorrect"
    expected[press_key(page, "c")] = "correct"
    wait_for_text(page, "#state", "Waiting for the network · 2 answers kept")
    assert page.locator("#recent [data-state=waiting]").count() == 2
    wait_for_text(page, "#idle-title", "Waiting for the network")
    assert len(verdicts(site.state)) == 1
    page.context.set_offline(False)
    wait_for_question(page)
    wait_until_saved(page)
    assert verdicts(site.state) == expected
    assert len(site.state.feedback) == 3


def test_answer_sent_late_has_the_time_it_was_given(visit, site):
    site.state.lost_responses = [503]
    page = visit()
    wait_for_question(page)
    page.context.set_offline(True)
    began = now_microseconds() // 1000 * 1000
    press_key(page, "x")
    ended = now_microseconds()
    wait_for_text(page, "#state", "Waiting for the network")
    page.wait_for_timeout(1000)
    page.context.set_offline(False)
    until(lambda: len(site.state.posts) == 2)
    wait_until_saved(page)
    (stored,) = site.state.feedback
    assert began <= stored["answered_at"] <= ended
    assert stored["received_at"] > ended + 900_000


def test_unsent_answer_survives_closing_the_page(visit, site):
    page = visit()
    wait_for_question(page)
    context = page.context
    context.set_offline(True)
    first = press_key(page, "x")
    wait_for_text(page, "#state", "Waiting")
    page.close()
    context.set_offline(False)
    again = context.new_page()
    again.goto(site.url + "/annotate")
    until(lambda: verdicts(site.state) == {first: "incorrect"})
    assert wait_for_question(again) != first
    assert len(site.state.feedback) == 1


def test_unsent_answer_is_sent_only_by_its_annotator(visit, site):
    page = visit()
    wait_for_question(page)
    page.context.set_offline(True)
    first = press_key(page, "x")
    wait_for_text(page, "#state", "Waiting")
    page.context.clear_cookies()
    page.context.set_offline(False)
    wait_for_text(page, "#idle-title", "You are signed out")
    page.click("#idle-button")
    page.fill("#sign-in-key", "key-bo")
    page.click("#sign-in-button")
    second = press_key(page, "c")
    wait_until_saved(page)
    assert verdicts(site.state, "ada") == {}
    assert verdicts(site.state, "bo") == {second: "correct"}
    page.click("#sign-out")
    page.fill("#sign-in-key", "key-ada")
    page.click("#sign-in-button")
    until(lambda: verdicts(site.state, "ada") == {first: "incorrect"})


def test_offline_undo_of_unsent_answer_sends_nothing(visit, site):
    page = visit()
    wait_for_question(page)
    wait_until_prefetched(page)
    page.context.set_offline(True)
    page.keyboard.press("c")
    second = press_key(page, "s")
    page.keyboard.press("u")
    assert wait_for_question(page) == second
    page.context.set_offline(False)
    wait_until_saved(page)
    assert second not in verdicts(site.state)
    assert len(site.state.feedback) == 1


def test_answer_with_lost_response_is_stored_once(visit, site):
    site.state.lost_responses = [503]
    page = visit()
    first = press_key(page, "c")
    until(lambda: len(site.state.posts) == 2)
    wait_until_saved(page)
    assert verdicts(site.state) == {first: "correct"}
    keys = {key for key, _ in site.state.posts}
    assert len(site.state.posts) == 2
    assert len(keys) == 1


def test_question_with_waiting_answer_is_not_shown_again(visit, site):
    page = visit()
    wait_for_question(page)
    wait_until_prefetched(page)
    site.state.is_unavailable = True
    waiting = [press_key(page, "c"), press_key(page, "x")]
    wait_for_text(page, "#state", "Waiting for the server · 2 answers kept")
    page.wait_for_timeout(300)
    assert page.locator("#question-view").is_hidden()
    site.state.is_unavailable = False
    wait_for_question(page)
    wait_until_saved(page)
    assert list(verdicts(site.state)) == waiting
    assert [one for _, one in site.state.leased].count(waiting[0]) == 1


def test_expired_question_shows_a_notice_and_the_next_question(visit, site):
    page = visit()
    first = wait_for_question(page)
    site.state.expired_ids.add(first)
    page.keyboard.press("c")
    wait_for_text(page, "#notice", "This question expired: “airplane”")
    assert wait_for_question(page) != first
    assert verdicts(site.state) == {}


def test_page_pauses_after_two_unused_leases(visit, site):
    site.state.lease_seconds = 4
    page = visit()
    wait_for_question(page)
    wait_for_text(page, "#notice", "Your time for this question is over")
    until(lambda: len(site.state.leased) > 2)
    wait_for_text(page, "#idle-title", "Your time for this question is over")
    given = len(site.state.leased)
    page.wait_for_timeout(400)
    assert len(site.state.leased) == given
    site.state.lease_seconds = 60
    page.click("#idle-button")
    answered = press_key(page, "c")
    until(lambda: verdicts(site.state) == {answered: "correct"})


def test_refused_answer_is_shown_until_dismissed(visit, site):
    site.state.refusal = "the comment is too long"
    page = visit()
    press_key(page, "c")
    wait_for_text(page, "#recent", "Refused: the comment is too long")
    assert "refused" in (page.text_content("#state") or "")
    site.state.refusal = None
    page.reload()
    wait_for_text(page, "#recent", "Refused: the comment is too long")
    page.click("text=Dismiss")
    wait_until_saved(page)
    assert page.locator("#recent li").count() == 0


def test_only_one_of_two_tabs_is_active(visit, site):
    page = visit()
    first = wait_for_question(page)
    other = page.context.new_page()
    other.set_default_timeout(30_000)
    other.goto(site.url + "/annotate")
    wait_for_text(page, "#idle-title", "another tab")
    assert press_key(other, "c") == first
    wait_until_saved(other)
    page.click("#idle-button")
    second = press_key(page, "x")
    wait_until_saved(page)
    wait_for_text(other, "#idle-title", "another tab")
    assert verdicts(site.state) == {first: "correct", second: "incorrect"}
    assert len(site.state.posts) == 2


def test_picture_that_failed_to_load_can_be_loaded_again(visit, site):
    page = visit(key=None)
    page.context.route("**/image", lambda route: route.abort())
    page.fill("#sign-in-key", "key-ada")
    page.click("#sign-in-button")
    wait_for_text(page, "#frame", "could not be loaded")
    page.keyboard.press("c")
    assert site.state.posts == []
    page.context.unroute("**/image")
    page.click("text=Load it again")
    first = press_key(page, "c")
    wait_until_saved(page)
    assert verdicts(site.state) == {first: "correct"}
