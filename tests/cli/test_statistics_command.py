"""Tests of the command bitta statistics."""

import pytest
import torch

from bitta import Session
from bitta.bench.experiment import ModelConfig
from bitta.bench.models import ClassSubset, load_source_model
from bitta.cli.main import main
from bitta.models import load_model, weights_path
from bitta.nn import weight_hash
from bitta.source_statistics import SourceStatistics
from bitta.streams import as_floats, embedded_pack

OFFLINE = ["statistics", "--weights", "embedded:cifar10-resnet8", "--set", "embedded:cifar10"]


def test_offline_example_writes_statistics_for_a_method(tmp_path, capsys):
    out = tmp_path / "statistics.safetensors"
    few = ["--n", "200", "--fisher-samples", "100"]
    assert main([*OFFLINE, *few, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "statistics batch 4/4" in shown
    assert "200 images, 10 classes, 64 features" in shown
    assert f'source_statistics = "{out}"' in shown
    found = SourceStatistics.load(out)
    with weights_path("embedded:cifar10-resnet8") as path:
        model, _ = load_model(path)
    assert found.weights == weight_hash(model)
    assert found.fisher.keys() >= {"bn1.weight", "bn1.bias"}
    # The head assigns each prototype to its own class.
    assert (model.fc(found.prototypes).argmax(-1) == torch.arange(10)).all()
    with Session(model, "owttt", source_statistics=str(out)) as session:
        session.step(as_floats(embedded_pack("cifar10").images[:8]))


def test_default_data_set_comes_from_the_card(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BITTA_DATA", str(tmp_path / "none"))
    out = str(tmp_path / "s")
    assert main(["statistics", "--weights", "embedded:cifar10-resnet8", "--out", out]) == 2
    assert "bitta data get cifar10" in capsys.readouterr().err


def test_factory_needs_a_data_set(tmp_path, capsys):
    factory = ["--factory", "bitta.testing:toy_classifier"]
    assert main(["statistics", *factory, "--out", str(tmp_path / "s")]) == 2
    assert "embedded:digits" in capsys.readouterr().err
    wanted = ["--set", "embedded:digits", "--n", "8", "--fisher-samples", "0"]
    assert main(["statistics", *factory, *wanted, "--out", str(tmp_path / "s")]) == 0
    assert SourceStatistics.load(tmp_path / "s").fisher == {}
    assert "no prototype for class" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--set", "embeded:cifar10"], "did you mean 'embedded:cifar10'?"),
        (["--n", "0"], "n is 0; allowed: 1 or more"),
        (["--fisher-samples", "-1"], "fisher_samples is -1"),
        (["--side", "3"], "side is 3"),
        (["--device", "abacus"], "device is 'abacus'"),
        (["--weights", "embedded:cifar"], "unknown embedded weights 'cifar'"),
        (["--set", "pacs"], "pacs and folders need the domain"),
        (["--set", "folders", "--domain", "photo"], "give the folder that holds the domains"),
        (["--set", "cifar10", "--domain", "photo"], "no other set has one"),
    ],
)
def test_invalid_input_prints_one_sentence(tmp_path, capsys, given, message):
    assert main([*OFFLINE, *given, "--out", str(tmp_path / "s")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "s").exists()


def test_folder_as_output_file_is_refused(tmp_path, capsys):
    assert main([*OFFLINE, "--n", "64", "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "is a folder; name the file to write" in shown.err
    assert "batch" not in shown.out  # the error comes before the work


def test_statistics_of_all_classes_are_refused_for_a_subset(tmp_path, capsys, monkeypatch):
    """The file has rows and names for all ten classes. The stream has two of them."""
    held = ClassSubset(
        load_source_model(ModelConfig(weights="embedded:cifar10-resnet8"))[0], [1, 0]
    )
    monkeypatch.setattr("bitta.bench.run_setup.match_classes", lambda *_: held)
    path = tmp_path / "x.toml"
    path.write_text(
        '[stream]\nkind = "corruptions"\n[model]\nweights = "embedded:cifar10-resnet8"\n'
        '[method]\nname = "eata"\nsource_statistics = "s"\n'
    )
    assert main(["run", str(path), "--out", str(tmp_path)]) == 2
    assert "method.source_statistics" in capsys.readouterr().err
