"""Tests of weights in half precision and in parts."""

import json
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bitta.errors import InputError, ModelError, SettingError
from bitta.models import (
    ModelCard,
    build_model,
    initialise,
    load_model,
    read_card,
    save_model,
    tensor_files,
)

PIXELS = {"n_classes": 4, "mean": (0.5,) * 3, "std": (0.2,) * 3}
# resnet8 has 78,000 parameters, which take 312,000 bytes. The largest tensor takes 147,456.


def model_and_card(seed=0, **changes):
    model = build_model("resnet8", **PIXELS)
    initialise(model, seed=seed)
    fields = {
        "architecture": "resnet8",
        "arguments": PIXELS,
        "classes": ("a", "b", "c", 'd "quoted" é'),
        "input_shape": (3, 8, 8),
        "preprocessing": {"resize": 10, "crop": 8},
    }
    return model, ModelCard(**fields | changes)


def same(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_parts_stay_under_the_limit_and_load_completely(tmp_path):
    model, card = model_and_card()
    paths = save_model(tmp_path / "m.safetensors", model, card, part_bytes=150_000)
    assert names(tmp_path) == [path.name for path in paths]
    assert names(tmp_path)[0] == f"m-00001-of-0000{len(paths)}.safetensors"
    assert len(paths) >= 3
    assert all(path.stat().st_size <= 150_000 for path in paths)
    for path in (tmp_path / "m.safetensors", *paths):
        loaded, known = load_model(path)
        assert same(loaded, model)
        assert known == read_card(path)
        assert known.classes == card.classes
        assert known.preprocessing == {"resize": 10, "crop": 8}


def test_small_weights_stay_one_file(tmp_path):
    model, card = model_and_card()
    paths = save_model(tmp_path / "m.safetensors", model, card, part_bytes=400_000)
    assert paths == [tmp_path / "m.safetensors"]


def test_tensor_larger_than_a_part_is_named(tmp_path):
    model, card = model_and_card()
    with pytest.raises(SettingError, match=r"part_bytes is 100000; 'layer3\.0\.conv2\.weight'"):
        save_model(tmp_path / "m.safetensors", model, card, part_bytes=100_000)
    assert names(tmp_path) == []


def test_missing_part_is_named(tmp_path):
    model, card = model_and_card()
    paths = save_model(tmp_path / "m.safetensors", model, card, part_bytes=150_000)
    paths[1].unlink()
    for path in (tmp_path / "m.safetensors", paths[0], paths[1]):
        with pytest.raises(
            InputError, match=r"which m-00002-of-00004\.safetensors is missing; copy"
        ):
            load_model(path)


def test_parts_of_different_weights_or_cards_are_refused(tmp_path):
    one, card = model_and_card(seed=0)
    two, _ = model_and_card(seed=1)
    first = save_model(tmp_path / "a" / "m.safetensors", one, card, part_bytes=150_000)
    other = ModelCard(**{**card.__dict__, "classes": ("w", "x", "y", "z")})
    for folder, model, its_card in (("b", two, card), ("c", one, other)):
        path = tmp_path / folder / "m.safetensors"
        copies = save_model(path, model, its_card, part_bytes=150_000)
        assert len(copies) == len(first)
        shutil.copy(first[0], copies[0])
        with pytest.raises(InputError, match=r"the 4 parts of .+ do not belong together"):
            load_model(path)


def test_two_sets_of_parts_under_one_name_are_refused(tmp_path):
    model, card = model_and_card()
    path = tmp_path / "m.safetensors"
    (more,) = save_model(path, model, card, part_bytes=150_000)[:1]
    content = more.read_bytes()
    save_model(path, model, card, part_bytes=200_000)
    more.write_bytes(content)
    with pytest.raises(InputError, match="in 2 parts and in 4 parts; delete the outdated"):
        load_model(path)


def test_disk_failure_keeps_the_old_weights(tmp_path, monkeypatch):
    old, card = model_and_card(seed=0)
    new, _ = model_and_card(seed=1)
    path = tmp_path / "m.safetensors"
    save_model(path, old, card)
    write = tensor_files.write_atomically

    def fail_on_the_second(draft, content):
        if "00002" in draft.name:
            raise OSError("disk full")
        write(draft, content)

    monkeypatch.setattr(tensor_files, "write_atomically", fail_on_the_second)
    with pytest.raises(OSError, match="disk full"):
        save_model(path, new, card, part_bytes=150_000)
    assert same(load_model(path)[0], old)


def test_changed_value_in_a_part_is_refused(tmp_path):
    model, card = model_and_card()
    paths = save_model(tmp_path / "m.safetensors", model, card, part_bytes=150_000)
    tensors = load_file(paths[2])
    with safe_open(str(paths[2]), framework="pt") as file:
        metadata = file.metadata()
    next(tensor for tensor in tensors.values() if tensor.is_floating_point()).flatten()[0] += 1
    save_file(tensors, paths[2], metadata=metadata)
    with pytest.raises(InputError, match="or are damaged"):
        load_model(paths[0])


def test_saving_again_deletes_older_files(tmp_path):
    old, card = model_and_card(seed=0)
    new, _ = model_and_card(seed=1)
    path = tmp_path / "m.safetensors"
    (tmp_path / "m-large.safetensors").touch()
    save_model(path, old, card)
    save_model(path, new, card, part_bytes=150_000)
    assert "m.safetensors" not in names(tmp_path)
    assert same(load_model(path)[0], new)
    save_model(path, old, card)
    assert names(tmp_path) == ["m-large.safetensors", "m.safetensors"]
    assert same(load_model(path)[0], old)


def test_name_of_a_part_is_refused_for_saving(tmp_path):
    model, card = model_and_card()
    with pytest.raises(InputError, match=r"the name of a part; use 'm\.safetensors'"):
        save_model(tmp_path / "m-00001-of-00002.safetensors", model, card)


def test_half_precision_weights_load_in_single_precision(tmp_path):
    model, card = model_and_card()
    (path,) = save_model(tmp_path / "m.safetensors", model, card, half=True)
    stored = load_file(path)
    assert stored["conv1.weight"].dtype == torch.float16
    assert stored["bn1.num_batches_tracked"].dtype == torch.int64
    assert path.stat().st_size < 180_000
    loaded, _ = load_model(path)
    assert loaded.conv1.weight.dtype == torch.float32
    assert torch.equal(loaded.conv1.weight, model.conv1.weight.half().float())


def test_values_beyond_half_precision_are_stored_in_full(tmp_path):
    model, card = model_and_card()
    model.bn1.running_var[3] = 70_000  # half precision ends at 65,504
    (path,) = save_model(tmp_path / "m.safetensors", model, card, half=True)
    assert load_file(path)["bn1.running_var"].dtype == torch.float32
    assert load_model(path)[0].bn1.running_var[3] == 70_000


def test_card_is_read_without_the_weights(tmp_path):
    model, card = model_and_card()
    wrong = ModelCard(**{**card.__dict__, "architecture": "resnet18"})
    (path,) = save_model(tmp_path / "m.safetensors", model, wrong)
    assert read_card(path).architecture == "resnet18"


def test_weights_of_another_architecture_are_refused(tmp_path):
    model, card = model_and_card()
    wrong = ModelCard(**{**card.__dict__, "architecture": "resnet20"})
    (path,) = save_model(tmp_path / "m.safetensors", model, wrong)
    with pytest.raises(ModelError) as refusal:
        load_model(path)
    # resnet20 has six more blocks: two convolutions and two norms with four needed tensors each.
    assert "do not fit resnet20: 60 keys are missing (layer1.1.conv1.weight, " in str(refusal.value)
    assert len(str(refusal.value)) < 400
    wider = ModelCard(**{**card.__dict__, "arguments": {**PIXELS, "n_classes": 7}})
    (path,) = save_model(tmp_path / "m.safetensors", model, wider)
    with pytest.raises(ModelError, match=r"2 shapes differ \(.*fc\.weight is \(4, 64\) instead of"):
        load_model(path)


def test_invalid_card_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    for text in ("{", "[]", "{}", json.dumps({"classes": [], "input_shape": [], "colour": 1})):
        save_file({"x": torch.zeros(1)}, path, metadata={"bitta.model": text})
        with pytest.raises(InputError, match=r"the card in .* cannot be read"):
            read_card(path)
