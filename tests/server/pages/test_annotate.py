"""The annotator's page: sign in, answer, skip, undo, change an answer."""

import pytest

from server.pages.page_actions import (
    press_key,
    verdicts,
    wait_for_question,
    wait_for_text,
    wait_until_saved,
)
from server.pages.stub_server import until

pytestmark = pytest.mark.full


def test_unknown_key_and_client_key_are_refused(visit):
    page = visit(key="nonsense")
    wait_for_text(page, "#sign-in-note", "does not know that key")
    page.fill("#sign-in-key", "key-app")
    page.keyboard.press("Enter")
    wait_for_text(
        page, "#sign-in-note", "a key for a client; this page needs a key for an annotator"
    )
    page.fill("#sign-in-key", "key-ada")
    page.keyboard.press("Enter")
    wait_for_question(page)
    assert page.text_content("#me") == "Ada"


def test_thirty_answers_by_keyboard_are_each_stored_once(visit, site):
    page = visit()
    keys = ["c", "x", "ArrowRight", "ArrowLeft", "C"]
    verdict_of_key = {
        "c": "correct",
        "x": "incorrect",
        "ArrowRight": "correct",
        "ArrowLeft": "incorrect",
    }
    expected, held = {}, []
    for n in range(30):
        key = keys[n % len(keys)]
        expected[press_key(page, key)] = verdict_of_key.get(key, "correct")
        held.append(len(site.state.leases))
    wait_until_saved(page)
    assert len(expected) == 30
    assert verdicts(site.state) == expected
    assert len(site.state.posts) == 30
    # The question on the screen, one wait_until_prefetched, and one whose answer is on its way.
    assert max(held) <= 3
    assert page.text_content("#today") == "30"
    assert page.text_content("#recent li .chip") == "Saved"
    assert page.console_errors == []


def test_question_has_sharp_picture_and_hides_the_confidence(visit):
    page = visit()
    wait_for_question(page)
    picture = page.locator("#frame img")
    box = picture.bounding_box()
    assert box["width"] >= 256
    assert box["width"] % 32 == 0
    assert picture.evaluate("one => getComputedStyle(one).imageRendering") == "pixelated"
    assert page.inner_text("#question") == "Is this an airplane?"
    said = page.inner_text("body")
    assert "55" not in said
    assert "0.9" not in said
    wait_for_text(page, "#announcer", "Is this an airplane?")
    assert page.get_attribute("#correct", "aria-keyshortcuts") == "c ArrowRight"
    assert page.inner_text("#incorrect .keycaps").split() == ["x", "←"]


def test_undo_of_answer_and_skip_shows_the_question_again(visit, site):
    page = visit()
    first = press_key(page, "c")
    second = press_key(page, "s")
    wait_until_saved(page)
    assert verdicts(site.state) == {first: "correct", second: "skip"}
    wait_for_question(page)
    page.keyboard.press("u")
    assert wait_for_question(page) == second
    page.keyboard.press("u")
    assert wait_for_question(page) == first
    wait_until_saved(page)
    assert verdicts(site.state) == {}
    assert press_key(page, "x") == first
    assert press_key(page, "c") == second
    wait_until_saved(page)
    assert verdicts(site.state) == {first: "incorrect", second: "correct"}
    assert page.text_content("#today") == "2"


def test_undo_works_after_reload_and_tells_if_the_model_had_learned(visit, site):
    page = visit()
    first = press_key(page, "c")
    wait_until_saved(page)
    site.state.applied_ids.add(site.state.feedback[0]["id"])
    with page.expect_request_finished(lambda request: "/v1/feedback?mine" in request.url):
        page.reload()
    assert wait_for_question(page) != first
    page.keyboard.press("u")
    wait_for_text(page, "#notice", "already learned")
    assert wait_for_question(page) == first


def test_changed_answer_replaces_the_old_one_and_keeps_it_in_the_log(visit, site):
    page = visit()
    first = press_key(page, "c")
    wait_until_saved(page)
    page.click("#history-open")
    page.click("text=Change to incorrect")
    until(lambda: verdicts(site.state) == {first: "incorrect"})
    assert [one["verdict"] for one in site.state.feedback] == ["correct", "incorrect"]
    assert site.state.feedback[1]["supersedes_id"] == site.state.feedback[0]["id"]
    wait_for_text(page, "#history-list", "changed to incorrect")


def test_shortcuts_ignore_typing_and_held_keys(visit, site):
    page = visit()
    first = wait_for_question(page)
    page.click("#comment-open")
    page.keyboard.type("cxsu next to a box")
    assert site.state.posts == []
    page.keyboard.press("Escape")
    page.keyboard.down("c")
    wait_for_question(page)
    for _ in range(3):
        page.keyboard.down("c")
        page.wait_for_timeout(230)
    page.keyboard.up("c")
    page.focus("#correct")
    page.keyboard.down("Enter")
    for _ in range(2):
        page.wait_for_timeout(230)
        page.keyboard.down("Enter")
    wait_until_saved(page)
    assert len(site.state.posts) == 2
    assert site.state.feedback[0]["prediction_id"] == first
    assert site.state.feedback[0]["comment"] == "cxsu next to a box"


def test_shortcut_can_be_changed_to_a_free_key(visit, site):
    page = visit()
    wait_for_question(page)
    page.click("#keys-open")
    page.click("[data-action=correct]")
    page.keyboard.press("x")
    wait_for_text(page, "#keys-note", "“x” already means “No, incorrect”")
    page.keyboard.press("j")
    wait_for_text(page, "#keys-note", "“j” now means “Yes, correct”")
    page.keyboard.press("Escape")
    page.reload()
    wait_for_question(page)
    page.keyboard.press("c")
    first = press_key(page, "j")
    wait_until_saved(page)
    assert verdicts(site.state) == {first: "correct"}
    assert page.inner_text("#correct .keycaps").split() == ["j", "→"]


def test_two_annotators_get_different_questions(visit, site):
    ada, bo = visit(), visit(key="key-bo")
    for _ in range(4):
        press_key(ada, "c")
        press_key(bo, "x")
    wait_until_saved(ada)
    wait_until_saved(bo)
    given = {name: {one for by, one in site.state.leased if by == name} for name in ("ada", "bo")}
    assert given["ada"].isdisjoint(given["bo"])
    assert len(verdicts(site.state, "ada")) == len(verdicts(site.state, "bo")) == 4


def test_markup_in_label_and_comment_is_shown_as_text(visit, site):
    label = "<img src=x onerror=\"document.title='ran'\"><b>cat</b>"
    site.state.labels[0] = label
    page = visit()
    wait_for_question(page)
    assert page.text_content("#label") == label
    page.click("#comment-open")
    page.keyboard.type("<script>document.title='ran'</script>")
    page.click("#correct")
    wait_until_saved(page)
    page.click("#history-open")
    wait_for_text(page, "#history-list", "<script>")
    assert page.locator("#label *, #history-list b, #history-list script").count() == 0
    assert page.title() == "Answer · bitta"


def test_page_without_question_waits_for_the_next_one(visit, site):
    site.state.n_questions = 1
    page = visit()
    press_key(page, "c")
    wait_for_text(page, "#idle-title", "No questions right now")
    site.state.n_questions = 2
    site.state.record("asked", {"n": 1})
    wait_for_question(page)
