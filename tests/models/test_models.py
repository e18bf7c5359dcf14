"""Tests of models and weights files."""

from importlib.resources import files

import pytest
import torch
from safetensors.torch import load_file, save_file

from bitta.errors import InputError, SettingError
from bitta.models import ModelCard, build_model, initialise, load_model, save_model
from bitta.streams import embedded_pack

PIXELS = {"n_classes": 4, "mean": (0.5,) * 3, "std": (0.2,) * 3}


def test_keys_equal_those_of_the_shared_checkpoint(shared_data):
    saved = load_file(shared_data / "checkpoints" / "cifar10_resnet18.safetensors")
    model = build_model("resnet18", n_classes=10, mean=(0.5,) * 3, std=(0.2,) * 3)
    assert model.state_dict().keys() == saved.keys()


def test_saved_weights_and_card_are_read_back(tmp_path):
    model = build_model("resnet8", **PIXELS)
    initialise(model, seed=1)
    card = ModelCard(
        architecture="resnet8",
        arguments=PIXELS,
        classes=("a", "b", "c", "d"),
        input_shape=(3, 8, 8),
        accuracy={"x": 50.0},
    )
    save_model(tmp_path / "m.safetensors", model, card)
    loaded, known = load_model(tmp_path / "m.safetensors")
    assert known.classes == card.classes
    assert known.accuracy == {"x": 50.0}
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(loaded(x), model.eval()(x))


def test_building_and_initialising_keep_the_global_generator():
    before = torch.get_rng_state()
    one, two = build_model("resnet8", **PIXELS), build_model("resnet8", **PIXELS)
    initialise(one, seed=0)
    initialise(two, seed=0)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one.layer2[0].conv1.weight, two.layer2[0].conv1.weight)


def test_unknown_names_are_refused(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    with pytest.raises(InputError, match="which architecture"):
        load_model(tmp_path / "plain")
    with pytest.raises(InputError, match="no weights at"):
        load_model(tmp_path / "none")
    with pytest.raises(SettingError, match="did you mean 'resnet8'"):
        build_model("resnet81", **PIXELS)


def test_embedded_cifar_model_has_the_accuracy_of_its_card():
    model, card = load_model(str(files("bitta") / "assets" / "cifar10-resnet8.safetensors"))
    assert card.accuracy["cifar10 test"] >= 84
    pack = embedded_pack("cifar10")
    with torch.no_grad():
        labels = model(pack.images[:1000].float() / 255).argmax(-1)
    right = 100 * (labels == pack.labels[:1000]).float().mean().item()
    assert right == pytest.approx(card.accuracy["cifar10 test"], abs=4)
    assert card.terms
    assert card.recipe["epochs"] == 150
