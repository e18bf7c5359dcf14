"""Tests of downloads from servers that fail in many ways."""

import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bitta.errors import InputError, SettingError
from bitta.streams import download as module
from bitta.streams.download import download

FILE = bytes(range(256)) * 4096  # 1 MiB
HALF = len(FILE) // 2
SHA256 = hashlib.sha256(FILE).hexdigest()


class Server(ThreadingHTTPServer):
    """Server of one file. It fails as `script` says for the next requests, then works normally."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.file = FILE
        self.etag = '"one"'
        self.last_modified = None
        self.ignores_range = False
        self.ignores_if_range = False
        self.cut = HALF
        self.script = []
        self.seen = []
        self.sent = []
        self.release = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/set.tar"

    def handle_error(self, request, client_address):
        """Do nothing: some tests disconnect the client."""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format, *values):  # noqa: A002
        pass

    def do_GET(self):
        server = self.server
        server.seen.append((self.headers.get("Range"), self.headers.get("If-Range")))
        step = server.script.pop(0) if server.script else "serve"
        if isinstance(step, int):
            self.send_error(step)
            return
        file, start = server.file, self.start_of_range()
        self.send_response(206 if start is not None else 200)
        if start is not None:
            self.send_header("Content-Range", f"bytes {start}-{len(file) - 1}/{len(file)}")
        body = file[start or 0 :]
        if step != "no length":
            self.send_header("Content-Length", str(len(body)))
        if server.etag:
            self.send_header("ETag", server.etag)
        if server.last_modified:
            self.send_header("Last-Modified", server.last_modified)
        self.end_headers()
        self.send(step, body)

    def start_of_range(self):
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        server = self.server
        if asked is None or server.ignores_range:
            return None
        holds = server.ignores_if_range or condition in (None, server.etag, server.last_modified)
        if not holds:
            return None
        return int(asked.removeprefix("bytes=").removesuffix("-"))

    def send(self, step, body):
        if step == "corrupt":
            body = bytes([body[0] ^ 1]) + body[1:]
        broken = step in ("truncate", "drop", "stall")
        cut = self.server.cut
        body = body[: cut if len(body) > cut else len(body) // 2] if broken else body
        self.server.sent.append(len(body))
        self.wfile.write(body)
        self.wfile.flush()
        if step == "stall":
            self.server.release.wait(60)
        if step == "drop":
            # A linger time of 0 resets the connection instead of closing it normally.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            time.sleep(0.05)
            self.connection.close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.release.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "set.tar"


def fetch(server, target, **settings):
    return download(server.url, target, **{"timeout": 30.0, "pause": 0.001} | settings)


def parts(target):
    return sorted(path.name for path in target.parent.iterdir())


def test_complete_download_reports_progress(server, target):
    seen = []
    path = fetch(server, target, sha256=SHA256, on_progress=lambda *step: seen.append(step))
    assert path == target
    assert target.read_bytes() == FILE
    assert parts(target) == ["set.tar"]
    assert seen[0] == (0, len(FILE))
    assert seen[-1] == (len(FILE), len(FILE))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_missing_folder_is_created(server, tmp_path):
    assert fetch(server, tmp_path / "a" / "b" / "set.tar").read_bytes() == FILE


@pytest.mark.parametrize("how", ["truncate", "drop"])
def test_download_continues_after_a_broken_connection(server, target, how):
    server.script = [how]
    why = []
    fetch(server, target, sha256=SHA256, on_retry=why.append)
    assert target.read_bytes() == FILE
    (first, _), (again, condition) = server.seen
    assert first is None
    start = int(again.removeprefix("bytes=").removesuffix("-"))
    # A reset may lose bytes that were not read yet. A normal close loses none.
    assert start == HALF if how == "truncate" else 0 < start <= HALF
    assert condition == '"one"'
    assert server.sent == [HALF, len(FILE) - start]
    assert len(why) == 1
    assert "trying again" in why[0]


@pytest.mark.full
def test_download_continues_after_a_stalled_connection(server, target):
    server.script = ["stall"]
    began = time.monotonic()
    fetch(server, target, sha256=SHA256, timeout=3)
    assert time.monotonic() - began < 30
    assert target.read_bytes() == FILE
    assert server.seen == [(None, None), (f"bytes={HALF}-", '"one"')]


def test_failures_with_new_bytes_do_not_count(server, target):
    server.script = ["truncate"] * 8
    fetch(server, target, sha256=SHA256, attempts=2)
    assert target.read_bytes() == FILE
    assert sum(server.sent) == len(FILE)


def test_server_without_range_support_is_read_from_the_start(server, target):
    server.script = ["truncate"]
    server.ignores_range = True
    fetch(server, target, sha256=SHA256)
    assert target.read_bytes() == FILE
    assert server.seen[1] == (f"bytes={HALF}-", '"one"')
    assert server.sent == [HALF, len(FILE)]


def test_server_that_never_sends_the_end_raises_an_error(server, target):
    server.script = ["truncate"] * 9
    server.ignores_range = True
    with pytest.raises(InputError, match=r"failed 3 times in a row \(the connection closed after"):
        fetch(server, target, attempts=3)
    assert len(server.seen) == 3
    assert not target.exists()


def change_between_attempts(server, etag):
    """Break the first connection, then serve another file of the same length."""
    newer = FILE[::-1]

    def change(_why):
        server.file, server.etag = newer, etag

    server.script = ["truncate"]
    return newer, change


def test_changed_remote_file_starts_over(server, target):
    newer, change = change_between_attempts(server, '"two"')
    fetch(server, target, on_retry=change)
    assert target.read_bytes() == newer
    assert server.sent == [HALF, len(newer)]


def test_changed_remote_file_starts_over_without_if_range_support(server, target):
    server.ignores_if_range = True
    newer, change = change_between_attempts(server, '"two"')
    fetch(server, target, on_retry=change)
    assert target.read_bytes() == newer
    assert [asked for asked, _ in server.seen] == [None, f"bytes={HALF}-", None]


def test_last_modified_replaces_a_weak_etag(server, target):
    server.etag = 'W/"one"'
    server.last_modified = "Sat, 01 Nov 2025 10:00:00 GMT"
    server.script = ["truncate"]
    fetch(server, target)
    assert target.read_bytes() == FILE
    assert server.seen[1] == (f"bytes={HALF}-", server.last_modified)


def test_resume_without_validator_needs_a_checksum(server, target):
    server.etag = None
    server.script = ["truncate"]
    fetch(server, target)
    assert [asked for asked, _ in server.seen] == [None, None]
    target.unlink()
    server.seen.clear()
    server.script = ["truncate"]
    fetch(server, target, sha256=SHA256)
    assert [asked for asked, _ in server.seen] == [None, f"bytes={HALF}-"]
    assert target.read_bytes() == FILE


def test_mixed_bytes_are_detected_by_the_checksum(server, target):
    newer, change = change_between_attempts(server, None)
    server.etag = None
    fetch(server, target, sha256=hashlib.sha256(newer).hexdigest(), on_retry=change)
    assert target.read_bytes() == newer
    assert [asked for asked, _ in server.seen] == [None, f"bytes={HALF}-", None]


def test_corrupt_file_is_downloaded_once_more(server, target):
    server.script = ["corrupt"]
    why = []
    fetch(server, target, sha256=SHA256, md5=hashlib.md5(FILE).hexdigest(), on_retry=why.append)
    assert target.read_bytes() == FILE
    assert server.seen == [(None, None), (None, None)]
    assert "once more from the start" in why[0]


def test_second_corrupt_download_is_refused_with_both_checksums(server, target):
    server.script = ["corrupt", "corrupt"]
    came = hashlib.sha256(bytes([1]) + FILE[1:]).hexdigest()
    with pytest.raises(
        InputError, match=f"sha256 {SHA256} was expected, but the file has {came}, twice"
    ):
        fetch(server, target, sha256=SHA256)
    assert parts(target) == []
    assert len(server.seen) == 2


@pytest.mark.parametrize("code", [404, 403, 410])
def test_client_error_status_is_not_retried(server, target, code):
    server.script = [code]
    with pytest.raises(InputError, match=f"was refused \\({code} .*check the address"):
        fetch(server, target)
    assert len(server.seen) == 1


@pytest.mark.parametrize("code", [500, 503, 429])
def test_server_error_is_retried(server, target, code):
    server.script = [code, code]
    fetch(server, target, sha256=SHA256)
    assert target.read_bytes() == FILE
    assert len(server.seen) == 3


def test_pauses_double_up_to_a_limit(server, target, monkeypatch):
    pauses = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    server.script = [500] * 9
    with pytest.raises(InputError, match="the server answered 500"):
        fetch(server, target, attempts=7, pause=1.0)
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_range_past_the_end_starts_over(server, target):
    server.script = ["truncate"]
    with pytest.raises(InputError):
        fetch(server, target, attempts=1)
    server.script = [416]
    fetch(server, target)
    assert [asked for asked, _ in server.seen] == [None, f"bytes={HALF}-", None]
    assert target.read_bytes() == FILE


def test_next_call_continues_from_the_kept_part(server, target):
    server.script = ["truncate"]
    with pytest.raises(InputError, match="the downloaded part is kept"):
        fetch(server, target, attempts=1)
    assert parts(target) == ["set.tar.part", "set.tar.part.json"]
    fetch(server, target)
    assert server.sent == [HALF, HALF]
    assert target.read_bytes() == FILE
    assert parts(target) == ["set.tar"]


@pytest.mark.parametrize("note", ["", "no json", "[]", '{"colour": 1}', None])
def test_part_of_unknown_origin_is_not_used(server, target, note):
    target.with_name("set.tar.part").write_bytes(b"x" * 100)
    if note is not None:
        target.with_name("set.tar.part.json").write_text(note)
    fetch(server, target)
    assert server.seen == [(None, None)]
    assert target.read_bytes() == FILE


def test_part_of_another_address_is_not_used(server, target):
    target.with_name("set.tar.part").write_bytes(b"x" * 100)
    note = {"url": f"{server.url}.old", "validator": '"one"', "total": len(FILE)}
    target.with_name("set.tar.part.json").write_text(json.dumps(note))
    fetch(server, target, sha256=SHA256)
    assert server.seen == [(None, None)]
    assert target.read_bytes() == FILE


def test_complete_part_is_only_verified(server, target):
    target.with_name("set.tar.part").write_bytes(FILE)
    note = {"url": server.url, "validator": '"one"', "total": len(FILE)}
    target.with_name("set.tar.part.json").write_text(json.dumps(note))
    fetch(server, target, sha256=SHA256)
    assert server.seen == []
    assert target.read_bytes() == FILE


def test_existing_file_is_kept_if_its_checksum_matches(server, target):
    fetch(server, target)
    fetch(server, target, sha256=SHA256.upper())
    assert len(server.seen) == 1
    target.write_bytes(FILE[:-1])
    fetch(server, target, sha256=SHA256)
    assert len(server.seen) == 2
    assert target.read_bytes() == FILE


def test_download_without_content_length_works(server, target):
    server.script = ["no length"]
    seen = []
    fetch(server, target, sha256=SHA256, on_progress=lambda *step: seen.append(step))
    assert target.read_bytes() == FILE
    assert seen[-1] == (len(FILE), None)


def test_ctrl_c_keeps_the_part(server, target):
    def stop(done, total):
        if done == HALF:
            raise KeyboardInterrupt

    server.script = ["stall"]
    with pytest.raises(KeyboardInterrupt):
        fetch(server, target, on_progress=stop)
    assert target.with_name("set.tar.part").read_bytes() == FILE[:HALF]
    fetch(server, target, sha256=SHA256)
    assert server.sent == [HALF, HALF]
    assert target.read_bytes() == FILE


KILLED_PROCESS = """
import sys
from bitta.streams.download import download
download(*sys.argv[1:], on_progress=lambda done, total: print(done, flush=True))
"""


def test_part_of_a_killed_process_is_used(server, target):
    server.file, server.cut, server.script = FILE * 4, len(FILE) * 3, ["stall"]
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_PROCESS, server.url, target],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        while process.stdout.readline().strip() != str(server.cut):
            assert process.poll() is None
        process.kill()
    kept = target.with_name("set.tar.part").stat().st_size
    # Buffered bytes are lost: less than two blocks of 1 MiB.
    assert len(FILE) <= kept <= server.cut
    fetch(server, target, sha256=hashlib.sha256(server.file).hexdigest())
    assert target.read_bytes() == server.file
    assert server.seen[1] == (f"bytes={kept}-", '"one"')
    assert server.sent == [server.cut, len(server.file) - kept]


def test_memory_does_not_grow_with_the_file(server, target):
    server.file = FILE * 16
    tracemalloc.start()
    fetch(server, target, sha256=hashlib.sha256(server.file).hexdigest())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < len(server.file) / 2
    assert target.stat().st_size == len(server.file)


@pytest.mark.parametrize(
    ("url", "settings", "message"),
    [
        ("ftp://example.org/x", {}, "allowed: http://... or https://..."),
        ("set.tar", {}, "allowed: http://... or https://..."),
        ("http://", {}, "allowed: http"),
        ("http://a b/c", {}, "allowed: http"),
        ("http://a:port/c", {}, "allowed: http"),
        ("http://é/c", {}, "%XX"),
        ("http://127.0.0.1/c", {"sha256": "12"}, "sha256 is '12'; allowed: 64 hexadecimal digits"),
        ("http://127.0.0.1/c", {"md5": "g" * 32}, "32 hexadecimal digits"),
    ],
)
def test_invalid_address_or_checksum_is_refused_before_any_request(target, url, settings, message):
    with pytest.raises(SettingError, match=message):
        download(url, target, **settings)
    assert parts(target) == []


def test_unreachable_server_is_one_sentence(target, server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/set.tar"
        with pytest.raises(InputError, match=r"failed 2 times in a row \(Connection refused"):
            download(url, target, attempts=2, pause=0.001)


def test_full_disk_is_detected_before_the_download(server, target, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"MiB are free .*free some space"):
        fetch(server, target)
    assert parts(target) == []


def test_unwritable_path_is_one_sentence(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        fetch(server, tmp_path / "file" / "set.tar")
