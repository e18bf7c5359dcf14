"""Tests of the import of checkpoints."""

import collections
import pickle

import pytest
import torch
from safetensors.torch import save_file

from bitta.errors import InputError, ModelError, SettingError
from bitta.models import build_model, import_checkpoint, initialise, load_model, save_model
from bitta.seeding import generator
from bitta.streams import embedded_pack

PIXELS = {"mean": (0.5,) * 3, "std": (0.2,) * 3}
CLASSES = ("a", "b", "c", "d")


@pytest.fixture
def model():
    model = build_model("resnet8", n_classes=4, **PIXELS)
    initialise(model, seed=0)
    return model.eval()


def import_small_model(path, name="resnet8", **changes):
    return import_checkpoint(path, name, **{"classes": CLASSES, **PIXELS, **changes})


def agree(one, other):
    images = torch.rand(2, 3, 32, 32, generator=generator(0))
    with torch.no_grad():
        return torch.equal(one(images), other(images))


def test_plain_state_dict_gets_a_card_without_notes(tmp_path, model):
    torch.save(model.state_dict(), tmp_path / "old.pth")
    imported = import_small_model(tmp_path / "old.pth", preprocessing={"resize": 40, "crop": 36})
    assert agree(imported.model, model)
    assert imported.notes == ()
    assert imported.card.classes == CLASSES
    assert imported.card.input_shape == (3, 36, 36)
    assert imported.card.preprocessing == {"resize": 40, "crop": 36}
    assert imported.card.source == "imported from old.pth"
    save_model(tmp_path / "new.safetensors", imported.model, imported.card)
    assert agree(load_model(tmp_path / "new.safetensors")[0], model)


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "net", "model_state_dict"])
@pytest.mark.parametrize("prefix", ["module.", "model.", "backbone.", "module.model.", "1."])
def test_wrappers_and_prefixes_are_removed_and_noted(tmp_path, model, wrapper, prefix):
    state = {prefix + key: value for key, value in model.state_dict().items()}
    torch.save({wrapper: state, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "old.pth")
    imported = import_small_model(tmp_path / "old.pth")
    assert agree(imported.model, model)
    assert f"left out other entries beside {wrapper!r}: epoch, optimizer" in imported.notes
    first = prefix.partition(".")[0] + "."
    assert f"removed {first!r} in {len(state)} keys" in imported.notes


def test_pixel_statistics_of_the_file_are_left_out_and_noted(tmp_path, model):
    state = collections.OrderedDict({"0.mean": torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1)})
    state |= {f"1.{key}": value for key, value in model.state_dict().items()}
    torch.save(state, tmp_path / "old.pth")
    imported = import_small_model(tmp_path / "old.pth")
    assert agree(imported.model, model)
    assert "left out 0.mean = [0.1, 0.2, 0.3]: the card gives mean and std" in imported.notes[0]


