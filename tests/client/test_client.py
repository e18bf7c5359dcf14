"""Tests of calls, retries and errors of `Client`."""

import subprocess
import sys
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from bitta.client import (
    AccessError,
    AnswerDetails,
    AskedQuestion,
    Client,
    ClientError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    RateError,
    RefusedError,
    UnavailableError,
)
from bitta.errors import BittaError, SettingError
from bitta.records import Lease, SubmittedAnswer
from client.fake_server import KEY, PNG, FakeServer


def keys(server):
    return [call[2]["idempotency-key"] for call in server.calls]


def test_answer_to_a_question_carries_its_lease(client, server):
    server.ask("p7")
    question = client.next_question()
    assert question == AskedQuestion(
        prediction_id="p7", label="cat", class_index=0, confidence=0.75, uncertainty=0.2,
        model_version="1.3", asked_at=5, expires_at=9, lease=Lease("lease-p7", 8),
        image_url="/v1/predictions/p7/image", input_sha256="ab",
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


def test_answer_details_are_the_optional_fields_of_a_submitted_answer(client):
    optional = {field.name for field in fields(SubmittedAnswer)} - {
        "prediction_id", "verdict", "lease"
    }  # fmt: skip
    assert AnswerDetails.__optional_keys__ == optional | {"idempotency_key"}
    with pytest.raises(TypeError, match="comments"):
        client.answer("p0", correct=True, comments="misspelt")


def test_answer_to_a_served_prediction_has_no_lease(client, server):
    [served] = client.predict(b"png")
    client.answer(served, verdict="skip", metadata={"page": 3}, annotator_kind="CODE")
    assert server.records[0]["body"] == {
        "prediction_id": "p0", "verdict": "skip", "metadata": {"page": 3},
        "annotator_kind": "CODE",
    }  # fmt: skip


def test_status_image_and_undo(client):
    assert client.status() == {"model": {"version": "1.3"}}
    assert client.image("p7") == PNG
    given = client.answer("p7", correct=True)
    undone = client.undo(given.id)
    assert (undone.undone, undone.applied, undone.note) == ("f0", False, "Not learned.")


@pytest.mark.parametrize(
    "given",
    [{}, {"correct": True, "verdict": "correct"}, {"correct": 1}, {"verdict": "yes"}],
    ids=str,
)
def test_invalid_verdict_is_refused_before_sending(client, server, given):
    with pytest.raises(SettingError, match=r"allowed|exactly one"):
        client.answer("p", **given)
    assert server.calls == []


@pytest.mark.parametrize(
    "failure",
    [500, 502, 503, 504, 429, 408, httpx.ConnectError("refused"), httpx.ReadTimeout("slow"),
     httpx.RemoteProtocolError("cut"), ("after", httpx.ReadError("cut")), ("after", 500)],
    ids=str,
)  # fmt: skip
def test_failed_answer_is_repeated_with_the_same_key_and_stored_once(
    client, server, pauses, failure
):
    server.failures = [failure, failure]
    given = client.answer("p1", correct=True)
    assert given.id == "f0"
    assert given.repeated == (isinstance(failure, tuple))
    assert len(server.records) == 1
    assert len(keys(server)) == 3
    assert len(set(keys(server))) == 1
    assert len(pauses) == 2


def test_two_answers_have_different_keys(client, server):
    client.answer("p1", correct=True)
    client.answer("p2", correct=True)
    assert len(set(keys(server))) == 2


def test_retry_delays_double_with_a_random_factor(client, server, pauses):
    server.failures = [503] * 5
    client.answer("p1", correct=True)
    longest = [0.2, 0.4, 0.8, 1.6, 3.2]
    assert all(most / 2 <= slept <= most for slept, most in zip(pauses, longest, strict=True))


def test_retry_after_header_sets_the_delay(client, server, pauses):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=12), usegmt=True)
    server.failures = [(429, {"Retry-After": "7"}), (503, {"Retry-After": date}),
                       (503, {"Retry-After": "whenever"})]  # fmt: skip
    client.status()
    assert pauses[0] == 7
    assert 9 < pauses[1] <= 12
    assert pauses[2] < 1


def test_long_retry_after_raises_without_waiting(client, server, pauses):
    server.failures = [(429, {"Retry-After": "600"})]
    with pytest.raises(RateError, match="not now"):
        client.status()
    assert pauses == []


def test_error_after_all_retries_has_the_message_of_the_server(server, pauses):
    server.failures = [503] * 3
    with (
        Client("http://server", KEY, retries=2, transport=server.transport) as client,
        pytest.raises(UnavailableError, match=r"^not now\.$") as caught,
    ):
        client.answer("p1", correct=True)
    assert (caught.value.status, caught.value.code) == (503, "busy")
    assert len(pauses) == 2


def test_missing_server_is_named_by_its_address(pauses):
    with (
        Client("http://127.0.0.1:1", KEY, retries=1, timeout=2) as client,
        pytest.raises(UnavailableError, match=r"no response from http://127\.0\.0\.1:1 \(.+\)"),
    ):
        client.status()
    assert len(pauses) == 1


