"""Tests of the commands bitta serve and bitta feedback."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bitta.cli.main import main
from bitta.cli.serve import _load_settings, configure

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("httpx", reason="the extra 'client' is not installed")

from bitta.client import Client
from small_engine import CLASSES, answer, running, serve


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("BITTA_SERVE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def run(capsys, *arguments):
    code = main([*arguments])
    return code, capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "no model was given; use --model, or --demo"),
        (["--model", "nothing.safetensors"], "nothing.safetensors"),
        (["--model", "nowhere:make"], "cannot be loaded"),
        (["--demo", "--input-shape", "3x0x2"], "--input-shape is '3x0x2'"),
        (["--demo", "--set", "lr"], "--set is 'lr'; allowed: NAME=VALUE"),
        (["--demo", "--method", "nothing"], "nothing"),
        (["--demo", "--set", "lr=-1"], "lr"),
        (["--demo", "--config", "missing.toml"], "missing.toml"),
        (["--demo", "--rate", "-1"], "--rate is -1; allowed: 0 to 1000"),
        (["--demo", "corruptions", "--rate", "nan"], "--rate is nan; allowed"),
        (
            ["--model", "embedded:digits-resnet8", "--rate", "5"],
            "--rate 5 was given without --demo",
        ),
        (
            ["--demo", "--tls-cert", "/nope", "--tls-key", "/nope"],
            "tls_cert '/nope' cannot be used",
        ),
    ],
)
def test_user_error_prints_one_sentence(folder, capsys, arguments, sentence):
    code, output = run(capsys, "serve", *arguments, "--check")
    assert code == 2
    assert sentence in output.err
    assert output.err.startswith("bitta serve: ")
    assert "Traceback" not in output.err


def test_start_with_missing_certificate_creates_no_files(folder, capsys):
    code, output = run(capsys, "serve", "--demo", "--tls-cert", "/nope", "--tls-key", "/nope")
    assert code == 2
    assert "tls_cert '/nope' cannot be used: No such file or directory." in output.err
    assert list(folder.iterdir()) == []


def test_help_has_the_default_and_the_first_sentence_of_a_setting(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--port PORT port to listen on; 0 chooses a free one (default: 8000)" in text
    assert "--data-dir DIR folder for the database, snapshots and images (default: bitta" in text
    assert "--database URL URL of the database; by default SQLite in the data folder --data" in text
    choices = "--keep-images {none,queried,all} images that are kept on disk (default: queried)"
    assert f"{choices} --set" in text


def test_missing_server_package_is_named(folder):
    code = (
        "import sys; sys.modules['pydantic'] = None; from bitta.cli.main import main;"
        "sys.exit(main(['serve', '--model', 'm', '--port', '1']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("bitta serve: pydantic is not installed; run ")


def test_unknown_demo_is_refused_with_the_allowed_names(folder, capsys):
    with pytest.raises(SystemExit) as end:
        main(["serve", "--demo", "wheather"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "invalid choice: 'wheather'" in error
    assert "corruptions" in error


@pytest.mark.parametrize(
    ("demo", "model"),
    [
        (["--demo"], "digits-resnet8, 2 classes, input (3, 28, 28)"),
        (["--demo", "corruptions"], "cifar10-resnet8, 10 classes, input (3, 32, 32)"),
        (["--demo", "--method", "tent"], "digits-resnet8, 2 classes"),
        (["--demo", "--model", "embedded:cifar10-resnet8"], "cifar10-resnet8, 10 classes"),
    ],
)
def test_check_prints_the_model_and_creates_no_files(folder, capsys, demo, model):
    code, output = run(capsys, "serve", *demo, "--port", "0", "--check")
    assert code == 0
    assert model in output.out
    assert 'create some with "bitta keys create"' in output.out
    assert list(folder.iterdir()) == []


def test_check_reads_existing_data_and_creates_no_files(folder, capsys):
    checked = ["serve", "--demo", "--port", "0", "--check"]
    other = ["--data-dir", "deep/data", "--database", "sqlite:///other.db"]
    assert run(capsys, *checked, *other)[0] == 0
    assert list(folder.iterdir()) == []
    assert run(capsys, "keys", "create", "--role", "client", "--name", "me", *other)[0] == 0
    code, output = run(capsys, *checked, *other)
    assert code == 0
    assert "keys       1\n" in output.out
    (folder / "taken").write_text("")
    code, output = run(capsys, *checked, "--data-dir", "taken/data")
    assert code == 2
    assert "the data folder 'taken/data' cannot be created (Not a directory)" in output.err


def demo_settings(*arguments):
    parser = argparse.ArgumentParser()
    configure(parser)
    return _load_settings(parser.parse_args(["--demo", *arguments]))


def test_settings_of_a_demo_have_the_lowest_priority(folder, monkeypatch):
    own = demo_settings()
    assert (own.data_dir, own.log_level) == (Path("bitta-serve-demo"), "warning")
    assert (own.settings["lr"], own.guard.audit_window) == (6e-3, 30)
    monkeypatch.setenv("BITTA_SERVE_DATA_DIR", "mine")
    monkeypatch.setenv("BITTA_SERVE_GUARD__PATIENCE", "7")
    Path("serve.toml").write_text('log_level = "debug"\n[settings]\nlr = 0.5\nepochs = 2\n')
    made = demo_settings("--config", "serve.toml", "--set", "epochs=3")
    assert (made.data_dir, made.log_level) == (Path("mine"), "debug")
    assert made.settings == {**own.settings, "lr": 0.5, "epochs": 3}
    assert (made.guard.patience, made.guard.audit_window) == (7, 30)
    monkeypatch.setenv("BITTA_SERVE_METHOD", "tent")
    assert demo_settings("--data-dir", "other").settings == {}
    monkeypatch.setenv("BITTA_SERVE_MODEL", "embedded:cifar10-resnet8")
    assert demo_settings().classes is None
    assert demo_settings("--data-dir", "other").data_dir == Path("other")


def read_until(process, wanted, seconds=90.0):
    end, lines = time.monotonic() + seconds, []
    while wanted not in "".join(lines):
        assert time.monotonic() < end
        line = process.stdout.readline()
        assert line or process.poll() is None, lines
        lines.append(line)
    return "".join(lines)


def until(true, seconds=90.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.full
def test_demo_serves_asks_learns_stops_and_can_be_replayed(folder, capsys):
    command = [sys.executable, "-m", "bitta.cli.main", "serve", "--demo", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--rate", "30", "--keep-images", "all"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        text = read_until(process, "/openapi.json")
        root = re.search(r"http://\S+(?=/openapi.json)", text)[0]
        with Client(root, re.search(r"operator\s+(\S+)", text)[1]) as operator:
            until(lambda: operator.status()["questions"]["asked"] >= 3)
        key = re.search(r"annotator\s+(\S+)", text)[1]
        truth = "bitta-serve-demo/truth.jsonl"
        assert f"truth      {truth}" in text
        simulated = ["--url", root, "--key", key, "--simulate", truth]
        code, output = run(capsys, "annotate", *simulated, "--n", "3")
        assert code == 0
        assert "3 answers in " in output.out
        with Client(root, key) as annotator:
            question = annotator.next_question(wait=60)
            assert question.label in ("digit from 0 to 4", "digit from 5 to 9")
            learned = annotator.status()["learning"]["steps"]
            until(lambda: annotator.status()["learning"]["steps"] > learned)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.stdout.close()
        process.wait()
    data = ["--data-dir", "bitta-serve-demo"]
    code, output = run(capsys, "feedback", "replay", *data, "--model", "embedded:digits-resnet8")
    assert code == 0
    assert ", 0 differ" in output.out
    code, output = run(capsys, "feedback", "replay", *data, "--model", "embedded:cifar10-resnet8")
    assert code == 2
    assert "is not the model that the log starts with" in output.err
    code, output = run(capsys, "feedback", "export", *data)
    assert code == 0
    answers = [json.loads(line) for line in output.out.splitlines()]
    assert {answer["annotator_kind"] for answer in answers} == {"CODE"}
    assert len(answers) == 3


def test_log_of_a_model_without_card_is_replayed(folder, capsys):
    with running(folder / "data") as (engine, _):
        serve(engine, 0)
        until(lambda: engine.status().n_learning_steps == 1)
    Path("classes.txt").write_text("\n".join(CLASSES))
    given = ["--model", "bitta.testing:toy_classifier", "--classes", "classes.txt"]
    replay = ["feedback", "replay", "--data-dir", "data", *given]
    code, output = run(capsys, *replay, "--input-shape", "3x8x8")
    assert code == 0
    assert "8 images and 1 learning steps replayed" in output.out
    code, output = run(capsys, *replay)
    assert code == 2
    assert "give --input-shape" in output.err
    code, output = run(capsys, *replay, "--input-shape", "3x8")
    assert code == 2
    assert "--input-shape is '3x8'; allowed: channels x height x width" in output.err


def test_replay_of_a_log_with_a_deleted_image_is_refused(folder, capsys):
    with running(folder / "data") as (engine, store):
        served = serve(engine, 0)
        until(lambda: engine.status().n_learning_steps == 1)
        image = store.find_prediction(served.prediction_ids[0]).input_sha256
        assert store.delete_image(image, by="me").result()
    Path("classes.txt").write_text("\n".join(CLASSES))
    given = ["--model", "bitta.testing:toy_classifier", "--classes", "classes.txt"]
    replay = ["feedback", "replay", "--data-dir", "data", *given, "--input-shape", "3x8x8"]
    code, output = run(capsys, *replay)
    assert code == 2
    assert f"the image of prediction {served.prediction_ids[0]} was deleted" in output.err


@pytest.mark.parametrize("out", ["nowhere/answers.jsonl", "/dev/full"])
def test_export_to_an_invalid_path_prints_one_sentence(folder, capsys, out):
    with running(folder / "data") as (engine, store):
        answer(store, serve(engine, 0).prediction_ids[0])
    code, output = run(capsys, "feedback", "export", "--data-dir", "data", "--out", out)
    assert code == 2
    assert f"{out!r} cannot be written (No s" in output.err


@pytest.mark.parametrize(
    "command", [["feedback", "export"], ["keys", "list"], ["keys", "revoke", "k1"]], ids=" ".join
)
def test_folder_without_a_database_is_refused_and_not_created(folder, capsys, command):
    code, output = run(capsys, *command, "--data-dir", "nowhere")
    assert code == 2
    assert "there is no database in 'nowhere'" in output.err
    assert not (folder / "nowhere").exists()
