"""Tests of the command line: run, methods, help and errors."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bitta.cli.main import main
from bitta.methods import METHODS
from small_experiment import without_times, write_experiment


def test_run_writes_a_result_and_prints_its_path(tmp_path, capsys):
    path = write_experiment(tmp_path)
    assert main(["run", str(path), "--out", str(tmp_path), "--seed", "3",
                 "--set", "method.name=tent", "--set", "method.restore=0"]) == 2  # fmt: skip
    assert "unknown setting 'restore' of method 'tent'" in capsys.readouterr().err
    assert main(["run", str(path), "--out", str(tmp_path), "--seed", "3",
                 "--set", "method.lr=1e-3"]) == 0  # fmt: skip
    out = capsys.readouterr().out
    result = tmp_path / "trial-seed3.json"
    assert f"result: {result}" in out
    assert "batch 14/14" in out
    assert out.startswith("path: eager, float32, channels_last\n")
    assert re.search(
        r"\nseconds: [\d.]+ start-up, [\d.]+ making images \([\d.]+ waited for\), "
        r"[\d.]+ learning, 0.0 of it capture; [\d.]+ in all\n",
        out,
    )
    table = json.loads(result.read_text())
    assert table["experiment"]["seed"] == 3
    assert table["experiment"]["method"]["lr"] == 1e-3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.full(100, 7)}, "labels go up to 7, but the model knows 5 classes"),
        (
            {"inputs": np.zeros((100, 4, 8, 8), np.float32)},
            "cannot read images of shape (4, 8, 8)",
        ),
        ({"inputs": np.zeros((99, 3, 8, 8), np.float32)}, "99 inputs, 100 labels"),
    ],
)
def test_unsuitable_data_prints_one_sentence(tmp_path, capsys, arrays, message):
    path = write_experiment(tmp_path, **arrays)
    assert main(["run", str(path), "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.factory=nowhere:thing", "cannot be loaded"),
        ("model.factory=bitta", '"module:name"'),
        ("model.factory=builtins:dict", "returned a dict"),
        ("model.factory=bitta.testing:check_method", "cannot be called"),
        ("method.name=btita", "did you mean 'bitta'"),
        ("stream.path=none.npz", "there is no file 'none.npz'"),
        ("stream.colour=1", "unknown setting 'colour' of [stream]"),
        ("feedback.delay=-1", "delay is -1"),
    ],
)
def test_invalid_setting_prints_one_sentence(tmp_path, capsys, change, message):
    path = write_experiment(tmp_path)
    assert main(["run", str(path), "--out", str(tmp_path), "--set", change]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_precision_can_be_chosen_and_unknown_one_is_refused(tmp_path, capsys):
    path = write_experiment(tmp_path)
    command = ["run", str(path), "--out", str(tmp_path), "--eager", "--precision"]
    assert main([*command, "bfloat16"]) == 0
    assert "path: eager, bfloat16" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        main([*command, "float8"])
    assert refused.value.code == 2
    assert "float32" in capsys.readouterr().err


def test_finished_run_prints_its_original_seconds(tmp_path, capsys):
    command = ["run", str(write_experiment(tmp_path)), "--out", str(tmp_path)]
    told = []
    for again in ([], ["--resume"]):
        assert main([*command, *again]) == 0
        told.append(re.findall(r"seconds: .*", capsys.readouterr().out))
    assert told[0] == told[1] != []


def test_unknown_weights_and_devices_are_refused(tmp_path, capsys):
    path = tmp_path / "x.toml"
    path.write_text('[stream]\nkind="digits"\n[model]\nweights="embedded:x"\n[method]\nname="tent"')
    assert main(["run", str(path), "--out", str(tmp_path)]) == 2
    assert "allowed: cifar10-resnet8, digits-resnet8" in capsys.readouterr().err
    for device in ("abacus", "meta", "cuda:99"):
        assert main(["run", str(path), "--device", device]) == 2
        assert f"device is '{device}'" in capsys.readouterr().err
    assert main(["run", str(path), "--out", str(path)]) == 2
    assert "cannot be written to" in capsys.readouterr().err
    assert main(["run", str(tmp_path / "none.toml")]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.full
def test_ctrl_c_saves_and_resume_continues(tmp_path, monkeypatch, forker):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in the forked processes
    command = ["run", str(write_experiment(tmp_path, n=400)), "--out"]
    log = tmp_path / "log"
    assert forker.start([*command, str(tmp_path / "whole")], log).wait() == 0, log.read_text()
    command.append(str(tmp_path / "parts"))
    life = subprocess.Popen(
        [sys.executable, "-m", "bitta.cli.main", *command, "--checkpoint-seconds", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "parts" / "trial-seed0.safetensors").exists():
        assert life.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    life.send_signal(signal.SIGINT)
    _, error = life.communicate(timeout=60)
    assert life.returncode == 130
    assert "--resume" in error
    assert forker.start([*command, "--resume"], log).wait() == 0, log.read_text()
    name = "trial-seed0.json"
    assert without_times(tmp_path / "whole" / name) == without_times(tmp_path / "parts" / name)


def test_full_disk_prints_one_sentence_and_run_can_be_resumed(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    command = ["run", str(write_experiment(tmp_path)), "--out", str(tmp_path), "--resume"]
    with monkeypatch.context() as patched:
        patched.setattr("bitta.bench.checkpoint.save_state", full)
        assert main([*command, "--checkpoint-seconds", "0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bitta run: the disk is full (No space left on device)")
    assert error.count("\n") == 1
    assert main(command) == 0


def test_methods_lists_every_method_and_every_setting(capsys):
    assert main(["methods"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name} " in f"\n{listed}" for name in METHODS)
    assert main(["methods", "bitta"]) == 0
    shown = capsys.readouterr().out
    assert "alpha" in shown
    assert "Weight α" in shown
    assert "preset paper" in shown
    assert main(["methods", "btta"]) == 2
    assert "did you mean 'bitta'" in capsys.readouterr().err


def test_list_of_methods_fits_a_terminal(capsys):
    main(["methods"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120


def test_every_setting_of_every_method_has_a_description(capsys):
    from bitta.config_base import describe_settings  # noqa: PLC0415

    for kind in METHODS.values():
        assert all(setting.meaning for setting in describe_settings(kind.Config))


def test_help_exits_with_0_and_usage_errors_with_2(capsys):
    for command in (["--help"], ["run", "--help"], ["demo", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 0
    assert "--seed" in capsys.readouterr().out
    for command in ([], ["dance"], ["demo", "--seed", "one"]):
        with pytest.raises(SystemExit) as stop:
            main(command)
        assert stop.value.code == 2


def test_factory_in_the_working_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodels.py").write_text("from bitta.testing import toy_classifier as load")
    path = write_experiment(tmp_path)
    assert main(["run", str(path), "--set", "model.factory=mymodels:load"]) == 0


def test_closed_pipe_gives_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m bitta.cli.main methods bitta | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr


BARE = """
import sys
for name in ("matplotlib", "rich", "transformers", "pytest"):
    sys.modules[name] = None
from bitta.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_run_needs_only_the_core_packages(tmp_path):
    path = write_experiment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", BARE, "run", str(path), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path / "trial-seed0.json").exists()