@pytest.mark.parametrize("failure", [503, 429, httpx.ConnectError("refused")], ids=str)
def test_prediction_is_repeated_if_it_was_surely_not_served(client, server, pauses, failure):
    client.predict(b"one")
    server.failures = [failure]
    assert client.predict(b"two")[0].prediction_id == "p1"
    assert len(pauses) == 1


@pytest.mark.parametrize("failure", [500, 504, ("after", httpx.ReadTimeout("slow"))], ids=str)
def test_prediction_is_not_repeated_if_it_may_have_been_served(client, server, pauses, failure):
    client.predict(b"one")
    server.failures = [failure]
    with pytest.raises(UnavailableError):
        client.predict(b"two")
    assert pauses == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, RefusedError), (401, AccessError), (403, AccessError), (404, NotFoundError),
     (409, ConflictError), (410, ExpiredError), (413, RefusedError), (422, RefusedError),
     (302, UnavailableError)],
)  # fmt: skip
def test_refused_request_raises_its_error_class_without_retry(client, server, pauses, status, kind):
    server.failures = [(status, {"X-Request-Id": "r9"})]
    with pytest.raises(kind, match="not now") as caught:
        client.answer("p", correct=True)
    assert isinstance(caught.value, ClientError)
    assert isinstance(caught.value, BittaError)
    assert (caught.value.status, caught.value.request_id) == (status, "r9")
    assert pauses == []


def test_reused_idempotency_key_raises_conflict_error(client):
    client.answer("p", correct=True, idempotency_key="k")
    assert client.answer("p", correct=True, idempotency_key="k").repeated
    with pytest.raises(ConflictError, match="used for another answer"):
        client.answer("p", correct=False, idempotency_key="k")


def test_expired_question_raises_expired_error(client):
    with pytest.raises(ExpiredError, match="expired at noon"):
        client.answer("gone", correct=True)


def test_unknown_key_is_refused_and_not_shown(server):
    with (
        Client("http://server", "bitta_other", transport=server.transport) as client,
        pytest.raises(AccessError, match="unknown or was revoked") as caught,
    ):
        client.status()
    assert "bitta_other" not in f"{client!r} {caught.value!r}"


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b'{"detail": "x"}', b'{"error": 3}'])
def test_error_page_of_a_proxy_is_reported_with_its_status(content):
    transport = httpx.MockTransport(lambda request: httpx.Response(404, content=content))
    with (
        Client("http://server", KEY, transport=transport) as client,
        pytest.raises(NotFoundError, match="the server answered 404 to /v1/status"),
    ):
        client.status()


def test_response_that_is_not_json_raises_unavailable_error():
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=b"<html>"))
    with (
        Client("http://server", KEY, transport=transport) as client,
        pytest.raises(UnavailableError, match="is not JSON; is this a bitta server"),
    ):
        client.status()


def test_ids_are_quoted_in_the_url(client, server):
    with pytest.raises(NotFoundError):
        client.undo("../../status?x#y")
    assert server.calls[-1][1] == "/v1/feedback/..%2F..%2Fstatus%3Fx%23y/undo"


def test_url_with_a_path_is_kept():
    seen = []

    def respond(request):
        seen.append(request.url.path)
        return httpx.Response(200, json={})

    with Client("http://host/ml/", KEY, transport=httpx.MockTransport(respond)) as client:
        client.status()
    assert seen == ["/ml/v1/status"]


def test_second_thumbs_click_changes_nothing_and_opposite_click_counts(client, server):
    assert client.thumbs("p1", up=True).id == "f0"
    assert client.thumbs("p1", up=True).repeated
    assert client.thumbs("p1", up=False).id == "f1"
    last = client.thumbs("p1", up=True)
    assert (last.id, last.verdict) == ("f2", "correct")
    assert [record["standing"] for record in server.records] == [False, False, True]


def test_thumbs_key_depends_on_owner_and_metadata(server):
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


def test_long_wait_is_split_into_allowed_polls(client, server, pauses):
    times = iter([0, 0, 25, 25, 50, 50, 60])  # start, then sent and received for each poll
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitta.client.request_plans.monotonic", lambda: next(times))
        assert client.next_question(wait=60) is None
    waits = [call[1].partition("wait=")[2] for call in server.calls]
    assert waits == ["25", "25", "10"]
    assert pauses == []


def test_client_pauses_between_polls_of_a_server_that_answers_at_once(client, server, pauses):
    times = iter([0, 0, 0.1, 0.1, 1.2, 1.2, 2.1])  # start, then before and after each poll
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitta.client.request_plans.monotonic", lambda: next(times))
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
def test_invalid_setting_is_refused(settings, sentence):
    with pytest.raises(SettingError, match=sentence):
        Client(**{"url": "http://server", "key": KEY, **settings})


def test_cut_connection_loses_no_answer(pauses):
    server = FakeServer()
    with server.listening() as url, Client(url, KEY) as client:
        assert client.predict([b"one", b"two"])[1].prediction_id == "p1"
        server.failures = [ConnectionError(), ("after", ConnectionError())]
        assert client.answer("p1", correct=True).repeated
        assert client.next_question() is None
    assert [record["prediction_id"] for record in server.records] == ["p1"]


def test_missing_httpx_names_the_package_to_install():
    code = "import sys; sys.modules['httpx'] = None; import bitta.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: bitta.client needs httpx" in done.stderr
    assert 'pip install "bitta[client]"' in done.stderr
