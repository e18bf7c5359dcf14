"""Tests of augmentation, with fixed random numbers."""

import pytest
import torch
import torch.nn.functional as F

from bitta import augment
from bitta.augment import augment_images
from bitta.errors import InputError
from bitta.seeding import RandomKey, generator

STILL = {"angle": 0.0, "scale": 1.0, "shift": 0.0, "sigma": 0.001}


@pytest.fixture
def draws(monkeypatch):
    """Replace random parameters by fixed ones, which are known by their ranges."""
    chosen = dict(STILL)

    def drawn(x, low, high, _generator):
        names = {0.9: "scale", 0.001: "sigma"} | {-side / 8: "shift" for side in x.shape[-2:]}
        return x.new_full((len(x), 1, 1, 1), chosen[names.get(low, "angle")])

    monkeypatch.setattr(augment, "_draw_uniform", drawn)
    return chosen


def images(n=6, channels=3, height=8, width=8):
    return torch.rand(n, channels, height, width, generator=generator(1, "images"))


def inner(x):
    """Remove the border for the blur."""
    return x[..., 2:-2, 2:-2]


def test_equal_keys_give_equal_views_and_other_keys_other_views():
    one, two, other = (augment_images(images(), RandomKey((0, key))) for key in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_each_image_has_its_own_parameters():
    same = images(n=1).repeat(4, 1, 1, 1)
    views = augment_images(same, RandomKey((0,)))
    assert all(not torch.allclose(views[0], view, atol=0.02) for view in views[1:])


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_shape_type_and_range_are_kept(channels):
    given = 3 * images(channels=channels, height=7, width=10).double() - 1
    view = augment_images(given, RandomKey((0,)))
    assert (view.shape, view.dtype) == (given.shape, given.dtype)
    assert 0 <= view.min() < view.max() <= 1
    assert given.min() < 0, "augmented changed its inputs"


def test_each_view_has_its_own_order_and_parameters():
    same = images(n=1).repeat(3, 1, 1, 1)
    views = augment_images(same, RandomKey((0,)), "there", views=4)
    assert views.shape == (12, 3, 8, 8)
    assert all(not torch.allclose(views[0], view, atol=0.02) for view in views[1:])
    again = augment_images(same, RandomKey((0, "there")), views=4)
    assert torch.equal(views, again)


def test_each_view_changes_colours_in_its_own_order(monkeypatch):
    """Halving, then squaring .5 gives .0625; squaring first gives .125. View 3 is like view 1."""
    halved = (lambda x, factor: x * factor, 0.5, 0.5)
    squared = (lambda x, factor: x**factor, 2.0, 2.0)
    monkeypatch.setattr(augment, "_COLOUR_CHANGES", (halved, squared))
    x = torch.full((6, 3, 1, 1), 0.5)
    found = augment._change_colours(x, generator(0), [[0, 1], [1, 0], [0, 1]])
    assert found[:, 0].flatten().tolist() == [0.0625, 0.0625, 0.125, 0.125, 0.0625, 0.0625]


def test_half_of_the_images_are_mirrored():
    falling = torch.linspace(1, 0, 8).expand(400, 1, 8, 8)
    views = augment_images(falling, RandomKey((0,)))
    mirrored = (views[..., -2:].mean((1, 2, 3)) > views[..., :2].mean((1, 2, 3))).float().mean()
    assert 0.4 < mirrored < 0.6


def test_view_is_similar_to_its_image():
    """A shift by a pixel changes smooth images little. The brightness factor 1 ± .4 dominates."""
    smooth = F.interpolate(images(n=64, height=2, width=2), size=16, mode="bilinear")
    views = augment_images(smooth, RandomKey((0,)))
    assert 0.02 < (views - smooth).abs().mean() < 0.2


@pytest.mark.parametrize(
    "given", [torch.rand(4, 12), torch.rand(3, 8, 8), torch.zeros(2, 3, 8, 8, dtype=torch.uint8)]
)
def test_inputs_that_are_not_images_are_refused(given):
    with pytest.raises(InputError, match=r"cannot be augmented; float images \(n, channels"):
        augment_images(given, RandomKey((0,)))


def test_images_stay_without_rotation_shift_and_scaling(draws):
    x = images()
    assert torch.allclose(inner(augment._transform(x, generator(0))), x, atol=1e-6)


def test_shift_of_one_pixel_repeats_the_edge(draws):
    draws["shift"] = 1.0
    x = torch.arange(64.0).view(1, 1, 8, 8)
    moved = inner(augment._transform(x, generator(0)))
    expected = F.pad(x, (1, 0, 1, 0), mode="replicate")[..., :8, :8]
    assert torch.allclose(moved, expected, atol=1e-4)


def test_rotation_of_90_degrees_equals_rot90(draws):
    draws["angle"] = torch.pi / 2
    x = images(n=2)
    assert torch.allclose(
        inner(augment._transform(x, generator(0))), x.rot90(-1, (2, 3)), atol=1e-5
    )


def test_rotation_keeps_distances_in_images_that_are_not_square(draws):
    """A rotation by 90° keeps the middle four columns of a picture of 4 x 10 pixels."""
    draws["angle"] = torch.pi / 2
    x = images(n=1, height=4, width=10)
    turned = inner(augment._transform(x, generator(0)))
    assert torch.allclose(turned[..., 3:7], x[..., 3:7].rot90(-1, (2, 3)), atol=1e-5)


def test_repeating_edges_equals_padding_and_cropping(draws):
    draws |= {"angle": 0.2, "scale": 1.1}
    x = images(n=1, height=16, width=16)
    cos, sin = torch.tensor(0.2).cos() / 1.1, torch.tensor(0.2).sin() / 1.1
    maps = torch.tensor([[[cos, sin, 0.0], [-sin, cos, 0.0]]])
    padded = F.pad(x, [8] * 4, mode="replicate")
    grid = F.affine_grid(maps, list(padded.shape), align_corners=False)
    cropped = F.grid_sample(padded, grid, align_corners=False)[..., 8:-8, 8:-8]
    assert torch.allclose(inner(augment._transform(x, generator(0))), cropped, atol=1e-5)


def test_blur_has_the_expected_values(draws):
    """σ .5: weights exp(-2 k²) at distance k are 1, .13534, .00034, which add up to 1.27135."""
    draws["sigma"] = 0.5
    x = torch.zeros(1, 1, 9, 9)
    x[..., 4, 4] = 1.0
    blurred = augment._blur(x, generator(0))
    assert blurred.shape == (1, 1, 5, 5)
    weights = torch.tensor([0.0003355, 0.1353353, 1.0, 0.1353353, 0.0003355]) / 1.2713416
    assert torch.allclose(blurred[0, 0], weights[:, None] * weights, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "factor", "given", "expected"),
    [
        # Grey values of the two pixels: .299 * .4 + .587 * .2 = .237 and twice that. Mean: .3555.
        ("_change_contrast", 0.5, [[0.4, 0.8], [0.2, 0.4], [0.0, 0.0]],
         [[0.37775, 0.57775], [0.27775, 0.37775], [0.17775, 0.17775]]),
        ("_change_brightness", 1.2, [[0.5, 1.0]] * 3, [[0.6, 1.2]] * 3),
        ("_change_gamma", 2.0, [[0.5, 0.1]] * 3, [[0.25, 0.01]] * 3),
        # Grey of pure red is .299.
        ("_change_saturation", 0.5, [[1.0], [0.0], [0.0]], [[0.6495], [0.1495], [0.1495]]),
        # A third of the circle: red, dark yellow and grey become green, dark cyan and grey.
        ("_change_hue", 1 / 3, [[1.0, 0.4, 0.3], [0.0, 0.4, 0.3], [0.0, 0.0, 0.3]],
         [[0.0, 0.0, 0.3], [1.0, 0.4, 0.3], [0.0, 0.4, 0.3]]),
        # Back by a sixth: red becomes magenta.
        ("_change_hue", -1 / 6, [[1.0], [0.2], [0.2]], [[1.0], [0.2], [1.0]]),
    ],
)  # fmt: skip
def test_changes_of_colour_have_the_expected_values(change, factor, given, expected):
    x = torch.tensor(given)[None, :, None]  # (1, 3, 1, pixels)
    changed = getattr(augment, change)(x, torch.full((1, 1, 1, 1), factor))
    assert torch.allclose(changed[0, :, 0], torch.tensor(expected), atol=1e-5)
