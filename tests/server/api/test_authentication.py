"""API keys, roles, session cookies and the rate limit of wrong keys."""

import base64
import time
from errno import ENOSPC

import pytest
from itsdangerous import TimestampSigner
from itsdangerous.encoding import base64_encode, int_to_bytes
from starlette.testclient import TestClient

from bitta.errors import InputError
from bitta.server.api.authentication import SessionCookies, load_session_secret

ALL_ROLES = {"client", "annotator", "operator"}
ROUTES = {
    ("GET", "/v2"): {"client", "operator"},
    ("GET", "/v2/models/toy"): {"client", "operator"},
    ("GET", "/v2/models/toy/config"): {"client", "operator"},
    ("GET", "/v2/models/toy/stats"): {"client", "operator"},
    ("GET", "/v2/models/toy/ready"): {"client", "operator"},
    ("GET", "/v2/models/stats"): {"client", "operator"},
    ("POST", "/v2/repository/index"): {"client", "operator"},
    ("POST", "/v2/models/toy/infer"): {"client", "operator"},
    ("GET", "/v1/queue/next"): {"annotator", "operator"},
    ("POST", "/v1/feedback"): ALL_ROLES,
    ("POST", "/v1/feedback/x/undo"): ALL_ROLES,
    ("GET", "/v1/feedback"): ALL_ROLES,
    ("GET", "/v1/feedback/export"): {"operator"},
    ("GET", "/v1/predictions/x/image"): {"annotator", "operator"},
    ("GET", "/v1/questions"): {"operator"},
    ("GET", "/v1/snapshots"): {"operator"},
    ("POST", "/v1/snapshots"): {"operator"},
    ("POST", "/v1/rollback"): {"operator"},
    ("POST", "/v1/adaptation/pause"): {"operator"},
    ("POST", "/v1/adaptation/resume"): {"operator"},
    ("DELETE", f"/v1/images/{'0' * 64}"): {"operator"},
    ("GET", "/v1/status"): ALL_ROLES,
    ("GET", "/v1/session"): ALL_ROLES,
    ("DELETE", "/v1/session"): ALL_ROLES,
    ("GET", "/metrics"): ALL_ROLES,
}
X = {"X-Bitta": "1"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route[0]} {route[1]}")
def test_route_refuses_other_roles(call, route):
    body = {"json": {}} if route[0] == "POST" else {}
    for role in ALL_ROLES:
        status = call(role, *route, **body).status_code
        assert (status == 403) == (role not in ROUTES[route]), (role, status)
        assert status not in (401, 500)
    refused = call(None, *route, **body)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")


def test_role_table_lists_every_route(http):
    paths = http.get("/openapi.json").json()["paths"]
    known = {(method, _pattern(path)) for method, path in ROUTES}
    other = {
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("POST", "/v1/session"),
        ("GET", "/v1/events"),
    }
    documented = {
        (method.upper(), path)
        for path, item in paths.items()
        for method in item
        if "/versions/" not in path
    }
    assert documented == known | other


def _pattern(path):
    for name, given in [("{model}", "toy"), ("{sha256}", "0" * 64), ("{id}", "x")]:
        path = path.replace(f"/{given}", f"/{name}")
    return path


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer bitta_" + "a" * 43,
        "Token x",
        "Basic !!!",
        "Basic " + base64.b64encode(b"user:wrong").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Bearer " + "a" * 10_000,
    ],
)
def test_wrong_key_is_refused(http, tokens, header):
    refused = http.get("/v1/status", headers={"Authorization": header})
    assert refused.status_code == 401
    assert refused.json()["code"] == "unauthorized"


def test_key_may_be_sent_as_basic_password(http, tokens):
    given = base64.b64encode(f"me:{tokens['client']}".encode()).decode()
    response = http.get("/v1/session", headers={"Authorization": f"Basic {given}"})
    assert response.json()["role"] == "client"


