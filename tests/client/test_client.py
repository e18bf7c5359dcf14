"""Calls, retries and errors of the client."""

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from bitta.client import (
    AccessError,
    Client,
    ClientError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    Question,
    RateError,
    RefusedError,
    UnavailableError,
)
from bitta.errors import BittaError, SettingError
from client.fake_server import KEY, PNG, FakeServer


def keys(server):
    return [call[2]["idempotency-key"] for call in server.calls]


def test_a_question_is_answered_under_its_lease(client, server):
    server.ask("p7")
    question = client.next_question()
    assert question == Question(
        prediction_id="p7", label="cat", class_index=0, confidence=0.75, uncertainty=0.2,
        model_version="1.3", asked_at=5, expires_at=9, lease="lease-p7", lease_until=8, left=1,
        has_image=True,
    )  # fmt: skip
    given = client.answer(question, correct=False, comment="a dog", answered_at=7, lead_time_ms=800)
    assert (given.id, given.verdict, given.status, given.repeated) == (
        "f0", "incorrect", "pending", False,
    )  # fmt: skip
    assert server.records[0]["body"] == {
        "prediction_id": "p7", "verdict": "incorrect", "lease": "lease-p7", "comment": "a dog",
        "answered_at": 7, "lead_time_ms": 800, "annotator_kind": "HUMAN",
    }  # fmt: skip
    assert client.next_question() is None


def test_an_application_answers_about_what_it_was_served(client, server):
    [served] = client.predict(b"png")
    client.answer(served, verdict="skip", metadata={"page": 3}, kind="CODE")
    assert server.records[0]["body"] == {
        "prediction_id": "p0", "verdict": "skip", "metadata": {"page": 3},
        "annotator_kind": "CODE",
    }  # fmt: skip


def test_status_image_and_undo(client):
    assert client.status() == {"model": {"version": "1.3"}}
    assert client.image("p7") == PNG
    given = client.answer("p7", correct=True)
    undone = client.undo(given.id)
    assert (undone.feedback_id, undone.applied, undone.note) == ("f0", False, "Not learned.")


@pytest.mark.parametrize(
    "given",
    [{}, {"correct": True, "verdict": "correct"}, {"correct": 1}, {"verdict": "yes"}],
    ids=str,
)
def test_a_verdict_is_one_of_three_and_given_once(client, server, given):
    with pytest.raises(SettingError, match=r"allowed|one of the two"):
        client.answer("p", **given)
    assert server.calls == []


@pytest.mark.parametrize(
    "trouble",
    [500, 502, 503, 504, 429, 408, httpx.ConnectError("refused"), httpx.ReadTimeout("slow"),
     httpx.RemoteProtocolError("cut"), ("after", httpx.ReadError("cut")), ("after", 500)],
    ids=str,
)  # fmt: skip
def test_an_answer_is_tried_again_under_the_same_key_and_stored_once(
    client, server, pauses, trouble
):
    server.troubles = [trouble, trouble]
    given = client.answer("p1", correct=True)
    assert given.id == "f0"
    assert given.repeated == (isinstance(trouble, tuple))
    assert len(server.records) == 1
    assert len(keys(server)) == 3
    assert len(set(keys(server))) == 1
    assert len(pauses) == 2


def test_two_answers_have_two_keys(client, server):
    client.answer("p1", correct=True)
    client.answer("p2", correct=True)
    assert len(set(keys(server))) == 2


def test_waits_double_and_hold_chance(client, server, pauses):
    server.troubles = [503] * 5
    client.answer("p1", correct=True)
    longest = [0.2, 0.4, 0.8, 1.6, 3.2]
    assert all(most / 2 <= slept <= most for slept, most in zip(pauses, longest, strict=True))


def test_the_server_says_how_long_to_wait(client, server, pauses):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=12), usegmt=True)
    server.troubles = [(429, {"Retry-After": "7"}), (503, {"Retry-After": date}),
                       (503, {"Retry-After": "whenever"})]  # fmt: skip
    client.status()
    assert pauses[0] == 7
    assert 9 < pauses[1] <= 12
    assert pauses[2] < 1