def test_other_names_and_missing_counters_are_fixed_and_noted(tmp_path, model):
    state = {
        key.replace("shortcut.", "downsample.").replace("fc.", "linear."): value
        for key, value in model.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    torch.save(state, tmp_path / "old.pth")
    imported = import_small_model(tmp_path / "old.pth")
    assert agree(imported.model, model)
    # Two stages change their width: a convolution and four tensors of a normalisation each.
    assert "renamed 'downsample.' to 'shortcut.' in 10 keys" in imported.notes
    assert "renamed 'linear.' to 'fc.' in 2 keys" in imported.notes
    assert "set 9 batch counters to 0, because they are not in the file" in imported.notes


def test_safetensors_without_a_card_are_imported(tmp_path, model):
    half = {key: value.half() for key, value in model.state_dict().items()}
    save_file(half, tmp_path / "old.safetensors")
    imported = import_small_model(tmp_path / "old.safetensors")
    assert imported.model.conv1.weight.dtype == torch.float32
    assert torch.equal(imported.model.conv1.weight, half["conv1.weight"].float())


def test_transformer_uses_the_size_of_the_crop(tmp_path):
    small = build_model("vit_small", n_classes=4, image_size=16, **PIXELS)
    torch.save(small.state_dict(), tmp_path / "old.pth")
    imported = import_small_model(tmp_path / "old.pth", "vit_small", size=16)
    assert imported.card.arguments["image_size"] == 16
    assert imported.model(torch.rand(1, 3, 16, 16)).shape == (1, 4)


def test_unknown_tensors_raise_an_error(tmp_path, model):
    torch.save({**model.state_dict(), "fc2.weight": torch.ones(2)}, tmp_path / "old.pth")
    with pytest.raises(ModelError, match=r"1 key is unknown \(fc2\.weight\)"):
        import_small_model(tmp_path / "old.pth")
    both = {**model.state_dict(), "module.fc.bias": torch.ones(4)}
    torch.save(both, tmp_path / "old.pth")
    with pytest.raises(ModelError, match=r"two keys in .* stand for 'fc\.bias'"):
        import_small_model(tmp_path / "old.pth")
    torch.save(model.state_dict(), tmp_path / "old.pth")
    with pytest.raises(ModelError, match=r"fc\.weight is \(4, 64\) instead of \(2, 64\)"):
        import_small_model(tmp_path / "old.pth", classes=("a", "b"))
    with pytest.raises(SettingError, match="did you mean 'resnet8'"):
        import_small_model(tmp_path / "old.pth", "resnet9")


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('ran')",)


def test_checkpoint_that_would_run_code_is_refused(tmp_path, model):
    torch.save({"state_dict": model.state_dict(), "extra": Bomb()}, tmp_path / "old.pth")
    with pytest.raises(InputError, match=r"could run code; .*torch\.save\(model\.state_dict"):
        import_small_model(tmp_path / "old.pth")
    torch.save(model, tmp_path / "old.pth")
    with pytest.raises(InputError, match=r"an object of bitta\.models\.resnet\.ResNet"):
        import_small_model(tmp_path / "old.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither safetensors nor"),
        (b"hello there", "neither safetensors nor"),
        (b"PK\x03\x04 cut short", "is not a readable checkpoint"),
        (b"\x80\x02 cut short", "is not a readable checkpoint"),
        (pickle.dumps({"a": 1}, protocol=4), "is not a readable checkpoint"),
    ],
)
def test_invalid_checkpoint_is_refused(tmp_path, content, message):
    (tmp_path / "old.pth").write_bytes(content)
    with pytest.raises(InputError, match=message) as refusal:
        import_small_model(tmp_path / "old.pth")
    assert "\n" not in str(refusal.value)


def test_checkpoint_without_state_dict_names_its_content(tmp_path):
    with pytest.raises(InputError, match="there is no checkpoint at"):
        import_small_model(tmp_path / "none.pth")
    torch.save({"weights": {"a": torch.ones(1)}, "epoch": 3}, tmp_path / "old.pth")
    with pytest.raises(InputError, match="holds no state dict, only weights, epoch; it must be at"):
        import_small_model(tmp_path / "old.pth")
    torch.save([torch.ones(1)], tmp_path / "old.pth")
    with pytest.raises(InputError, match="holds a list; save a state dict"):
        import_small_model(tmp_path / "old.pth")


@pytest.mark.full
def test_shared_checkpoint_classifies_after_import(shared_data):
    pack = embedded_pack("cifar10")
    imported = import_checkpoint(
        shared_data / "checkpoints" / "cifar10_resnet18.safetensors",
        "resnet18",
        classes=pack.classes,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )
    assert imported.notes == ()
    with torch.no_grad():
        labels = imported.model(pack.images[:200].float() / 255).argmax(-1)
    assert (labels == pack.labels[:200]).float().mean() > 0.9  # 94.24 % of all 10,000
