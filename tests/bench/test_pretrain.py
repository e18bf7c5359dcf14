"""Tests of the training of source models, on a few images."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.bench.pretrain import (
    Recipe,
    Trainer,
    TrainingStopped,
    _build_model,
    _round_to_half,
    pretrain,
    read_recipe,
    training_checkpoint_path,
)
from bitta.bench.training_sets import AUGMENTATIONS, LOADERS
from bitta.cli.main import main
from bitta.errors import InputError, SettingError
from bitta.models import load_model, read_card
from bitta.seeding import generator
from bitta.streams import embedded_pack
from bitta.testing import toy_classifier

RECIPE = Recipe(data="cifar10", architecture="resnet8", epochs=3, batch_size=32, lr=0.05)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Binary batches in the official layout: 100 training images and 60 test images."""
    folder = tmp_path_factory.mktemp("cifar10")
    pack = embedded_pack("cifar10")

    def write(name, rows):
        table = torch.cat(
            [pack.labels[rows, None].to(torch.uint8), pack.images[rows].flatten(1)], 1
        )
        (folder / name).write_bytes(table.numpy().tobytes())

    for number in range(5):
        write(f"data_batch_{number + 1}.bin", slice(20 * number, 20 * number + 20))
    write("test_batch.bin", slice(200, 260))
    return folder


def load_weights(path):
    return load_model(path)[0].state_dict()


def test_recipe_changes_the_architecture(cifar, tmp_path):
    arguments = {"norm": "group", "widths": [8, 16, 16]}
    recipe = replace(RECIPE, epochs=1, arguments=arguments)
    card, _ = pretrain(recipe, out=tmp_path / "m.safetensors", folder=str(cifar))
    model, _ = load_model(tmp_path / "m.safetensors")
    assert type(model.bn1) is torch.nn.GroupNorm
    assert (card.arguments["norm"], model.fc.in_features) == ("group", 16)


def test_recipe_with_a_start_and_other_arguments_is_refused():
    with pytest.raises(SettingError, match=r"start is 'w.safetensors' and arguments is .*give one"):
        replace(RECIPE, start="w.safetensors", arguments={"norm": "group"})


def test_trained_model_has_a_card_and_a_log(cifar, tmp_path):
    card, log = pretrain(RECIPE, out=tmp_path / "m.safetensors", folder=str(cifar))
    assert read_card(tmp_path / "m.safetensors").accuracy == card.accuracy
    assert card.recipe["lr"] == 0.05
    assert card.classes[3] == "cat"
    assert [epoch["number"] for epoch in log["epochs"]] == [1, 2, 3]
    assert not training_checkpoint_path(tmp_path / "m.safetensors").exists()


@pytest.mark.full
def test_training_halves_the_loss(cifar, tmp_path):
    recipe = replace(RECIPE, epochs=30, augment="none")
    _, log = pretrain(recipe, out=tmp_path / "m.safetensors", folder=str(cifar))
    assert log["epochs"][-1]["loss"] < 0.5 * log["epochs"][0]["loss"]


@pytest.mark.full
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_resumed_training_ends_with_the_same_weights(cifar, tmp_path, optimiser):
    recipe = replace(RECIPE, optimiser=optimiser, lr=1e-2)
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    pretrain(recipe, out=whole, folder=str(cifar))
    with pytest.raises(TrainingStopped, match="stopped after epoch 1 of 3"):
        pretrain(recipe, out=parts, folder=str(cifar), should_stop=lambda: True)
    done = []
    pretrain(
        recipe,
        out=parts,
        folder=str(cifar),
        resume=True,
        on_epoch=lambda epoch, _: done.append(epoch.number),
    )
    assert done == [2, 3]
    one, two = load_weights(whole), load_weights(parts)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_checkpoint_of_another_recipe_is_refused(cifar, tmp_path):
    out = tmp_path / "m.safetensors"
    with pytest.raises(TrainingStopped):
        pretrain(RECIPE, out=out, folder=str(cifar), should_stop=lambda: True)
    with pytest.raises(InputError, match="another recipe"):
        pretrain(replace(RECIPE, lr=0.2), out=out, folder=str(cifar), resume=True)


def test_bfloat16_and_channels_last_lower_the_loss(cifar, tmp_path):
    recipe = replace(RECIPE, precision="bfloat16", channels_last=True, epochs=12, augment="none")
    _, log = pretrain(recipe, out=tmp_path / "m.safetensors", folder=str(cifar))
    assert log["epochs"][-1]["loss"] < log["epochs"][0]["loss"]
    assert all(v.dtype != torch.bfloat16 for v in load_weights(tmp_path / "m.safetensors").values())


