"""Tests of DeYO: destroyed images, filters and weights."""

from math import exp, log

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import InputError, SettingError
from bitta.methods.deyo import destroy_object
from bitta.seeding import generator
from bitta.testing import check_method


class Affine(nn.LayerNorm):
    """Model of scale and shift only."""

    def forward(self, x):
        return x * self.weight + self.bias


class Centre(nn.Module):
    """Model with logits (s, 0), where s is the sum of the middle 2 x 2 of 4 x 4 pixels."""

    def __init__(self):
        super().__init__()
        self.norm = Affine(2)

    def forward(self, x):
        s = x[..., 1:3, 1:3].sum((1, 2, 3))
        return self.norm(torch.stack([s, torch.zeros_like(s)], -1))


def image(middle, border):
    x = torch.full((1, 4, 4), float(border))
    x[:, 1:3, 1:3] = middle
    return x


def sigmoid(x):
    return 1 / (1 + exp(-x))


def H(p):
    return -p * log(p) - (1 - p) * log(1 - p)


OBJECT, FLAT, NOTHING = image(1, 0), image(1, 1), image(0, 0)
BEFORE, AFTER = sigmoid(4), sigmoid(1)
"""The middle of OBJECT sums to 4. Covered with the mean of the image, 4/16, it sums to 1."""
SETTINGS = {"destroy": "occlusion", "plpd_margin": 0.2, "lr": 1e-9}


def loss_of(*rows, **settings):
    session = Session(Centre(), "deyo", **(SETTINGS | settings))
    terms = session.step(torch.stack(rows))[2].terms
    return terms["entropy"].item() if terms else None


def test_weights_grow_with_certainty_and_with_plpd():
    weight = exp(0.4 * log(2) - H(BEFORE)) + exp(BEFORE - AFTER)
    assert abs(BEFORE - AFTER - 0.2510) < 1e-4
    assert loss_of(OBJECT) == pytest.approx(weight * H(BEFORE), abs=1e-5)


def test_uncertain_samples_and_samples_without_shape_are_excluded():
    """FLAT looks the same with its middle covered (PLPD 0); NOTHING has entropy ln 2."""
    assert loss_of(OBJECT, FLAT, NOTHING) == pytest.approx(loss_of(OBJECT), abs=1e-6)
    assert loss_of(FLAT, NOTHING) is None
    assert loss_of(NOTHING) is None


@pytest.mark.parametrize(("margin", "passes"), [(0.25, True), (0.252, False)])
def test_plpd_must_exceed_its_margin(margin, passes):
    assert (loss_of(OBJECT, plpd_margin=margin) is not None) == passes


@pytest.mark.parametrize(("margin", "passes"), [(0.131, True), (0.129, False)])
def test_entropy_must_be_below_a_share_of_ln_c(margin, passes):
    assert H(BEFORE) / log(2) == pytest.approx(0.13, abs=1e-3)
    assert (loss_of(OBJECT, entropy_margin=margin) is not None) == passes


def test_without_selected_samples_only_answers_are_learned_from():
    model = Centre()
    session = Session(model, "deyo", n_queries=1, dropout=0.0, **(SETTINGS | {"lr": 0.1}))
    session.step(torch.stack([FLAT, FLAT]))
    assert not model.norm.bias.any()
    session.answer(session.predict(torch.stack([FLAT, FLAT])).queries[0].id, correct=True)
    assert session.learn().terms.keys() == {"correct"}
    assert model.norm.bias.any()


def shuffled(way, images, seed=0, **options):
    return destroy_object(images, way, generator(seed), **options)


@pytest.mark.parametrize("way", ["patch", "pixel"])
def test_shuffling_keeps_every_pixel_and_differs_between_images(way):
    images = torch.arange(64.0).view(1, 1, 8, 8).repeat(2, 3, 1, 1)
    out = shuffled(way, images)
    assert torch.equal(out.flatten(2).sort(-1).values, images.flatten(2))
    assert not torch.equal(out[0], out[1])
    assert torch.equal(out[:, 0], out[:, 1])  # colours stay together
    assert torch.equal(out, shuffled(way, images))
    assert not torch.equal(out, shuffled(way, images, seed=1))


def test_shuffled_patches_stay_whole():
    patch = torch.arange(16).view(4, 4).repeat_interleave(2, 0).repeat_interleave(2, 1)
    out = shuffled("patch", patch.float().view(1, 1, 8, 8))[0, 0]
    tiles = out.unfold(0, 2, 2).unfold(1, 2, 2).flatten(2)  # (4, 4, pixels)
    assert (tiles == tiles[..., :1]).all()
    assert sorted(tiles[..., 0].flatten().tolist()) == list(range(16))


def test_single_patch_leaves_the_image_unchanged():
    images = torch.rand(2, 3, 8, 8, generator=generator(0))
    assert torch.equal(shuffled("patch", images, patches=1), images)


@pytest.mark.parametrize("size", [(10, 9), (3, 3)])
def test_images_of_any_size_can_be_cut_into_patches(size):
    out = shuffled("patch", torch.ones(2, 3, *size))
    assert out.shape == (2, 3, *size)
    assert torch.allclose(out, torch.ones(()))


def test_occlusion_covers_the_central_half_with_the_mean_of_each_channel():
    out = shuffled("occlusion", torch.cat([OBJECT, 2 * OBJECT]).unsqueeze(0))
    assert out[0, :, 1:3, 1:3].flatten(1).tolist() == [[0.25] * 4, [0.5] * 4]
    assert not out[0, :, 0].any()


def test_inputs_that_are_not_images_are_refused():
    with pytest.raises(InputError, match=r"DeYO needs images \(batch, .*\(3, 2\)"):
        Session(Affine(2), "deyo").step(torch.zeros(3, 2))


@pytest.mark.full
def test_contract_holds_if_samples_are_selected():
    check_method("deyo", norms=["batch", "group"], entropy_margin=2.0, plpd_margin=-1.0, lr=0.01)


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [("destroy", "hide", "'patch', 'occlusion', 'pixel'"), ("patches", 0, "1 or more"),
     ("plpd_margin", 1.0, "below 1"), ("entropy_margin", 0.0, "above 0")],
)  # fmt: skip
def test_bad_settings_are_refused_with_the_allowed_values(setting, value, allowed):
    with pytest.raises(SettingError, match=f"{setting} is .*{allowed}"):
        Session(Centre(), "deyo", **{setting: value})