def test_revoked_key_is_refused_within_seconds(call, store):
    me = call("annotator", "GET", "/v1/session").json()
    store.keys.revoke(me["id"])
    until = time.monotonic() + 20
    while call("annotator", "GET", "/v1/session").status_code != 401:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_sign_in_sets_http_only_cookie_without_the_key(http, tokens):
    response = http.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    assert response.json()["role"] == "annotator"
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert tokens["annotator"] not in cookie
    assert http.get("/v1/session").json() == response.json()


def test_cookie_is_secure_under_tls(app, tokens):
    with TestClient(app, base_url="https://testserver") as client:
        response = client.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    assert "Secure" in response.headers["set-cookie"]


def test_cross_site_request_with_cookie_is_refused(http, tokens):
    http.post("/v1/session", json={"key": tokens["operator"]}, headers=X)
    path = "/v1/adaptation/pause"
    assert http.post(path, json={}).status_code == 403
    assert http.post(path, json={}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert http.post(path, json={}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert http.post(path, json={}, headers=X).status_code == 200
    assert http.get("/v1/status").status_code == 200


def test_cross_site_sign_in_is_refused(http, tokens):
    assert http.post("/v1/session", json={"key": tokens["operator"]}).status_code == 403


def test_cookie_is_refused_after_sign_out(http, tokens):
    http.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    cookie = http.cookies["bitta_session"]
    assert http.delete("/v1/session", headers=X).status_code == 204
    http.cookies.set("bitta_session", cookie)
    assert http.get("/v1/session").status_code == 401


def test_cookie_of_revoked_key_is_refused(http, tokens, store):
    response = http.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    store.keys.revoke(response.json()["id"])
    assert http.get("/v1/session").status_code == 401


@pytest.mark.parametrize("cookie", ["", ".", "a.b.c", "x" * 4000, "a.9999999999.n.0"])
def test_invalid_cookie_is_refused(http, tokens, cookie):
    http.cookies.set("bitta_session", cookie)
    assert http.get("/v1/session").status_code == 401


def test_session_cookie_expires_and_cannot_be_forged(monkeypatch):
    monkeypatch.setattr(TimestampSigner, "get_timestamp", lambda _: time[0])
    time = [1000]
    sessions = SessionCookies(b"k" * 32, seconds=60)
    cookie = sessions.create("key")
    assert sessions.key_id(cookie) == "key"
    payload, timestamp, signature = cookie.split(".")
    later = base64_encode(int_to_bytes(1050)).decode()
    other = sessions.create("other").partition(".")[0]
    for forged in (
        f"{payload}.{later}.{signature}",
        f"{other}.{timestamp}.{signature}",
        f"{payload}.{timestamp}.{signature[:-2]}",
        f"{payload}.{timestamp}.",
        f"{payload}.{timestamp}",
    ):
        assert sessions.key_id(forged) is None
    assert SessionCookies(b"l" * 32, seconds=60).key_id(cookie) is None
    time[0] = 1060
    assert sessions.key_id(cookie) == "key"
    time[0] = 1061
    assert sessions.key_id(cookie) is None


def test_revoked_session_cookie_is_refused_and_others_stay_valid():
    sessions = SessionCookies(b"k" * 32, seconds=60)
    first, second = sessions.create("key"), sessions.create("key")
    sessions.revoke("forged")
    sessions.revoke(first)
    assert sessions.key_id(first) is None
    assert sessions.key_id(second) == "key"


def test_secret_is_kept_in_private_file(tmp_path):
    secret = load_session_secret(tmp_path)
    assert load_session_secret(tmp_path) == secret
    assert (tmp_path / "session.secret").stat().st_mode & 0o777 == 0o600
    (tmp_path / "session.secret").write_bytes(b"short")
    with pytest.raises(InputError, match="holds 5 bytes"):
        load_session_secret(tmp_path)


def test_full_disk_leaves_no_secret_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        load_session_secret(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("extra_settings", [{"limits": {"invalid_keys_per_minute": 3}}])
def test_wrong_keys_of_one_address_are_rate_limited(http, tokens):
    statuses = [
        http.get("/v1/status", headers={"Authorization": f"Bearer {n}"}).status_code
        for n in range(5)
    ]
    assert statuses == [401, 401, 401, 429, 429]
