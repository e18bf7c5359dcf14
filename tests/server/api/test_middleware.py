"""Limits on rates, body sizes, slow clients and connections."""

import socket
import time
from contextlib import suppress
from http.client import HTTPConnection

import pytest

from bitta.server.api.authentication import RateLimiter
from server.api.fakes import running


def test_rate_limiter_refills_with_time():
    clock = [0.0]
    limit = RateLimiter(2.0, 3, clock=lambda: clock[0])
    assert [limit.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert limit.take("b") == 0.0
    clock[0] = 0.5
    assert limit.take("a") == 0.0
    assert limit.take("a") == 0.5
    clock[0] = 100.0
    assert [limit.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_rate_limiter_bounds_its_memory():
    limit = RateLimiter(1.0, 1, clock=lambda: 0.0)
    for number in range(20_050):
        limit.take(str(number))
    assert len(limit._buckets) <= 10_000


@pytest.mark.parametrize("extra_settings", [{"limits": {"requests_per_second": 0.01, "burst": 3}}])
def test_key_above_its_rate_gets_429_with_retry_after(call):
    answers = [call("operator", "GET", "/v1/session") for _ in range(4)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    assert 90 <= int(answers[-1].headers["retry-after"]) <= 100
    assert answers[-1].json()["code"] == "too_many"
    assert call("annotator", "GET", "/v1/session").status_code == 200
    assert set(call("operator", "GET", "/v2").json()) == {"error"}


SMALL = {"limits": {"body_bytes": 2000, "other_body_bytes": 2000, "read_seconds": 0.6}}


@pytest.fixture
def port(app, settings):
    with running(app, settings) as free:
        yield free


def exchange(port, sent):
    """Send raw bytes and return the raw response."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        got = b""
        with suppress(ConnectionError):
            connection.sendall(sent)
            while chunk := connection.recv(65536):
                got += chunk
        return got


def head(tokens, path, *headers):
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {tokens['operator']}",
             "Content-Type: application/json", "Connection: close", *headers]  # fmt: skip
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize("extra_settings", [SMALL])
@pytest.mark.parametrize("path", ["/v1/rollback", "/v2/models/toy/infer"])
def test_large_content_length_is_refused_before_the_body(port, tokens, path):
    got = exchange(port, head(tokens, path, "Content-Length: 99999999999999"))
    assert got.startswith(b"HTTP/1.1 413")  # 408 if it had waited for the body
    assert b'"error"' in got


@pytest.mark.parametrize("extra_settings", [SMALL])
@pytest.mark.parametrize("path", ["/v1/rollback", "/v2/models/toy/infer"])
def test_chunked_body_above_the_limit_is_refused(port, tokens, path):
    chunk = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    sent = head(tokens, path, "Transfer-Encoding: chunked") + 4 * chunk + b"0\r\n\r\n"
    got = exchange(port, sent)
    assert got.startswith(b"HTTP/1.1 413")
    assert b"more than 2,000" in got


@pytest.mark.parametrize(
    "path", ["/v1/feedback", "/v1/session", "/v1/rollback", "/v1/adaptation/pause"]
)
def test_only_inference_accepts_large_bodies(port, tokens, path):
    got = exchange(port, head(tokens, path, "Content-Length: 300000"))
    assert got.startswith(b"HTTP/1.1 413")
    assert b'"the body has 300,000 bytes; allowed here: 262,144. Send less per request."' in got
    assert b'"code":"too_large"' in got
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    got = exchange(port, head(tokens, path, "Transfer-Encoding: chunked") + 5 * chunk)
    assert got.startswith(b"HTTP/1.1 413")
    body = b"{" + b" " * 299_998 + b"}"
    infer = head(tokens, "/v2/models/toy/infer", "Content-Length: 300000")
    assert exchange(port, infer + body).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("extra_settings", [SMALL])
@pytest.mark.parametrize("path", ["/v1/feedback", "/v1/rollback", "/v2/models/toy/infer"])
@pytest.mark.parametrize("key", ["", "Authorization: Bearer wrong"])
def test_body_is_not_read_without_valid_key(port, path, key):
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Length: 100", "Connection: close"]
    sent = "\r\n".join([*lines, key] if key else lines) + "\r\n\r\n"
    assert exchange(port, sent.encode()).startswith(b"HTTP/1.1 401")  # 408 if it had waited


@pytest.mark.parametrize("extra_settings", [SMALL])
def test_slow_body_gets_408(port, tokens):
    began = time.monotonic()
    got = exchange(port, head(tokens, "/v1/rollback", "Content-Length: 100") + b"{")
    assert got.startswith(b"HTTP/1.1 408")
    assert 0.5 < time.monotonic() - began < 20


@pytest.mark.parametrize("extra_settings", [SMALL])
@pytest.mark.parametrize("sent", [b"", b"GET /v2/health/live HTTP/1.1\r\nHost:"])
def test_connection_with_slow_headers_is_closed(port, sent):
    began = time.monotonic()
    assert exchange(port, sent) == b""
    assert 0.5 < time.monotonic() - began < 20


@pytest.mark.parametrize("extra_settings", [SMALL])
def test_connection_with_trickling_headers_is_closed(port):
    began, sent = time.monotonic(), 0
    opened = socket.create_connection(("127.0.0.1", port), timeout=60)
    with opened as connection, suppress(ConnectionError):
        for letter in "GET / HTTP/1.1\r\nX-Slow: " + "a" * 100:
            connection.sendall(letter.encode())
            sent += 1
            time.sleep(0.05)
    assert time.monotonic() - began > 0.5
    assert sent < 100


@pytest.mark.parametrize("extra_settings", [SMALL])
def test_connection_is_reused(port, tokens):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(3):
        connection.request("GET", "/v2/health/live")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"live":true}')
        assert connection.sock is not None
        time.sleep(0.3)
    connection.close()


@pytest.mark.parametrize("extra_settings", [{"limits": {"max_connections": 3}}])
def test_connections_above_the_limit_are_closed(port):
    held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(3)]
    assert exchange(port, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    for connection in held:
        connection.close()
    closing = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    deadline = time.monotonic() + 60
    while not exchange(port, closing).startswith(b"HTTP/1.1 200"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_endless_headers_are_refused(port):
    got = exchange(port, b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000)
    assert got == b"" or got.startswith(b"HTTP/1.1 400")
