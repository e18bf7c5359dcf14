"""Tests of the command bitta models."""

import argparse
import json
import re
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import save_file

from bitta.cli import models
from bitta.errors import InputError, SettingError
from bitta.models import ModelCard, build_model, load_model, read_card, save_model

PIXELS = {"mean": [0.5] * 3, "std": [0.2] * 3}


def call(*argv):
    parser = argparse.ArgumentParser()
    models.configure(parser)
    return models.main(parser.parse_args(argv))


def write(path, **options):
    arguments = {"n_classes": 20, **PIXELS}
    card = ModelCard(
        architecture="resnet8",
        arguments=arguments,
        classes=tuple(f"kind {number}" for number in range(20)),
        input_shape=(3, 32, 32),
        preprocessing={"resize": 36, "crop": 32},
        accuracy={"its test": 51.25, "another": 40.0},
        source="a set with a name that goes on and on, far beyond the width of a table",
        terms="none",
    )
    return save_model(path, build_model("resnet8", **arguments), card, **options)


def test_embedded_weights_are_listed_without_a_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call() == 0
    header, one, two, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "architecture", "classes", "accuracy", "size", "source"]
    assert one.startswith("embedded:cifar10-resnet8  resnet8       10       87.4 % cifar10 test")
    assert "0.3 MB" in one
    assert two.startswith("embedded:digits-resnet8 ")


def test_model_with_only_a_training_log_is_listed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [path] = write("weights/one.safetensors")
    log = {"card": asdict(read_card(path)), "sha256": {path.name: "0" * 64}}
    (tmp_path / "weights" / "one.json").write_text(json.dumps(log))
    (tmp_path / "weights" / "large.json").write_text(json.dumps(log))
    (tmp_path / "weights" / "notes.json").write_text("[1]")
    assert call() == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "weights/" in line]
    assert [line.split()[0] for line in lines] == [
        "weights/large.safetensors", "weights/one.safetensors",
    ]  # fmt: skip
    assert "51.2 % its test" in lines[0]
    assert "log only" in lines[0]


def test_weights_of_a_folder_are_listed_with_problems(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("weights/one.safetensors", half=True)
    write("weights/deep/parts.safetensors", part_bytes=150_000)
    _, second, *_ = write("weights/torn.safetensors", part_bytes=150_000)
    second.unlink()
    content = (tmp_path / "weights" / "one.safetensors").read_bytes()
    (tmp_path / "weights" / "cut.safetensors").write_bytes(content[:-100])
    (tmp_path / "weights" / "text.safetensors").write_text("hello")
    (tmp_path / "weights" / ".one.safetensors").write_text("a draft")
    save_file({"x": torch.zeros(1)}, "weights/plain.safetensors")
    assert call() == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: re.split("  +", line) for line in out.splitlines() if line}
    assert rows["weights/one.safetensors"][1:5] == ["resnet8", "20", "51.2 % its test", "0.2 MB"]
    assert rows["weights/one.safetensors"][5] == "a set with a name that goes on and on, far be..."
    assert rows["weights/deep/parts.safetensors"][4] == "0.3 MB in 4 parts"
    problems = [line for line in out.splitlines() if line.startswith("not usable: ")]
    assert len(problems) == 4
    assert any("torn-00002-of-00004.safetensors is missing" in problem for problem in problems)
    assert any("plain.safetensors' does not say which" in problem for problem in problems)
    assert sum("is not a readable safetensors file" in problem for problem in problems) == 2
    assert call("--folder", "weights/deep") == 0
    assert "one.safetensors" not in capsys.readouterr().out
    with pytest.raises(InputError, match="there is no folder 'nowhere'"):
        call("--folder", "nowhere")


def test_card_is_shown_for_path_part_and_embedded_weights(tmp_path, capsys):
    part, *_ = write(tmp_path / "m.safetensors", part_bytes=150_000)
    for path in (part, tmp_path / "m.safetensors"):
        assert call("show", str(path)) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{path}: resnet8, 0.3 MB in 4 parts\n")
        assert "preprocessing  resize = 36, crop = 32" in out
        assert "20: kind 0, kind 1," in out
        assert "kind 9 and 10 more" in out
        assert "accuracy       40.00 % another" in out
    assert call("show", "embedded:cifar10-resnet8") == 0
    assert "airplane" in capsys.readouterr().out
    with pytest.raises(SettingError, match="did you mean 'cifar10-resnet8'"):
        call("show", "embedded:cifar10-resnet9")
    with pytest.raises(InputError, match="there are no weights at"):
        call("show", str(tmp_path / "none.safetensors"))


@pytest.fixture
def checkpoint(tmp_path):
    model = build_model("resnet8", n_classes=3, **PIXELS)
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 1}, tmp_path / "old.pth")
    return tmp_path / "old.pth"


def import_model(checkpoint, out, *, classes="3", extra=()):
    return call(
        "import", str(checkpoint), "--architecture", "resnet8", "--classes", str(classes),
        "--mean", "0.5", "0.5", "0.5", "--std", "0.2", "0.2", "0.2", *extra, "--out", str(out),
    )  # fmt: skip


def test_import_writes_weights_with_a_card_and_prints_notes(checkpoint, tmp_path, capsys):
    out = tmp_path / "new" / "m.safetensors"
    extra = ("--resize", "36", "--crop", "32", "--source", "a set", "--half")
    assert import_model(checkpoint, out, extra=extra) == 0
    said = capsys.readouterr().out
    assert "note: left out other entries beside 'state_dict': epoch.\n" in said
    assert "note: removed 'module.' in " in said
    assert said.endswith(f"weights: {out}\n")
    _, card = load_model(out)
    assert card.classes == ("0", "1", "2")
    assert card.arguments == {"n_classes": 3, **PIXELS}
    assert card.preprocessing == {"resize": 36, "crop": 32}
    assert card.source == "a set"


@pytest.mark.parametrize(
    ("name", "content"),
    [("names.txt", "cat\n dog \n\nbig hen\n"), ("names.json", '["cat", "dog", "big hen"]')],
)
def test_class_names_come_from_a_file(checkpoint, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    import_model(checkpoint, tmp_path / "m.safetensors", classes=tmp_path / name)
    assert load_model(tmp_path / "m.safetensors")[1].classes == ("cat", "dog", "big hen")


def test_import_refuses_invalid_classes_and_file_names(checkpoint, tmp_path):
    out = tmp_path / "m.safetensors"
    with pytest.raises(InputError, match=r"--classes is 'none\.txt', which is neither"):
        import_model(checkpoint, out, classes="none.txt")
    (tmp_path / "names.json").write_text(json.dumps({"0": "cat"}))
    with pytest.raises(InputError, match="does not hold a list of names"):
        import_model(checkpoint, out, classes=tmp_path / "names.json")
    with pytest.raises(InputError, match="weights cannot be written to"):
        import_model(checkpoint, tmp_path / "m.pth")
    assert not out.exists()
