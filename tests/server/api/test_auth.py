"""Who may do what, and how somebody is known."""

import base64
import time
from errno import ENOSPC

import pytest
from starlette.testclient import TestClient

from bitta.errors import InputError
from bitta.server.api.auth import Sessions, session_secret

EVERYBODY = {"client", "annotator", "operator"}
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
    ("POST", "/v1/feedback"): EVERYBODY,
    ("POST", "/v1/feedback/x/undo"): EVERYBODY,
    ("GET", "/v1/feedback"): EVERYBODY,
    ("GET", "/v1/feedback/export"): {"operator"},
    ("GET", "/v1/predictions/x/image"): {"annotator", "operator"},
    ("GET", "/v1/questions"): {"operator"},
    ("GET", "/v1/snapshots"): {"operator"},
    ("POST", "/v1/snapshots"): {"operator"},
    ("POST", "/v1/rollback"): {"operator"},
    ("POST", "/v1/adaptation/pause"): {"operator"},
    ("POST", "/v1/adaptation/resume"): {"operator"},
    ("DELETE", f"/v1/images/{'0' * 64}"): {"operator"},
    ("GET", "/v1/status"): EVERYBODY,
    ("GET", "/v1/session"): EVERYBODY,
    ("DELETE", "/v1/session"): EVERYBODY,
    ("GET", "/metrics"): EVERYBODY,
}
X = {"X-Bitta": "1"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route[0]} {route[1]}")
def test_roles_are_held_to_their_routes(call, route):
    body = {"json": {}} if route[0] == "POST" else {}
    for role in EVERYBODY:
        status = call(role, *route, **body).status_code
        assert (status == 403) == (role not in ROUTES[route]), (role, status)
        assert status not in (401, 500)
    refused = call(None, *route, **body)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")


def test_every_route_is_in_the_table_of_roles(http):
    paths = http.get("/openapi.json").json()["paths"]
    known = {(method, _pattern(path)) for method, path in ROUTES}
    other = {
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("POST", "/v1/session"),
        ("GET", "/v1/events"),
    }
    told = {
        (method.upper(), path)
        for path, item in paths.items()
        for method in item
        if "/versions/" not in path
    }
    assert told == known | other


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
def test_wrong_keys_are_refused(http, tokens, header):
    refused = http.get("/v1/status", headers={"Authorization": header})
    assert refused.status_code == 401
    assert refused.json()["code"] == "unauthorized"


def test_the_key_may_be_a_password_of_basic(http, tokens):
    given = base64.b64encode(f"me:{tokens['client']}".encode()).decode()
    said = http.get("/v1/session", headers={"Authorization": f"Basic {given}"})
    assert said.json()["role"] == "client"


def test_a_revoked_key_is_refused_within_seconds(call, store):
    me = call("annotator", "GET", "/v1/session").json()
    store.keys.revoke(me["id"])
    until = time.monotonic() + 20
    while call("annotator", "GET", "/v1/session").status_code != 401:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_signing_in_sets_a_cookie_that_scripts_cannot_read(http, tokens):
    said = http.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    assert said.json()["role"] == "annotator"
    cookie = said.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Secure" not in cookie
    assert tokens["annotator"] not in cookie
    assert http.get("/v1/session").json() == said.json()


def test_under_tls_the_cookie_is_secure(app, tokens):
    with TestClient(app, base_url="https://testserver") as client:
        said = client.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    assert "Secure" in said.headers["set-cookie"]


def test_a_page_of_somebody_else_changes_nothing_with_a_cookie(http, tokens):
    http.post("/v1/session", json={"key": tokens["operator"]}, headers=X)
    path = "/v1/adaptation/pause"
    assert http.post(path, json={}).status_code == 403
    assert http.post(path, json={}, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert http.post(path, json={}, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    assert http.post(path, json={}, headers=X).status_code == 200
    assert http.get("/v1/status").status_code == 200


def test_nobody_is_signed_in_by_another_page(http, tokens):
    assert http.post("/v1/session", json={"key": tokens["operator"]}).status_code == 403


def test_signing_out_ends_the_session_for_good(http, tokens):
    http.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    cookie = http.cookies["bitta_session"]
    assert http.delete("/v1/session", headers=X).status_code == 204
    http.cookies.set("bitta_session", cookie)
    assert http.get("/v1/session").status_code == 401


def test_a_cookie_of_a_revoked_key_is_worth_nothing(http, tokens, store):
    said = http.post("/v1/session", json={"key": tokens["annotator"]}, headers=X)
    store.keys.revoke(said.json()["id"])
    assert http.get("/v1/session").status_code == 401


@pytest.mark.parametrize("cookie", ["", ".", "a.b.c", "x" * 4000, "a.9999999999.n.0"])
def test_cookies_that_are_not_ours_are_refused(http, tokens, cookie):
    http.cookies.set("bitta_session", cookie)
    assert http.get("/v1/session").status_code == 401


def test_a_session_ends_in_time_and_cannot_be_stretched():
    clock = [1000.0]
    sessions = Sessions(b"k" * 32, seconds=60, clock=lambda: clock[0])
    cookie = sessions.begin("key")
    assert sessions.key_id(cookie) == "key"
    assert sessions.key_id(cookie.replace("1060", "9999")) is None
    assert Sessions(b"l" * 32, seconds=60, clock=lambda: clock[0]).key_id(cookie) is None
    clock[0] = 1061.0
    assert sessions.key_id(cookie) is None


def test_the_secret_survives_a_restart_and_is_private(tmp_path):
    secret = session_secret(tmp_path)
    assert session_secret(tmp_path) == secret
    assert (tmp_path / "session.secret").stat().st_mode & 0o777 == 0o600
    (tmp_path / "session.secret").write_bytes(b"short")
    with pytest.raises(InputError, match="holds 5 bytes"):
        session_secret(tmp_path)


def test_a_secret_that_finds_no_room_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(_):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        session_secret(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [{"limits": {"failures_per_minute": 3}}])
def test_guessing_keys_is_slowed_down(http, tokens):
    statuses = [
        http.get("/v1/status", headers={"Authorization": f"Bearer {n}"}).status_code
        for n in range(5)
    ]
    assert statuses == [401, 401, 401, 429, 429]
