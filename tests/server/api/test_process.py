"""The server process: socket, TLS, logs, signals."""

import argparse
import io
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from bitta.cli import keys
from bitta.errors import InputError
from bitta.server.logs import make_logger
from bitta.server.process import addresses, bind, check_tls, make_server
from bitta.server.settings import load_settings
from server.api.fakes import running

pytestmark = pytest.mark.full


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def log(stream):
    return make_logger("info", stream)


def run_keys(*arguments):
    parser = argparse.ArgumentParser()
    keys.configure(parser)
    return keys.main(parser.parse_args(arguments))


def test_bind_to_used_port_raises_input_error(settings):
    with bind(settings) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        again = settings.model_copy(update={"port": port})
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind(again)


def test_addresses_hold_the_port(settings):
    with bind(settings) as bound:
        port = bound.getsockname()[1]
        assert f"annotate   http://127.0.0.1:{port}/annotate" in addresses(settings, bound)


def test_missing_tls_files_raise_input_error(app, data_dir):
    given = {"data_dir": data_dir, "tls_cert": data_dir / "none", "tls_key": data_dir / "none"}
    with pytest.raises(InputError, match="cannot be used"):
        make_server(app, load_settings(given, environment={}))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tls_cert": "key.pem"}, "they are not a certificate and a key in PEM format"),
        ({"tls_cert": "."}, "tls_cert '.' cannot be used: Is a directory."),
        ({"tls_key": "other.pem"}, "the key does not belong to the certificate."),
        ({"tls_key": "locked.pem"}, "the key is encrypted; give tls_key_password"),
        ({"tls_key": "locked.pem", "tls_key_password": "wrong"}, "does not open the key."),
        ({"tls_client_ca": "none.pem"}, "tls_client_ca 'none.pem' cannot be used: No such file"),
        ({"tls_client_ca": "key.pem"}, "it holds no certificates in PEM format"),
    ],
)
def test_invalid_tls_settings_raise_input_error(tls_files, monkeypatch, given, sentence):
    monkeypatch.chdir(tls_files[0].parent)
    files = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    with pytest.raises(InputError, match=re.escape(sentence)):
        check_tls(load_settings(files | given, environment={}))


def test_request_is_logged_as_one_json_line(call, stream, tokens, store):
    call("client", "GET", "/v2/models/toy", headers={"X-Request-Id": "r"})
    call(None, "GET", "/nothing%0a{}")
    call("operator", "GET", "/v1/feedback/abc/undo?key=secret")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    key = next(key.id for key in store.keys.list() if key.role == "client")
    assert requests[0]["request_id"] == "r"
    assert requests[0]["key_id"] == key
    assert (requests[0]["route"], requests[0]["status"]) == ("/v2/models/{model}", 200)
    assert requests[0]["ms"] > 0
    assert (requests[1]["route"], requests[1]["status"]) == ("none", 404)
    assert "secret" not in stream.getvalue()
    assert not any(token in stream.getvalue() for token in tokens.values())


def test_failure_is_logged_with_its_request_id(app, settings, stream, store, tokens, monkeypatch):
    def broken():
        raise RuntimeError("the inside")

    monkeypatch.setattr(store, "snapshots", broken)
    with running(app, settings) as port:
        headers = {"Authorization": f"Bearer {tokens['operator']}", "X-Request-Id": "r-2"}
        failed = httpx.get(f"http://127.0.0.1:{port}/v1/snapshots", headers=headers, timeout=60)
    assert failed.status_code == 500
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (entry,) = [line for line in lines if line["event"] == "request"]
    assert (entry["request_id"], entry["status"], entry["level"]) == ("r-2", 500, "error")
    assert "the inside" in json.dumps(entry["exception"])


