"""Tests that a data folder needs the model and the settings of its first start."""

import pytest

from bitta.cli.main import main
from bitta.errors import SettingError
from bitta.server.process import start_server
from bitta.server.settings import load_settings

FIRST = {"model": "embedded:digits-resnet8", "preset": "paper", "settings": {"lr": 0.002}}


def settings(folder, **changes):
    given = FIRST | {"data_dir": folder / "data"} | changes
    classes = folder / "classes.txt"
    classes.write_text("low\nhigh\n")
    return load_settings({**given, "classes": classes}, environment={})


@pytest.fixture(scope="module")
def started_folder(tmp_path_factory):
    """Return a folder in which a server has run."""
    folder = tmp_path_factory.mktemp("started_folder")
    with start_server(settings(folder)) as server:
        assert "with the given weights" in server.start_message
    return folder


@pytest.mark.parametrize(
    ("changes", "before", "now"),
    [
        ({"window": 32}, "window 64", "window 32"),
        ({"n_queries": 5}, "n_queries 3", "n_queries 5"),
        ({"audits": 0}, "audits 1", "audits 0"),
        ({"seed": 7}, "seed 0", "seed 7"),
        ({"method": "tent", "preset": None}, "method 'bitta'", "method 'tent'"),
        ({"settings": {"lr": 0.5}}, "lr 0.002", "lr 0.5"),
        ({"settings": {}}, "lr 0.002", "lr "),
        ({"preset": None}, "weight_decay 0.0", "weight_decay "),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_changed_learner_settings_are_refused(started_folder, changes, before, now):
    with pytest.raises(SettingError) as refused, start_server(settings(started_folder, **changes)):
        pass
    message = str(refused.value)
    assert f"the data folder {str(started_folder / 'data')!r} was started with {before}" in message
    assert f"given: {now}" in message
    assert message.endswith("start with the settings of the folder, or with another --data-dir.")


def test_changed_model_is_refused(started_folder):
    other = {**FIRST, "model": "embedded:cifar10-resnet8", "data_dir": started_folder / "data"}
    with pytest.raises(SettingError) as refused, start_server(load_settings(other, environment={})):
        pass
    message = str(refused.value)
    assert (
        f"the data folder {str(started_folder / 'data')!r} was started with another model"
        in message
    )
    assert message.endswith("start with it, or with another --data-dir.")


def test_other_settings_may_change(started_folder):
    same = {"settings": {"lr": 2e-3, "epochs": 3}}
    free = {
        "duty": 0.1, "max_batch": 8, "max_distance": 0.5, "rollback": False, "keep_images": "all",
        "keep_snapshots": 2, "max_open_questions": 3, "limits": {"images": 7},
        "question_seconds": 5.0,
    }  # fmt: skip
    with start_server(settings(started_folder, **same, **free)) as server:
        assert "from snapshot" in server.start_message


@pytest.mark.parametrize("check", [[], ["--check"]], ids=["serve", "check"])
def test_command_prints_the_error(started_folder, capsys, monkeypatch, check):
    monkeypatch.chdir(started_folder)
    arguments = ["--model", FIRST["model"], "--classes", "classes.txt", "--data-dir", "data"]
    assert main(["serve", *arguments, "--port", "0", "--set", "lr=0.002", *check]) == 2
    output = capsys.readouterr().err
    assert output.startswith("bitta serve: the data folder 'data' was started with ")
    assert "Traceback" not in output
