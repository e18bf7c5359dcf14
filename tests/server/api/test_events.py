"""Events are told as they happen, again where somebody missed them, and end with the server."""

import json
import threading
import time

import httpx
import pytest

from server.api.fakes import running


@pytest.fixture
def more():
    return {"status_seconds": 0.5, "limits": {"streams": 2}}


@pytest.fixture
def port(app, settings):
    with running(app, settings) as free:
        yield free


@pytest.fixture
def listen(port, tokens):
    """An open stream of events."""
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def opened(role="operator", **headers):
        given = {"Authorization": f"Bearer {tokens[role]}", **headers}
        return client.stream("GET", "/v1/events", headers=given)

    yield opened
    client.close()


def messages(response):
    """(kind, id, body) as they come."""
    fields = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields["event"], fields.get("id"), json.loads(fields["data"])
            fields = {}
        else:
            fields = {}


def wanted(told, kinds):
    """The next message of each of these kinds."""
    return [next(message for message in told if message[0] == kind) for kind in kinds]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_status_comes_first_and_again(listen):
    with listen() as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        told = messages(stream)
        first, second = next(told), next(told)
    assert (first[0], second[0]) == ("status", "status")
    assert first[2]["model"]["name"] == "toy"
    assert first[2]["me"]["role"] == "operator"


@pytest.mark.parametrize("more", [{"status_seconds": 60}])
def test_what_happens_is_told_at_once(listen, engine, store):
    with listen() as stream:
        told = messages(stream)
        assert next(told)[0] == "status"
        threading.Timer(0.2, engine.ask).start()
        began = time.monotonic()
        ((_, seq, body),) = wanted(told, ["asked"])
    assert time.monotonic() - began < 30
    assert int(seq) == store.last_seq()
    assert body["questions"][0]["reason"] == "uncertain"


def test_annotators_are_not_told_which_questions_are_audits(listen, engine):
    with listen("annotator") as stream:
        told = messages(stream)
        assert next(told)[0] == "status"
        engine.ask(2, reason="audit")
        ((_, _, body),) = wanted(told, ["asked"])
    assert body == {"n": 2}


def test_a_stream_goes_on_where_it_ended(listen, engine, store):
    engine.pause("me", "first")
    seen = store.last_seq()
    engine.resume("me")
    engine.pause("me", "second")
    with listen(**{"Last-Event-ID": str(seen)}) as stream:
        resumed, paused = wanted(messages(stream), ["resumed", "paused"])
    assert (int(resumed[1]), int(paused[1])) == (seen + 1, seen + 2)
    assert paused[2]["reason"] == "second"


@pytest.mark.parametrize("given", ["", "x", "-1", "1.5", "9" * 19, "9" * 40, "²"])
def test_an_odd_place_is_no_mistake(listen, given):
    with listen(**{"Last-Event-ID": given.encode()}) as stream:
        assert stream.status_code == 200
        assert next(messages(stream))[0] == "status"


def test_there_is_a_limit_of_streams(listen, app):
    with listen() as first, listen() as second:
        held = messages(first), messages(second)  # a reader that is let go closes its stream
        for told in held:
            next(told)
        with listen() as third:
            assert third.status_code == 429
    until(lambda: app.state.parts.feed.n_streams == 0)


def test_a_stream_ends_with_its_key(listen, store):
    with listen("annotator") as stream:
        told = messages(stream)
        next(told)
        (mine,) = [key for key in store.keys.list() if key.role == "annotator"]
        store.keys.revoke(mine.id)
        began = time.monotonic()
        for kind, _, _ in told:
            assert kind == "status"
            assert time.monotonic() - began < 20


@pytest.mark.parametrize("more", [{"status_seconds": 60, "limits": {"failures_per_minute": 1}}])
def test_a_stream_ends_with_its_session(port, tokens, monkeypatch):
    monkeypatch.setattr("bitta.server.api.sse._LOOK", 0.3)
    root = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=root, timeout=60, headers={"X-Bitta": "1"}) as browser:
        browser.post("/v1/session", json={"key": tokens["annotator"]})
        browser.get("/v1/session", headers={"Authorization": "Bearer wrong"})
        with browser.stream("GET", "/v1/events") as stream:
            told = messages(stream)
            next(told)
            time.sleep(1.5)  # others' wrong keys and a quiet log end nothing
            assert browser.get("/v1/session").status_code == 200
            browser.delete("/v1/session")
            began = time.monotonic()
            assert list(told) == []
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("more", [{"shutdown_seconds": 60}])
def test_streams_and_waits_end_when_the_server_stops(app, settings, tokens):
    ended = []

    def follow(port, path):
        headers = {"Authorization": f"Bearer {tokens['operator']}"}
        url = f"http://127.0.0.1:{port}{path}"
        with httpx.stream("GET", url, headers=headers, timeout=60) as stream:
            for _ in stream.iter_lines():
                pass
            ended.append((path, stream.status_code))

    with running(app, settings) as port:
        threads = [
            threading.Thread(target=follow, args=(port, path))
            for path in ("/v1/events", "/v1/queue/next?wait=25")
        ]
        for thread in threads:
            thread.start()
        feed = app.state.parts.feed
        until(lambda: feed.n_streams == 1 and feed._n_listening == 2)
        assert ended == []
        began = time.monotonic()
    for thread in threads:
        thread.join(60)
    assert time.monotonic() - began < 20
    assert sorted(ended) == [("/v1/events", 200), ("/v1/queue/next?wait=25", 204)]
