"""The annotator's page in a real browser: sign in, answer, undo, skip, change of mind."""

from server.pages.acting import press, ready, saved, says, verdicts
from server.pages.serving import until


def test_a_key_that_is_not_known_or_not_for_people_is_refused_in_words(visit):
    page = visit(key="nonsense")
    says(page, "#sign-in-note", "not known")
    page.fill("#sign-in-key", "key-app")
    page.keyboard.press("Enter")
    says(page, "#sign-in-note", "a key for a client; this page needs a key for an annotator")
    page.fill("#sign-in-key", "key-ada")
    page.keyboard.press("Enter")
    ready(page)
    assert page.text_content("#me") == "Ada"


def test_thirty_questions_are_answered_by_keyboard_and_nothing_is_said_twice(visit, site):
    page = visit()
    keys = ["c", "x", "ArrowRight", "ArrowLeft", "C"]
    meant = {"c": "correct", "x": "incorrect", "ArrowRight": "correct", "ArrowLeft": "incorrect"}
    expected, held = {}, []
    for n in range(30):
        key = keys[n % len(keys)]
        expected[press(page, key)] = meant.get(key, "correct")
        held.append(len(site.state.leases))
    saved(page)
    assert len(expected) == 30
    assert verdicts(site.state) == expected
    assert len(site.state.posts) == 30
    # The question on the screen, one ahead, and one whose answer is on its way.
    assert max(held) <= 3
    assert page.text_content("#today") == "30"
    assert page.text_content("#recent li .chip") == "Saved"
    assert page.heard == []


def test_the_label_is_asked_about_a_crisp_picture_and_the_confidence_is_not_told(visit):
    page = visit()
    ready(page)
    picture = page.locator("#frame img")
    box = picture.bounding_box()
    assert box["width"] >= 256
    assert box["width"] % 32 == 0
    assert picture.evaluate("one => getComputedStyle(one).imageRendering") == "pixelated"
    assert page.inner_text("#question") == "Is this an airplane?"
    said = page.inner_text("body")
    assert "55" not in said
    assert "0.9" not in said
    says(page, "#announcer", "Is this an airplane?")
    assert page.get_attribute("#correct", "aria-keyshortcuts") == "c ArrowRight"
    assert page.inner_text("#incorrect .keycaps").split() == ["x", "←"]


def test_undo_takes_back_an_answer_and_a_skip_and_asks_again(visit, site):
    page = visit()
    first = press(page, "c")
    second = press(page, "s")
    saved(page)
    assert verdicts(site.state) == {first: "correct", second: "skip"}
    ready(page)
    page.keyboard.press("u")
    assert ready(page) == second
    page.keyboard.press("u")
    assert ready(page) == first
    saved(page)
    assert verdicts(site.state) == {}
    assert press(page, "x") == first
    assert press(page, "c") == second
    saved(page)
    assert verdicts(site.state) == {first: "incorrect", second: "correct"}
    assert page.text_content("#today") == "2"


def test_undo_reaches_back_over_a_reload_and_says_when_it_was_learned_from(visit, site):
    page = visit()
    first = press(page, "c")
    saved(page)
    site.state.applied.add(site.state.feedback[0]["id"])
    with page.expect_request_finished(lambda request: "/v1/feedback?mine" in request.url):
        page.reload()
    assert ready(page) != first
    page.keyboard.press("u")
    says(page, "#notice", "already learned")
    assert ready(page) == first


def test_a_change_of_mind_replaces_the_answer_and_keeps_the_old_one_in_the_log(visit, site):
    page = visit()
    first = press(page, "c")
    saved(page)
    page.click("#history-open")
    page.click("text=Change to incorrect")
    until(lambda: verdicts(site.state) == {first: "incorrect"})
    assert [one["verdict"] for one in site.state.feedback] == ["correct", "incorrect"]
    assert site.state.feedback[1]["supersedes_id"] == site.state.feedback[0]["id"]
    says(page, "#history-list", "changed to incorrect")


def test_keys_do_nothing_while_somebody_types_or_holds_them_down(visit, site):
    page = visit()
    first = ready(page)
    page.click("#comment-open")
    page.keyboard.type("cxsu next to a box")
    assert site.state.posts == []
    page.keyboard.press("Escape")
    page.keyboard.down("c")
    ready(page)
    for _ in range(3):
        page.keyboard.down("c")
        page.wait_for_timeout(230)
    page.keyboard.up("c")
    page.focus("#correct")
    page.keyboard.down("Enter")
    for _ in range(2):
        page.wait_for_timeout(230)
        page.keyboard.down("Enter")
    saved(page)
    assert len(site.state.posts) == 2
    assert site.state.feedback[0]["prediction_id"] == first
    assert site.state.feedback[0]["comment"] == "cxsu next to a box"


def test_keys_can_be_changed_but_not_to_one_that_is_taken(visit, site):
    page = visit()
    ready(page)
    page.click("#keys-open")
    page.click("[data-action=correct]")
    page.keyboard.press("x")
    says(page, "#keys-note", "“x” already means “No, incorrect”")
    page.keyboard.press("j")
    says(page, "#keys-note", "“j” now means “Yes, correct”")
    page.keyboard.press("Escape")
    page.reload()
    ready(page)
    page.keyboard.press("c")
    first = press(page, "j")
    saved(page)
    assert verdicts(site.state) == {first: "correct"}
    assert page.inner_text("#correct .keycaps").split() == ["j", "→"]


def test_two_annotators_never_get_the_same_question(visit, site):
    ada, bo = visit(), visit(key="key-bo")
    for _ in range(4):
        press(ada, "c")
        press(bo, "x")
    saved(ada)
    saved(bo)
    given = {
        name: {one for by, one in site.state.given_out if by == name} for name in ("ada", "bo")
    }
    assert given["ada"].isdisjoint(given["bo"])
    assert len(verdicts(site.state, "ada")) == len(verdicts(site.state, "bo")) == 4


def test_markup_in_a_label_or_a_comment_is_shown_as_text(visit, site):
    label = "<img src=x onerror=\"document.title='ran'\"><b>cat</b>"
    site.state.labels[0] = label
    page = visit()
    ready(page)
    assert page.text_content("#label") == label
    page.click("#comment-open")
    page.keyboard.type("<script>document.title='ran'</script>")
    page.click("#correct")
    saved(page)
    page.click("#history-open")
    says(page, "#history-list", "<script>")
    assert page.locator("#label *, #history-list b, #history-list script").count() == 0
    assert page.title() == "Answer · bitta"


def test_when_there_is_nothing_to_ask_the_page_waits_and_goes_on_by_itself(visit, site):
    site.state.n_questions = 1
    page = visit()
    press(page, "c")
    says(page, "#idle-title", "No questions right now")
    site.state.n_questions = 2
    site.state.record("asked", {"n": 1})
    ready(page)
