"""Tests of experiments read from TOML, and of the errors in them."""

import pytest

from bitta.bench.experiment import Experiment, override, read_toml
from bitta.errors import BittaError

GOOD = {
    "stream": {"kind": "digits"},
    "model": {"weights": "embedded:digits-resnet8"},
    "method": {"name": "bitta", "preset": "reference", "lr": 1},
    "feedback": {"flip": 0.1},
}


def test_presets_and_settings_become_one_table():
    table = Experiment.from_table(GOOD, name="x").as_table()
    assert table["method"]["name"] == "bitta"
    assert table["method"]["lr"] == 1.0
    assert table["method"]["observes"] == "before_asking"
    assert table["feedback"]["flip"] == 0.1
    assert table["name"] == "x"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"strem": {}}, "unknown key 'strem'; did you mean 'stream'"),
        ({"method": {}}, "method.name is missing"),
        ({"method": {"name": 3}}, "method.name is 3"),
        ({"method": {"name": "tnet"}}, "did you mean 'tent'"),
        ({"method": {"name": "tent", "lr": float("inf")}}, "lr is inf; allowed: a finite number"),
        ({"method": {"name": "tent", "lrr": 1}}, "did you mean 'lr'"),
        ({"method": {"name": "tent", "preset": "x"}}, "unknown preset"),
        ({"method": "bitta"}, r"allowed: a table \[method\]"),
        ({"stream": {}}, "stream.kind is missing"),
        (
            {"stream": {"kind": "movie"}},
            "unknown kind 'movie' of stream; allowed: arrays, cifar10-c",
        ),
        ({"stream": {"kind": "arrays"}}, "kind 'arrays' needs one"),
        ({"stream": {"kind": "digits", "batch_size": 0}}, "batch_size is 0"),
        ({"stream": {"kind": "corruptions", "corruptions": "fgo"}}, "did you mean 'fog'"),
        ({"model": {}}, "model.weights and model.factory"),
        ({"feedback": {"flip": 2.0}}, r"flip is 2\.0"),
        ({"method": {"name": "bitta", "selection": "rndom"}}, "did you mean 'random'"),
        ({"feedback": {"n_queries": "3"}}, "n_queries is '3'"),
        ({"seed": "0"}, "seed is '0'"),
        ({"name": "../x"}, "name is '../x'"),
        ({"name": ["x"]}, r"name is \['x'\]; allowed: "),
        ({"method": {"name": "bitta", "preset": ["reference"]}}, "unknown preset"),
        ({"method": {"name": "bitta", "sites": 5}}, "sites is 5"),
    ],
)
def test_invalid_settings_are_refused(changed, message):
    with pytest.raises(BittaError, match=message):
        Experiment.from_table(GOOD | changed, name="x")


def test_override_sets_values_and_refuses_invalid_paths():
    table = {"a": {"b": 1}, "c": 2}
    override(table, "a.b=2.5")
    override(table, "a.d=plain text")
    override(table, "e.f=true")
    assert table == {"a": {"b": 2.5, "d": "plain text"}, "c": 2, "e": {"f": True}}
    with pytest.raises(BittaError, match=r"a\.b=value"):
        override(table, "a.b")
    with pytest.raises(BittaError, match="'c' is a value"):
        override(table, "c.d=1")


def test_invalid_or_missing_toml_file_is_refused(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("a = = 1")
    with pytest.raises(BittaError, match="TOML"):
        read_toml(path)
    with pytest.raises(BittaError, match=r"none\.toml"):
        read_toml(tmp_path / "none.toml")


def test_numbers_without_leading_zero_are_read():
    table = {}
    for assignment in ("a.b=.1", "a.c=1e-3", "a.d=fog", "a.e=true"):
        override(table, assignment)
    assert table == {"a": {"b": 0.1, "c": 1e-3, "d": "fog", "e": True}}