def test_accuracy_is_measured_on_weights_in_half_precision(cifar, tmp_path):
    card, log = pretrain(RECIPE, out=tmp_path / "m.safetensors", folder=str(cifar), half=True)
    model, _ = load_model(tmp_path / "m.safetensors")
    pack = embedded_pack("cifar10")
    with torch.no_grad():
        right = model(pack.images[200:260].float() / 255).argmax(-1) == pack.labels[200:260]
    assert card.accuracy["cifar10 test"] == round(100 * right.float().mean().item(), 2)
    assert len(log["sha256"]) == 1


@pytest.mark.parametrize("name", ["w.json", "v.checkpoint", "m-00001-of-00002.safetensors", ""])
def test_invalid_file_name_is_refused_before_training(cifar, tmp_path, name):
    with pytest.raises(InputError, match="weights cannot be written"):
        pretrain(RECIPE, out=tmp_path / name, folder=str(cifar))


def test_head_is_kept_only_for_the_same_classes(cifar, tmp_path):
    start = tmp_path / "start.safetensors"
    pretrain(RECIPE, out=start, folder=str(cifar))
    data = LOADERS["cifar10"](cifar, "", 32)
    continued = replace(RECIPE, start=str(start))
    same, _ = _build_model(continued, data)
    assert torch.equal(same.fc.weight, load_weights(start)["fc.weight"])
    others = replace(data.train, classes=tuple("abcdefghij"))
    other, _ = _build_model(continued, replace(data, train=others))
    assert not torch.equal(other.fc.weight, load_weights(start)["fc.weight"])
    assert torch.equal(other.conv1.weight, load_weights(start)["conv1.weight"])
    with pytest.raises(SettingError, match="architecture is 'resnet20', but the weights"):
        _build_model(replace(continued, architecture="resnet20"), data)


def test_diverged_training_writes_no_weights(cifar, tmp_path):
    with pytest.raises(InputError, match=r"the loss is (nan|inf) in epoch \d: .* smaller lr"):
        pretrain(replace(RECIPE, lr=1e9), out=tmp_path / "m.safetensors", folder=str(cifar))
    assert not (tmp_path / "m.safetensors").exists()


def test_finished_weights_are_accepted_and_never_overwritten_by_another_recipe(cifar, tmp_path):
    out = tmp_path / "m.safetensors"
    card, _ = pretrain(RECIPE, out=out, folder=str(cifar))
    content = out.read_bytes()
    done = []
    again, _ = pretrain(
        RECIPE, out=out, folder=str(cifar), resume=True, on_epoch=lambda *e: done.append(e)
    )
    assert (again.accuracy, done) == (card.accuracy, [])
    with pytest.raises(InputError, match="another recipe"):
        pretrain(replace(RECIPE, lr=0.2), out=out, folder=str(cifar))
    assert out.read_bytes() == content


def test_images_are_resized_to_the_side_in_the_recipe(tmp_path):
    write_tree(tmp_path / "tree", n=6)
    recipe = Recipe(data="folders", source="photo", side=32, epochs=1, batch_size=4)
    card, _ = pretrain(recipe, out=tmp_path / "m.safetensors", folder=str(tmp_path / "tree"))
    assert card.input_shape == (3, 32, 32)
    assert card.preprocessing == {"resize": 32, "crop": 32}


def test_three_images_per_class_are_enough(tmp_path):
    write_tree(tmp_path / "tree", n=3)
    recipe = Recipe(data="folders", source="photo", epochs=1, batch_size=2, augment="none", side=32)
    card, _ = pretrain(recipe, out=tmp_path / "m.safetensors", folder=str(tmp_path / "tree"))
    assert set(card.accuracy) == {"photo, held out", "sketch"}