def test_keys_command_works_while_the_server_runs(http, store, data_dir, capsys):
    place = ("--data-dir", str(data_dir))
    run_keys("create", "--role", "annotator", "--name", "Ada", *place)
    token = capsys.readouterr().out.splitlines()[0]
    headers = {"Authorization": f"Bearer {token}"}
    me = http.get("/v1/session", headers=headers).json()
    assert (me["role"], me["name"]) == ("annotator", "Ada")
    run_keys("list", *place)
    listed = capsys.readouterr().out
    assert me["id"] in listed
    assert token not in listed
    run_keys("revoke", me["id"], *place)
    with pytest.raises(InputError, match="no valid key"):
        run_keys("revoke", me["id"], *place)
    time.sleep(2.1)
    assert http.get("/v1/session", headers=headers).status_code == 401


def test_server_serves_tls(app, data_dir, tokens, tls_files):
    certificate, key = tls_files
    given = {"data_dir": data_dir, "port": 0, "tls_cert": certificate, "tls_key": key}
    settings = load_settings(given, environment={})
    context = ssl.create_default_context(cafile=str(certificate))
    with running(app, settings) as port:
        url = f"https://localhost:{port}/v1/session"
        headers = {"Authorization": f"Bearer {tokens['client']}"}
        response = httpx.get(url, headers=headers, verify=context, timeout=60)
    assert response.json()["role"] == "client"


def test_client_certificate_is_required_with_client_ca(app, data_dir, tokens, tls_files):
    certificate, key = tls_files
    given = {
        "data_dir": data_dir, "port": 0, "tls_cert": certificate,
        "tls_key": key.with_name("locked.pem"), "tls_key_password": "geheim",
        "tls_client_ca": certificate,
    }  # fmt: skip
    settings = load_settings(given, environment={})
    with running(app, settings) as port:
        url = f"https://localhost:{port}/v1/session"
        headers = {"Authorization": f"Bearer {tokens['client']}"}
        context = ssl.create_default_context(cafile=str(certificate))
        with pytest.raises(httpx.TransportError):
            httpx.get(url, headers=headers, verify=context)
        context.load_cert_chain(certificate, key)
        assert httpx.get(url, headers=headers, verify=context).json()["role"] == "client"


@pytest.fixture
def tls_files(tmp_path):
    """Return paths of a certificate and its key. Beside them lie an encrypted and another key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing; apt install openssl to test TLS")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-out", certificate, "-keyout", key],
        check=True, capture_output=True,
    )  # fmt: skip
    for command in (
        ["rsa", "-in", key, "-aes256", "-passout", "pass:geheim", "-out", tmp_path / "locked.pem"],
        ["genrsa", "-out", tmp_path / "other.pem", "2048"],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return certificate, key


SCRIPT = """
import sys
from pathlib import Path
from server.api.fakes import FakeEngine
from bitta.server.api import create_app
from bitta.server.process import serve
from bitta.server.settings import load_settings
from bitta.server.store import Store

folder = Path(sys.argv[1])
settings = load_settings(
    {"data_dir": folder, "port": 0, "log_level": "error", "shutdown_seconds": 60}, environment={}
)
with Store.open(None, folder) as store:
    print(store.keys.create("operator", "o").token, flush=True)
    serve(create_app(FakeEngine(store), store, settings), settings,
          print_line=lambda line: print(line, flush=True))
    print("after", flush=True)
"""


def test_sigterm_ends_streams_and_returns_from_serve(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    with process:
        token = process.stdout.readline().strip()
        root = process.stdout.readline().split()[1].removesuffix("/v2")
        for _ in range(3):
            process.stdout.readline()
        headers = {"Authorization": f"Bearer {token}"}
        transport = httpx.HTTPTransport(retries=5)
        with (
            httpx.Client(transport=transport, timeout=60) as client,
            client.stream("GET", f"{root}/v1/events", headers=headers) as stream,
        ):
            lines = stream.iter_lines()
            next(lines)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
            assert time.monotonic() - began < 30
        assert process.wait(60) == 0
        assert process.stdout.read().strip() == "after"
