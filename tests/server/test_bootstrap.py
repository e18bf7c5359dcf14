"""A data folder goes on with the model and settings of its snapshots, or says why not."""

import pytest

from bitta.cli.main import main
from bitta.errors import SettingError
from bitta.server.bootstrap import start_server
from bitta.server.settings import load_settings

BEGUN = {"model": "embedded:digits-resnet8", "preset": "paper", "settings": {"lr": 0.002}}


def settings(folder, **changes):
    given = BEGUN | {"data_dir": folder / "data"} | changes
    classes = folder / "classes.txt"
    classes.write_text("low\nhigh\n")
    return load_settings({**given, "classes": classes}, environment={})


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder in which a server has run."""
    folder = tmp_path_factory.mktemp("begun")
    with start_server(settings(folder)) as host:
        assert "as given" in host.start_message
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
def test_other_settings_than_those_it_was_begun_with_are_refused(begun, changes, before, now):
    with pytest.raises(SettingError) as refused, start_server(settings(begun, **changes)):
        pass
    sentence = str(refused.value)
    assert f"the data folder {str(begun / 'data')!r} was started with {before}" in sentence
    assert f"given: {now}" in sentence
    assert sentence.endswith("start with the settings of the folder, or with another --data-dir.")


def test_another_model_than_it_was_begun_with_is_refused(begun):
    other = {**BEGUN, "model": "embedded:cifar10-resnet8", "data_dir": begun / "data"}
    with pytest.raises(SettingError) as refused, start_server(load_settings(other, environment={})):
        pass
    sentence = str(refused.value)
    assert f"the data folder {str(begun / 'data')!r} was started with another model" in sentence
    assert sentence.endswith("start with it, or with another --data-dir.")


def test_what_no_snapshot_holds_may_change_and_so_may_the_way_in_which_it_is_said(begun):
    same = {"settings": {"lr": 2e-3, "epochs": 3}}
    free = {
        "duty": 0.1, "max_batch": 8, "max_distance": 0.5, "rollback": False, "keep_images": "all",
        "keep_snapshots": 2, "max_open": 3, "limits": {"images": 7}, "question_seconds": 5.0,
    }  # fmt: skip
    with start_server(settings(begun, **same, **free)) as host:
        assert "from snapshot" in host.start_message


@pytest.mark.parametrize("check", [[], ["--check"]], ids=["serve", "check"])
def test_the_command_ends_with_the_sentence(begun, capsys, monkeypatch, check):
    monkeypatch.chdir(begun)
    arguments = ["--model", BEGUN["model"], "--classes", "classes.txt", "--data-dir", "data"]
    assert main(["serve", *arguments, "--port", "0", "--set", "lr=0.002", *check]) == 2
    told = capsys.readouterr().err
    assert told.startswith("bitta serve: the data folder 'data' was started with ")
    assert "Traceback" not in told
