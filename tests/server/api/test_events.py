"""Server-sent events: the stream, where it continues, and when it ends."""

import json
import threading
import time

import httpx
import pytest

from server.api.fakes import running


@pytest.fixture
def extra_settings():
    return {"status_seconds": 0.5, "limits": {"max_event_streams": 2}}


@pytest.fixture
def port(app, settings):
    with running(app, settings) as free:
        yield free


@pytest.fixture
def listen(port, tokens):
    """Return a function that opens an event stream."""
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def opened(role="operator", **headers):
        given = {"Authorization": f"Bearer {tokens[role]}", **headers}
        return client.stream("GET", "/v1/events", headers=given)

    yield opened
    client.close()


def messages(response):
    """Yield (kind, id, body) of each message."""
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


def next_of_kinds(stream_messages, kinds):
    """Return the next message of each kind."""
    return [next(message for message in stream_messages if message[0] == kind) for kind in kinds]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_stream_starts_with_status_and_repeats_it(listen):
    with listen() as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        received = messages(stream)
        first, second = next(received), next(received)
    assert (first[0], second[0]) == ("status", "status")
    assert first[2]["model"]["name"] == "toy"
    assert first[2]["me"]["role"] == "operator"


@pytest.mark.parametrize("extra_settings", [{"status_seconds": 60}])
def test_event_is_streamed_at_once(listen, engine, store):
    with listen() as stream:
        received = messages(stream)
        assert next(received)[0] == "status"
        threading.Timer(0.2, engine.ask).start()
        began = time.monotonic()
        ((_, seq, body),) = next_of_kinds(received, ["asked"])
    assert time.monotonic() - began < 30
    assert int(seq) == store.last_seq()
    assert body["questions"][0]["reason"] == "uncertain"


def test_stream_hides_audits_from_annotators(listen, engine):
    with listen("annotator") as stream:
        received = messages(stream)
        assert next(received)[0] == "status"
        engine.ask(2, reason="audit")
        ((_, _, body),) = next_of_kinds(received, ["asked"])
    assert body == {"n": 2}


def test_stream_continues_after_last_event_id(listen, engine, store):
    engine.pause("me", "first")
    seen = store.last_seq()
    engine.resume("me")
    engine.pause("me", "second")
    with listen(**{"Last-Event-ID": str(seen)}) as stream:
        resumed, paused = next_of_kinds(messages(stream), ["resumed", "paused"])
    assert (int(resumed[1]), int(paused[1])) == (seen + 1, seen + 2)
    assert paused[2]["reason"] == "second"


@pytest.mark.parametrize("given", ["", "x", "-1", "1.5", "9" * 19, "9" * 40, "²"])
def test_invalid_last_event_id_is_ignored(listen, given):
    with listen(**{"Last-Event-ID": given.encode()}) as stream:
        assert stream.status_code == 200
        assert next(messages(stream))[0] == "status"


def test_streams_above_the_limit_are_refused(listen, app):
    with listen() as first, listen() as second:
        held = messages(first), messages(second)  # a discarded reader would close its stream
        for received in held:
            next(received)
        with listen() as third:
            assert third.status_code == 429
    until(lambda: app.state.bitta.log_watcher.n_streams == 0)


def test_stream_ends_when_its_key_is_revoked(listen, store):
    with listen("annotator") as stream:
        received = messages(stream)
        next(received)
        (mine,) = [key for key in store.keys.list() if key.role == "annotator"]
        store.keys.revoke(mine.id)
        began = time.monotonic()
        for kind, _, _ in received:
            assert kind == "status"
            assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "extra_settings", [{"status_seconds": 60, "limits": {"invalid_keys_per_minute": 1}}]
)
def test_stream_ends_when_its_session_is_signed_out(port, tokens, monkeypatch):
    monkeypatch.setattr("bitta.server.api.events._KEY_CHECK_SECONDS", 0.3)
    root = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=root, timeout=60, headers={"X-Bitta": "1"}) as browser:
        browser.post("/v1/session", json={"key": tokens["annotator"]})
        browser.get("/v1/session", headers={"Authorization": "Bearer wrong"})
        with browser.stream("GET", "/v1/events") as stream:
            received = messages(stream)
            next(received)
            time.sleep(1.5)  # neither wrong keys of others nor an idle log end the stream
            assert browser.get("/v1/session").status_code == 200
            browser.delete("/v1/session")
            began = time.monotonic()
            assert list(received) == []
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("extra_settings", [{"shutdown_seconds": 60}])
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
        watcher = app.state.bitta.log_watcher
        until(lambda: watcher.n_streams == 1 and watcher.n_waiting == 2)
        assert ended == []
        began = time.monotonic()
    for thread in threads:
        thread.join(60)
    assert time.monotonic() - began < 20
    assert sorted(ended) == [("/v1/events", 200), ("/v1/queue/next?wait=25", 204)]
