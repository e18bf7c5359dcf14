"""Corruptions by hand, by property, and (with the shared checkpoint) by the accuracy they cause."""

import pytest
import torch
from safetensors.torch import load_file

from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.corruptions.blur import _disk
from bitta.corruptions.weather import _plasma
from bitta.errors import InputError, SettingError
from bitta.models import build_model
from bitta.seeding import generator
from bitta.streams import embedded_pack


@pytest.fixture(scope="module")
def images():
    return embedded_pack("cifar10").images[:64]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seeded_bytes_of_the_same_form(images, name):
    before = images.clone()
    one = corrupt(images, name, severity=5, seed=3)
    assert one.dtype == torch.uint8
    assert one.shape == images.shape
    assert torch.equal(one, corrupt(images, name, severity=5, seed=3))
    assert not torch.equal(one, images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_damage_grows_with_severity(images, name):
    damage = [
        (corrupt(images, name, severity=s).float() - images.float()).abs().mean().item()
        for s in (1, 3, 5)
    ]
    assert damage == sorted(damage)


def test_contrast_shrinks_towards_the_channel_mean():
    """0 and 200 around 100, factor .15: 85 and 115."""
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[..., ::2] = 200
    values = corrupt(image, "contrast").unique().tolist()
    assert values in ([84, 115], [85, 115], [84, 114], [85, 114])


def test_noise_has_the_stated_deviation():
    grey = torch.full((16, 3, 32, 32), 128, dtype=torch.uint8)
    noisy = corrupt(grey, "gaussian_noise").float() / 255
    assert noisy.std().item() == pytest.approx(0.10, abs=0.002)


def test_defocus_kernel_is_a_normalised_disk():
    """Radius 1.5 holds the nine points with x² + y² <= 2.25."""
    kernel = _disk(1.5, 0.1)
    assert kernel.shape == (17, 17)
    assert kernel.sum().item() == pytest.approx(1)
    assert kernel[7:10, 7:10].flatten().tolist() == pytest.approx([1 / 9] * 9, abs=1e-6)


def test_plasma_fills_the_unit_interval():
    maps = _plasma(3, 32, 1.75, generator(0), torch.device("cpu"))
    assert maps.amin((1, 2)).tolist() == [0, 0, 0]
    assert maps.amax((1, 2)).tolist() == [1, 1, 1]


def test_bad_requests_are_refused(images):
    with pytest.raises(SettingError, match="did you mean 'fog'"):
        corrupt(images, "fogg")
    with pytest.raises(SettingError, match="severity is 6"):
        corrupt(images, "fog", severity=6)
    with pytest.raises(InputError, match=r"torch\.float32"):
        corrupt(images.float(), "fog")


UPSTREAM = {
    "gaussian_noise": 30.6, "defocus_blur": 53.6, "fog": 68.9, "contrast": 29.3,
    "jpeg_compression": 76.0,
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_accuracy_of_a_known_model_is_the_upstream_generators(shared_data, name):
    """The shared checkpoint on 512 of the 2,000 images; 2 points and sampling error."""
    model = build_model(
        "resnet18", n_classes=10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
    ).eval()
    weights = load_file(shared_data / "checkpoints" / "cifar10_resnet18.safetensors")
    model.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
    )
    pack = embedded_pack("cifar10")
    with torch.no_grad():
        labels = model(corrupt(pack.images[:512], name).float() / 255).argmax(-1)
    accuracy = 100 * (labels == pack.labels[:512]).float().mean().item()
    assert accuracy == pytest.approx(UPSTREAM[name], abs=6)
