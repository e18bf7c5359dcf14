"""bitta serve and bitta feedback, from the outside."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress

import pytest

from bitta.cli.main import main

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BITTA_SERVE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def said(capsys, *arguments):
    code = main([*arguments])
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no model was given; use --model, or --demo"),
        (["--model", "nothing.safetensors"], "nothing.safetensors"),
        (["--model", "nowhere:make"], "cannot be loaded"),
        (["--demo", "--input-shape", "3x0x2"], "input-shape is '3x0x2'"),
        (["--demo", "--set", "lr"], "is not NAME=VALUE"),
        (["--demo", "--method", "nothing"], "nothing"),
        (["--demo", "--set", "lr=-1"], "lr"),
        (["--demo", "--config", "missing.toml"], "missing.toml"),
    ],
)
def test_mistakes_end_with_one_sentence(folder, capsys, arguments, sentence):
    code, output = said(capsys, "serve", *arguments, "--check")
    assert code == 2
    assert sentence in output.err
    assert output.err.startswith("bitta serve: ")
    assert "Traceback" not in output.err


def test_a_check_says_what_would_run(folder, capsys):
    code, output = said(capsys, "serve", "--demo", "--port", "0", "--check")
    assert code == 0
    assert "cifar10-resnet8, 10 classes, reads (3, 32, 32)" in output.out
    assert 'make some with "bitta keys create"' in output.out


def lines_of(process, wanted, seconds=90.0):
    end, lines = time.monotonic() + seconds, []
    while wanted not in "".join(lines):
        assert time.monotonic() < end
        line = process.stdout.readline()
        assert line or process.poll() is None, lines
        lines.append(line)
    return "".join(lines)


def test_the_demo_serves_asks_learns_stops_and_its_log_can_be_lived_again(folder, capsys):
    command = [sys.executable, "-m", "bitta.cli.main", "serve", "--demo", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--keep-images", "all"], stdout=subprocess.PIPE, text=True, cwd=folder
    )
    try:
        text = lines_of(process, "/openapi.json")
        root = re.search(r"http://\S+(?=/openapi.json)", text)[0]
        key = re.search(r"operator\s+(\S+)", text)[1]
        request = urllib.request.Request(
            f"{root}/v1/status", headers={"Authorization": f"Bearer {key}"}
        )
        end = time.monotonic() + 90
        while True:
            with suppress(OSError):
                status = json.load(urllib.request.urlopen(request, timeout=5))
                if status["learning"]["steps"] >= 1 and status["questions"]["asked"] >= 3:
                    break
            assert time.monotonic() < end, "it has asked or learned nothing"
            time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    data = ["--data-dir", "bitta-serve-demo"]
    code, output = said(capsys, "feedback", "replay", *data, "--model", "embedded:cifar10-resnet8")
    assert code == 0
    assert ", 0 differ" in output.out
    code, output = said(capsys, "feedback", "replay", *data, "--model", "embedded:digits-resnet8")
    assert code == 2
    assert "is not the model that the log began with" in output.err
    code, output = said(capsys, "feedback", "export", *data)
    assert (code, output.out) == (0, "")


def test_feedback_of_a_folder_that_is_not_there_is_refused(folder, capsys):
    code, output = said(capsys, "feedback", "export", "--data-dir", "nowhere")
    assert code == 2
    assert "there is no data folder 'nowhere'" in output.err
    assert not (folder / "nowhere").exists()
