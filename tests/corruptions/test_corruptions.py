"""Tests of the corruptions."""

import pytest
import torch
from safetensors.torch import load_file

from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.corruptions.blur import _disk, _replacement_positions
from bitta.corruptions.image_ops import blur_along_lines, smoothing_matrix, zoom_matrix
from bitta.corruptions.weather import _plasma, frost_textures
from bitta.errors import InputError, SettingError
from bitta.models import build_model
from bitta.seeding import generator
from bitta.streams import embedded_pack


@pytest.fixture(scope="module")
def images():
    return embedded_pack("cifar10").images[:64]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruption_is_seeded_and_keeps_the_shape(images, name):
    before = images.clone()
    one = corrupt(images, name, severity=5, seed=3)
    assert one.dtype == torch.uint8
    assert one.shape == images.shape
    assert torch.equal(one, corrupt(images, name, severity=5, seed=3))
    assert not torch.equal(one, images)
    assert torch.equal(images, before)


# With growing severity these exchange one kind of damage for another.
TRADES = {"glass_blur", "frost", "elastic_transform"}


@pytest.mark.parametrize("name", sorted(CORRUPTIONS.keys() - TRADES))
def test_difference_grows_with_severity(images, name):
    damage = [
        (corrupt(images, name, severity=s).float() - images.float()).abs().mean().item()
        for s in (1, 3, 5)
    ]
    assert damage == sorted(damage)


def test_contrast_moves_values_towards_the_channel_mean():
    """0 and 200 around 100, factor .15: 85 and 115."""
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[..., ::2] = 200
    values = corrupt(image, "contrast").unique().tolist()
    assert values in ([84, 115], [85, 115], [84, 114], [85, 114])


def test_contrast_uses_the_mean_of_each_channel():
    """A channel without contrast stays as it is, whatever the others do."""
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[:, 0], image[:, 1] = 200, 40
    assert corrupt(image, "contrast")[0, :, 0, 0].tolist() in ([200, 40, 0], [199, 39, 0])


def test_noise_has_the_documented_standard_deviation():
    grey = torch.full((16, 3, 32, 32), 128, dtype=torch.uint8)
    noisy = corrupt(grey, "gaussian_noise").float() / 255
    assert noisy.std().item() == pytest.approx(0.10, abs=0.002)


def test_defocus_kernel_is_a_normalised_disk():
    """Radius 1.5 holds the nine points with x² + y² <= 2.25."""
    kernel = _disk(1.5, 0.1)
    assert kernel.shape == (3, 3)
    assert kernel.sum().item() == pytest.approx(1)
    assert kernel.flatten().tolist() == pytest.approx([1 / 9] * 9, abs=1e-6)


def test_plasma_fills_the_unit_interval():
    maps = _plasma(3, 32, 1.75, generator(0), torch.device("cpu"))
    assert maps.amin((1, 2)).tolist() == [0, 0, 0]
    assert maps.amax((1, 2)).tolist() == [1, 1, 1]


def test_impulse_noise_is_half_black_and_half_white():
    grey = torch.full((16, 3, 32, 32), 128, dtype=torch.uint8)
    hit = corrupt(grey, "impulse_noise")
    for level in (0, 255):
        assert (hit == level).float().mean().item() == pytest.approx(0.035, abs=0.003)
    whole_pixels = ((hit != 128).sum(1) == 3).float().mean().item()
    assert whole_pixels < 0.01


def test_motion_blur_trails_to_one_side():
    """At angle 0 with equal weights (large sigma), column 20 spreads over columns 16 to 20."""
    point = torch.zeros(1, 3, 32, 32)
    point[..., 10, 20] = 1
    blurred = blur_along_lines(point, radius=2, sigma=1e6, angles=torch.zeros(1))
    columns = blurred[0, 0, 10].nonzero().flatten().tolist()
    assert columns == [16, 17, 18, 19, 20]
    assert blurred[0, 0, 10, 18].item() == pytest.approx(51 / 255)


def test_brightness_keeps_hue_and_saturation():
    """(100, 50, 0) with .3 more brightness: 100 + 76.5 = 176.5, the others in proportion."""
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[:, 0], image[:, 1] = 100, 50
    assert corrupt(image, "brightness")[0, :, 0, 0].tolist() == [176, 88, 0]
    assert corrupt(torch.zeros_like(image), "brightness").unique().tolist() == [76]


def test_zoom_matrix_interpolates_its_centre():
    """Rows of the matrix sum to one. A ramp stays a ramp, and only the zoom changes its slope."""
    matrix = zoom_matrix(32, 1.25)
    assert torch.allclose(matrix.sum(1), torch.ones(32))
    ramp = matrix @ torch.arange(32.0)
    steps = ramp.diff()
    assert torch.allclose(steps, steps[:1].expand(31), atol=1e-4)
    assert torch.equal(zoom_matrix(32, 1.0), torch.eye(32))