def test_nobody_waits_for_a_server_that_asks_for_minutes(client, server, pauses):
    server.troubles = [(429, {"Retry-After": "600"})]
    with pytest.raises(RateError, match="not now"):
        client.status()
    assert pauses == []


def test_in_the_end_the_client_gives_up_with_the_servers_sentence(server, pauses):
    server.troubles = [503] * 3
    with (
        Client("http://server", KEY, retries=2, transport=server.transport) as client,
        pytest.raises(UnavailableError, match=r"^not now\.$") as caught,
    ):
        client.answer("p1", correct=True)
    assert (caught.value.status, caught.value.code) == (503, "busy")
    assert len(pauses) == 2


def test_without_a_server_the_error_names_the_address(pauses):
    with (
        Client("http://127.0.0.1:1", KEY, retries=1, timeout=2) as client,
        pytest.raises(UnavailableError, match=r"no answer from http://127\.0\.0\.1:1 \(.+\)"),
    ):
        client.status()
    assert len(pauses) == 1


@pytest.mark.parametrize("trouble", [503, 429, httpx.ConnectError("refused")], ids=str)
def test_a_prediction_is_tried_again_when_it_was_surely_not_served(client, server, pauses, trouble):
    client.predict(b"one")
    server.troubles = [trouble]
    assert client.predict(b"two")[0].prediction_id == "p1"
    assert len(pauses) == 1


@pytest.mark.parametrize("trouble", [500, ("after", httpx.ReadTimeout("slow"))], ids=str)
def test_a_prediction_that_may_have_been_served_is_not_served_twice(
    client, server, pauses, trouble
):
    client.predict(b"one")
    server.troubles = [trouble]
    with pytest.raises(UnavailableError):
        client.predict(b"two")
    assert pauses == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, RefusedError), (401, AccessError), (403, AccessError), (404, NotFoundError),
     (409, ConflictError), (410, ExpiredError), (413, RefusedError), (422, RefusedError),
     (302, UnavailableError)],
)  # fmt: skip
def test_refusals_are_not_repeated_and_have_their_kind(client, server, pauses, status, kind):
    server.troubles = [(status, {"X-Request-Id": "r9"})]
    with pytest.raises(kind, match="not now") as caught:
        client.answer("p", correct=True)
    assert isinstance(caught.value, ClientError)
    assert isinstance(caught.value, BittaError)
    assert (caught.value.status, caught.value.request_id) == (status, "r9")
    assert pauses == []


def test_a_key_used_for_another_answer_is_a_conflict(client):
    client.answer("p", correct=True, idempotency_key="k")
    assert client.answer("p", correct=True, idempotency_key="k").repeated
    with pytest.raises(ConflictError, match="used for another answer"):
        client.answer("p", correct=False, idempotency_key="k")


def test_an_expired_question_says_so(client):
    with pytest.raises(ExpiredError, match="expired at noon"):
        client.answer("gone", correct=True)


def test_a_wrong_key_is_refused_and_never_shown(server):
    with (
        Client("http://server", "bitta_other", transport=server.transport) as client,
        pytest.raises(AccessError, match="unknown or was revoked") as caught,
    ):
        client.status()
    assert "bitta_other" not in f"{client!r} {caught.value!r}"


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b'{"detail": "x"}', b'{"error": 3}'])
def test_a_page_of_a_proxy_is_told_by_its_status(content):
    transport = httpx.MockTransport(lambda request: httpx.Response(404, content=content))
    with (
        Client("http://server", KEY, transport=transport) as client,
        pytest.raises(NotFoundError, match="the server answered 404 to /v1/status"),
    ):
        client.status()