def test_values_beyond_half_precision_are_not_rounded():
    model = toy_classifier()
    norm = next(module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    norm.running_var.fill_(1e5 + 1)
    _round_to_half(model)
    assert norm.running_var.unique().tolist() == [1e5 + 1]
    weight = next(model.parameters())
    assert torch.equal(weight, weight.half().float())


def test_step_size_follows_a_cosine():
    """The rate falls from .05 to .025 after half of the updates, and to 0 at the end."""
    trainer = Trainer(toy_classifier(), replace(RECIPE, augment="none"), n_updates=8)
    sizes = []
    for _ in range(8):
        sizes.append(trainer.lr)
        images = torch.randint(0, 256, (4, 3, 8, 8), generator=generator(0), dtype=torch.uint8)
        trainer.update(images, torch.arange(4))
    assert sizes[0] == 0.05
    assert sizes[4] == pytest.approx(0.025)
    assert trainer.lr == pytest.approx(0, abs=1e-9)


def write_tree(root, n=20):
    """Write two domains of two classes. Each class has a colour of its own."""
    for domain, shade in (("photo", 200), ("sketch", 90)):
        for index, kind in enumerate(("dog", "house")):
            folder = root / domain / kind
            folder.mkdir(parents=True)
            for number in range(n):
                pixels = np.full((40, 48, 3), 30 + number, np.uint8)
                pixels[..., index] = shade
                Image.fromarray(pixels).save(folder / f"{number}.png")


def test_fine_tuning_replaces_only_the_head(cifar, tmp_path):
    pretrain(RECIPE, out=tmp_path / "start.safetensors", folder=str(cifar))
    write_tree(tmp_path / "tree")
    recipe = Recipe(
        data="folders",
        source="photo",
        side=64,
        architecture="resnet8",
        start=str(tmp_path / "start.safetensors"),
        optimiser="adam",
        lr=1e-4,
        schedule="constant",
        iterations=5,
        batch_size=12,
        augment="zoom",
    )
    card, log = pretrain(recipe, out=tmp_path / "m.safetensors", folder=str(tmp_path / "tree"))
    assert card.classes == ("dog", "house")
    assert card.arguments["mean"] == read_card(tmp_path / "start.safetensors").arguments["mean"]
    assert card.preprocessing == {"resize": 64, "crop": 64}
    assert set(card.accuracy) == {"photo, held out", "sketch"}
    assert len(log["epochs"]) == 2  # 36 images give 3 updates per epoch, and there are 5 updates
    before, after = (load_weights(tmp_path / f"{name}.safetensors") for name in ("start", "m"))
    moved = (before["conv1.weight"] - after["conv1.weight"]).abs().max().item()
    assert 0 < moved <= 5.1e-4
    assert after["fc.weight"].shape == (2, 64)


def test_shift_moves_by_at_most_four_pixels():
    """A white dot at the centre moves by at most four pixels on either axis."""
    images = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    images[:, :, 16, 16] = 255
    moved = AUGMENTATIONS["shift"](images, (0, "augment"))
    places = moved[:, 0].nonzero()
    assert len(places) == 64
    assert (places[:, 1] - 16).abs().max() == 4
    assert places[:, 2].min() >= 15 - 4
    assert places[:, 2].max() <= 16 + 4


def test_zoom_enlarges_a_part_of_the_image():
    ramp = torch.arange(32, dtype=torch.uint8).mul(8).view(1, 1, 1, 32).expand(16, 3, 32, 32)
    zoom_images = AUGMENTATIONS["zoom"](ramp.contiguous(), (0, "augment"))
    assert zoom_images.dtype == torch.uint8
    spans = zoom_images[:, 0, 0].float().amax(-1) - zoom_images[:, 0, 0].float().amin(-1)
    assert (spans < 248).all()
    assert (spans > 0.6 * 248).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[pretrain]\ndata = "cifar11"\nepochs = 1', "did you mean 'cifar1"),
        ("[pretrain]\nepochs = 1\niterations = 2", "epochs .*iterations"),
        ("[pretrain]", "epochs .*iterations"),
        ('[pretrain]\ndata = "pacs"\nepochs = 1', "source is '' and data is 'pacs'"),
        ('[pretrain]\nepochs = 1\narchitecture = "resnet19"', "did you mean 'resnet18'"),
        ("[pretrain]\nepochs = 1\nlr = 0", "lr is 0"),
        ('[pretrain]\nepochs = 1\nprecision = "half"', "precision is 'half'"),
        ("[train]\nepochs = 1", "unknown key 'train'"),
        ("[pretrain]\nepochs = 2\niterations = -1", "iterations is -1"),
    ],
)
def test_invalid_recipes_are_refused(tmp_path, text, message):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(SettingError, match=message):
        read_recipe(tmp_path / "r.toml")


def test_command_writes_weights_and_log(cifar, tmp_path, capsys):
    (tmp_path / "r.toml").write_text("[pretrain]\nepochs = 1\nbatch_size = 32\n")
    out = tmp_path / "m.safetensors"
    assert (
        main(["pretrain", str(tmp_path / "r.toml"), "--data", str(cifar), "--out", str(out)]) == 0
    )
    assert "cifar10 test:" in capsys.readouterr().out
    log = json.loads((tmp_path / "m.json").read_text())
    assert log["card"]["architecture"] == "resnet8"
    (tmp_path / "m.json").unlink()
    again = ["pretrain", str(tmp_path / "r.toml"), "--data", str(cifar), "--out", str(out)]
    assert main([*again, "--resume"]) == 0
    assert "epoch" not in capsys.readouterr().out
    assert not (tmp_path / "m.json").exists()  # the deleted log is not written again
    assert (
        main(["pretrain", str(tmp_path / "r.toml"), "--data", "/nowhere", "--out", str(out)]) == 2
    )
    assert 'run "bitta data get cifar10"' in capsys.readouterr().err
