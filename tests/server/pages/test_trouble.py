"""Networks that go away, answers that are lost on the way, leases that end, tabs side by side."""

from server.pages.acting import ahead, press, ready, saved, says, verdicts
from server.pages.serving import until
from server.pages.stub_state import micro


def test_answers_given_without_a_network_are_kept_and_sent_once(visit, site):
    page = visit()
    expected = {press(page, "c"): "correct"}
    saved(page)
    ready(page)
    ahead(page)
    page.context.set_offline(True)
    expected[press(page, "x")] = "incorrect"
    expected[press(page, "c")] = "correct"
    says(page, "#state", "Waiting for network · 2 answers kept")
    assert page.locator("#recent [data-state=waiting]").count() == 2
    says(page, "#idle-title", "Waiting for the network")
    assert len(verdicts(site.state)) == 1
    page.context.set_offline(False)
    ready(page)
    saved(page)
    assert verdicts(site.state) == expected
    assert len(site.state.feedback) == 3


def test_an_answer_that_waited_tells_when_it_was_given(visit, site):
    site.state.failing = [503]
    page = visit()
    ready(page)
    page.context.set_offline(True)
    began = micro() // 1000 * 1000
    press(page, "x")
    ended = micro()
    says(page, "#state", "Waiting for network")
    page.wait_for_timeout(1000)
    page.context.set_offline(False)
    until(lambda: len(site.state.posts) == 2)
    saved(page)
    (stored,) = site.state.feedback
    assert began <= stored["answered_at"] <= ended
    assert stored["received_at"] > ended + 900_000


def test_an_unsent_answer_outlives_the_page(visit, site):
    page = visit()
    ready(page)
    context = page.context
    context.set_offline(True)
    first = press(page, "x")
    says(page, "#state", "Waiting")
    page.close()
    context.set_offline(False)
    again = context.new_page()
    again.goto(site.url + "/annotate")
    until(lambda: verdicts(site.state) == {first: "incorrect"})
    assert ready(again) != first
    assert len(site.state.feedback) == 1


def test_an_unsent_answer_of_one_person_is_not_sent_under_the_name_of_another(visit, site):
    page = visit()
    ready(page)
    page.context.set_offline(True)
    first = press(page, "x")
    says(page, "#state", "Waiting")
    page.context.clear_cookies()
    page.context.set_offline(False)
    says(page, "#idle-title", "You are signed out")
    page.click("#idle-button")
    page.fill("#sign-in-key", "key-bo")
    page.click("#sign-in-button")
    second = press(page, "c")
    saved(page)
    assert verdicts(site.state, "ada") == {}
    assert verdicts(site.state, "bo") == {second: "correct"}
    page.click("#sign-out")
    page.fill("#sign-in-key", "key-ada")
    page.click("#sign-in-button")
    until(lambda: verdicts(site.state, "ada") == {first: "incorrect"})


def test_an_undo_without_a_network_never_reaches_the_server(visit, site):
    page = visit()
    ready(page)
    ahead(page)
    page.context.set_offline(True)
    page.keyboard.press("c")
    second = press(page, "s")
    page.keyboard.press("u")
    assert ready(page) == second
    page.context.set_offline(False)
    saved(page)
    assert second not in verdicts(site.state)
    assert len(site.state.feedback) == 1


def test_an_answer_whose_receipt_was_lost_is_a_success_when_repeated(visit, site):
    site.state.failing = [503]
    page = visit()
    first = press(page, "c")
    until(lambda: len(site.state.posts) == 2)
    saved(page)
    assert verdicts(site.state) == {first: "correct"}
    keys = {key for key, _ in site.state.posts}
    assert len(site.state.posts) == 2
    assert len(keys) == 1


def test_a_question_whose_answer_waits_is_not_asked_again(visit, site):
    page = visit()
    ready(page)
    ahead(page)
    site.state.down = True
    waiting = [press(page, "c"), press(page, "x")]
    says(page, "#state", "Waiting for the server · 2 answers kept")
    page.wait_for_timeout(300)
    assert page.locator("#question-view").is_hidden()
    site.state.down = False
    ready(page)
    saved(page)
    assert list(verdicts(site.state)) == waiting
    assert [one for _, one in site.state.given_out].count(waiting[0]) == 1


def test_a_question_that_expired_is_said_to_have_and_the_next_comes(visit, site):
    page = visit()
    first = ready(page)
    site.state.expired.add(first)
    page.keyboard.press("c")
    says(page, "#notice", "This question expired: “airplane”")
    assert ready(page) != first
    assert verdicts(site.state) == {}


def test_a_lease_that_ends_unused_brings_the_next_question_and_then_waits_for_a_person(visit, site):
    site.state.lease_seconds = 4
    page = visit()
    ready(page)
    says(page, "#notice", "This question expired")
    until(lambda: len(site.state.given_out) > 2)
    says(page, "#idle-title", "This question expired")
    given = len(site.state.given_out)
    page.wait_for_timeout(400)
    assert len(site.state.given_out) == given
    site.state.lease_seconds = 60
    page.click("#idle-button")
    answered = press(page, "c")
    until(lambda: verdicts(site.state) == {answered: "correct"})


def test_a_refusal_is_shown_with_its_reason_until_it_is_dismissed(visit, site):
    site.state.refuse = "the comment is too long"
    page = visit()
    press(page, "c")
    says(page, "#recent", "Refused: the comment is too long")
    assert "refused" in (page.text_content("#state") or "")
    site.state.refuse = None
    page.reload()
    says(page, "#recent", "Refused: the comment is too long")
    page.click("text=Dismiss")
    saved(page)
    assert page.locator("#recent li").count() == 0


def test_two_tabs_take_turns_and_hold_no_question_twice(visit, site):
    page = visit()
    first = ready(page)
    other = page.context.new_page()
    other.set_default_timeout(30_000)
    other.goto(site.url + "/annotate")
    says(page, "#idle-title", "another tab")
    assert press(other, "c") == first
    saved(other)
    page.click("#idle-button")
    second = press(page, "x")
    saved(page)
    says(other, "#idle-title", "another tab")
    assert verdicts(site.state) == {first: "correct", second: "incorrect"}
    assert len(site.state.posts) == 2


def test_a_picture_that_cannot_be_had_can_be_asked_for_again_and_the_question_skipped(visit, site):
    page = visit(key=None)
    page.context.route("**/image", lambda route: route.abort())
    page.fill("#sign-in-key", "key-ada")
    page.click("#sign-in-button")
    says(page, "#frame", "could not be loaded")
    page.keyboard.press("c")
    assert site.state.posts == []
    page.context.unroute("**/image")
    page.click("text=Load it again")
    first = press(page, "c")
    saved(page)
    assert verdicts(site.state) == {first: "correct"}