def test_smoothing_mirrors_at_the_border():
    matrix = smoothing_matrix(8, 2.0, cut=3, mirror=True)
    assert torch.allclose(matrix.sum(1), torch.ones(8))
    assert torch.allclose(matrix, matrix.flip(0, 1))
    assert torch.equal(smoothing_matrix(8, 0.0, cut=3, mirror=True), torch.eye(8))


def test_glass_blur_only_moves_pixels():
    """Severity 1 has almost no blur, so pixels only move, and all channels move alike."""
    image = (torch.arange(32 * 32) % 256).to(torch.uint8).view(1, 1, 32, 32).expand(1, 3, 32, 32)
    shuffled = corrupt(image.contiguous(), "glass_blur", severity=1)
    assert torch.equal(shuffled[:, 0], shuffled[:, 2])
    assert 0.3 < (shuffled != image).float().mean().item() < 0.95


@pytest.mark.parametrize("delta", [1, 2, 4])
def test_glass_blur_equals_the_pixel_loop(delta):
    """The vectorised indices equal those of a loop over the pixels."""
    side, n = 12, 3
    places = _replacement_positions(n, side, delta, generator(5))
    shifts = torch.randint(-delta, delta, (2, n, side, side), generator=generator(5)).tolist()
    for sample in range(n):
        pixels = [[row * side + column for column in range(side)] for row in range(side)]
        for row in range(side - delta, delta, -1):
            for column in range(side - delta, delta, -1):
                down, right = (shifts[axis][sample][row][column] for axis in (0, 1))
                pixels[row][column] = pixels[row + down][column + right]
        assert places[sample].tolist() == [pixel for line in pixels for pixel in line]


def test_frost_mixes_with_a_crop_of_a_texture():
    """Black images show only the texture: .45 of one of its crops at severity 5."""
    ice = corrupt(torch.zeros(16, 3, 32, 32, dtype=torch.uint8), "frost")
    weighed = [(0.45 * texture / 255 * 255).to(torch.uint8) for texture in frost_textures(32)]
    for crop in ice:
        assert any(holds(texture, crop) for texture in weighed)


def holds(texture, crop):
    """Return True if a crop is part of a texture. Compare only where its first line is found."""
    found = (texture[0].unfold(1, 32, 1) == crop[0, 0]).all(-1).nonzero().tolist()
    return any(torch.equal(texture[:, y : y + 32, x : x + 32], crop) for y, x in found)


def test_chunks_get_different_random_numbers():
    """The first image of the second chunk has noise of its own."""
    grey = torch.full((300, 3, 32, 32), 128, dtype=torch.uint8)
    noisy = corrupt(grey, "gaussian_noise")
    assert not torch.equal(noisy[0], noisy[256])
    assert torch.equal(noisy[:256], corrupt(grey[:256], "gaussian_noise"))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_result_does_not_depend_on_the_number_of_threads(name):
    images = embedded_pack("cifar10").images[:300]  # more than one chunk
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = corrupt(images, name)
        torch.set_num_threads(2)
        assert torch.equal(corrupt(images, name), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("side", [64, 224])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_other_sizes_have_their_own_constants(name, side):
    images = torch.randint(0, 256, (2, 3, side, side), generator=generator(0), dtype=torch.uint8)
    for severity in (1, 5):
        assert corrupt(images, name, severity=severity).shape == images.shape


def test_invalid_arguments_are_refused(images):
    with pytest.raises(SettingError, match="did you mean 'fog'"):
        corrupt(images, "fogg")
    with pytest.raises(SettingError, match="severity is 6"):
        corrupt(images, "fog", severity=6)
    with pytest.raises(InputError, match=r"torch\.float32"):
        corrupt(images.float(), "fog")
    with pytest.raises(InputError, match="a side of 32, 64, 224"):
        corrupt(images[..., :28, :28], "fog")


UPSTREAM = {
    "gaussian_noise": 30.6, "shot_noise": 38.1, "impulse_noise": 24.2, "defocus_blur": 53.6,
    "glass_blur": 48.4, "motion_blur": 63.6, "zoom_blur": 59.1, "snow": 75.3,
    "frost": 61.9, "fog": 68.9,
    "brightness": 88.9, "contrast": 29.3, "elastic_transform": 75.3, "pixelate": 46.0,
    "jpeg_compression": 76.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def known_model(shared_data):
    """Shared checkpoint with its own pixel normalisation."""
    model = build_model(
        "resnet18", n_classes=10, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
    ).eval()
    weights = load_file(shared_data / "checkpoints" / "cifar10_resnet18.safetensors")
    model.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
    )
    return model


@pytest.mark.full
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_accuracy_of_a_known_model_equals_the_published_data(known_model, name):
    """The shared checkpoint sees 320 of the 2,000 images. The limit includes sampling error."""
    pack = embedded_pack("cifar10")
    images = corrupt(pack.images[:320], name).float() / 255
    with torch.no_grad():
        batches = images.split(16)  # fits the cache
        labels = torch.cat([known_model(few).argmax(-1) for few in batches])
    accuracy = 100 * (labels == pack.labels[:320]).float().mean().item()
    assert accuracy == pytest.approx(UPSTREAM[name], abs=6)