def test_a_page_in_place_of_json_is_an_error_too():
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=b"<html>"))
    with (
        Client("http://server", KEY, transport=transport) as client,
        pytest.raises(UnavailableError, match="is not JSON; is this a bitta server"),
    ):
        client.status()


def test_names_cannot_leave_their_place_in_the_address(client, server):
    with pytest.raises(NotFoundError):
        client.undo("../../status?x#y")
    assert server.calls[-1][1] == "/v1/feedback/..%2F..%2Fstatus%3Fx%23y/undo"


def test_a_server_under_a_path_is_reached_there():
    seen = []

    def respond(request):
        seen.append(request.url.path)
        return httpx.Response(200, json={})

    with Client("http://host/ml/", KEY, transport=httpx.MockTransport(respond)) as client:
        client.status()
    assert seen == ["/ml/v1/status"]


def test_a_second_click_changes_nothing_and_a_change_of_mind_counts(client, server):
    assert client.thumbs("p1", up=True).id == "f0"
    assert client.thumbs("p1", up=True).repeated
    assert client.thumbs("p1", up=False).id == "f1"
    last = client.thumbs("p1", up=True)
    assert (last.id, last.verdict) == ("f2", "correct")
    assert [record["standing"] for record in server.records] == [False, False, True]


def test_a_thumb_is_another_when_it_says_something_else_or_somebody_else_gives_it(server):
    def key_of(*, owner=KEY, metadata=None):
        with (
            Client("http://server", owner, transport=server.transport) as client,
            suppress(AccessError),  # the server knows one key only
        ):
            client.thumbs("p1", up=True, metadata=metadata)
        return server.calls[-1][2]["idempotency-key"]

    keys = [
        key_of(),
        key_of(owner="bitta_rotated"),
        key_of(metadata={"page": 3}),
        key_of(metadata={"page": 4}),
    ]
    assert len(set(keys)) == 4
    assert key_of(owner="bitta_rotated") == keys[1]
    assert key_of(metadata={"page": 3, "at": 1}) == key_of(metadata={"at": 1, "page": 3})


def test_waiting_for_a_question_asks_in_stretches_a_server_allows(client, server, pauses):
    clock = iter([0, 0, 25, 25, 25, 50, 50, 50, 60, 60])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitta.client.client.monotonic", lambda: next(clock))
        assert client.next_question(wait=60) is None
    waits = [call[1].partition("wait=")[2] for call in server.calls]
    assert waits == ["25", "25", "10"]
    assert pauses == []


def test_a_server_that_does_not_hold_calls_is_not_flooded(client, server, pauses):
    clock = iter([0, 0, 0.1, 0.1, 1.1, 1.2, 1.3, 2.3, 2.4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitta.client.client.monotonic", lambda: next(clock))
        assert client.next_question(wait=2) is None
    assert pauses == [1.0, pytest.approx(0.8)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"url": "localhost:8000"}, "begins with http:// or https://"),
        ({"key": ""}, "printable ASCII"),
        ({"key": "schlüssel"}, "printable ASCII"),
        ({"key": "a\nb"}, "printable ASCII"),
        ({"timeout": 0}, "timeout is 0"),
        ({"retries": -1}, "retries is -1"),
    ],
    ids=str,
)
def test_wrong_settings_are_one_sentence(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        Client(**{"url": "http://server", "key": KEY, **settings})


def test_over_a_real_socket_a_cut_connection_loses_nothing(pauses):
    server = FakeServer()
    with server.listening() as url, Client(url, KEY) as client:
        assert client.predict([b"one", b"two"])[1].prediction_id == "p1"
        server.troubles = [ConnectionError(), ("after", ConnectionError())]
        assert client.answer("p1", correct=True).repeated
        assert client.next_question() is None
    assert [record["prediction_id"] for record in server.records] == ["p1"]


def test_without_httpx_one_sentence_says_what_to_install():
    code = "import sys; sys.modules['httpx'] = None; import bitta.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: bitta.client needs httpx" in done.stderr
    assert 'pip install "bitta[client]"' in done.stderr
