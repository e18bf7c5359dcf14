"""Tests of the architectures."""

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import InputError, SettingError
from bitta.models import ARCHITECTURES, build_model, initialise
from bitta.nn.structure import find_sites
from bitta.seeding import generator

PIXELS = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.25)}
THIN = {"blocks": (1, 1, 1, 1), "widths": (4, 4, 8, 8)}
SMALL = {
    "resnet8": {},
    "resnet50": THIN,
    "imagenet_resnet18": THIN,
    "imagenet_resnet50": THIN,
    "vit_small": {"width": 12, "depth": 8, "mlp_width": 16},
    "vit_b_16": {"image_size": 32, "width": 12, "depth": 8, "n_heads": 2, "mlp_width": 16},
}


def shapes(name, n_classes):
    with torch.device("meta"):
        model = build_model(name, n_classes=n_classes, **PIXELS)
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def n_parameters(found):
    counted = ("running_mean", "running_var", "num_batches_tracked")
    return sum(
        torch.Size(shape).numel() for key, shape in found.items() if not key.endswith(counted)
    )


# torchvision publishes the numbers of parameters: 11689512, 25557032, 86567656.
# A convolution with its normalisation is 6 tensors, the head 2.
@pytest.mark.parametrize(
    ("name", "n_tensors", "parameters"),
    [
        ("imagenet_resnet18", 6 * (1 + 16 + 3) + 2, 11_689_512),
        ("imagenet_resnet50", 6 * (1 + 48 + 4) + 2, 25_557_032),
        ("vit_b_16", 3 + 1 + 12 * 12 + 2 + 2, 86_567_656),
    ],
)
def test_parameter_counts_equal_torchvision(name, n_tensors, parameters):
    found = shapes(name, 1000)
    assert len(found) == n_tensors
    assert n_parameters(found) == parameters


def test_imagenet_resnet50_has_the_names_of_torchvision():
    found = shapes("imagenet_resnet50", 1000)
    assert list(found)[:7] == [
        "conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var",
        "bn1.num_batches_tracked", "layer1.0.conv1.weight",
    ]  # fmt: skip
    assert found["conv1.weight"] == (64, 3, 7, 7)
    assert found["layer1.0.downsample.0.weight"] == (256, 64, 1, 1)
    assert found["layer1.0.downsample.1.running_var"] == (256,)
    assert found["layer2.0.conv1.weight"] == (128, 256, 1, 1)
    assert found["layer2.0.conv2.weight"] == (128, 128, 3, 3)
    assert found["layer3.5.conv3.weight"] == (1024, 256, 1, 1)
    assert found["layer4.2.bn3.num_batches_tracked"] == ()
    assert found["fc.weight"] == (1000, 2048)
    assert "layer1.1.downsample.0.weight" not in found


def test_vit_has_the_names_of_torchvision():
    found = shapes("vit_b_16", 1000)
    assert found["class_token"] == (1, 1, 768)
    assert found["conv_proj.weight"] == (768, 3, 16, 16)
    assert found["encoder.pos_embedding"] == (1, 197, 768)
    block = "encoder.layers.encoder_layer_11"
    assert [key for key in found if key.startswith(block)] == [
        f"{block}.ln_1.weight", f"{block}.ln_1.bias",
        f"{block}.self_attention.in_proj_weight", f"{block}.self_attention.in_proj_bias",
        f"{block}.self_attention.out_proj.weight", f"{block}.self_attention.out_proj.bias",
        f"{block}.ln_2.weight", f"{block}.ln_2.bias",
        f"{block}.mlp.0.weight", f"{block}.mlp.0.bias",
        f"{block}.mlp.3.weight", f"{block}.mlp.3.bias",
    ]  # fmt: skip
    assert found[f"{block}.self_attention.in_proj_weight"] == (2304, 768)
    assert found[f"{block}.mlp.3.weight"] == (768, 3072)
    assert found["encoder.ln.bias"] == (768,)
    assert found["heads.head.weight"] == (1000, 768)


def test_small_resnet50_has_the_names_of_small_resnets():
    found = shapes("resnet50", 10)
    assert found["conv1.weight"] == (64, 3, 3, 3)
    assert found["layer2.0.shortcut.0.weight"] == (512, 256, 1, 1)
    assert found["layer4.2.conv3.weight"] == (2048, 512, 1, 1)
    assert found["fc.bias"] == (10,)
    assert not any("downsample" in key for key in found)


def test_resolution_is_halved_at_the_right_convolution():
    def sides(name, **arguments):
        model = build_model(name, n_classes=2, **PIXELS, **THIN, **arguments).eval()
        seen = {}
        for module, names in ((model.layer2[0].conv1, "first"), (model.layer2[0].conv2, "second")):
            module.register_forward_hook(
                lambda _module, _inputs, output, name=names: seen.update({name: output.shape[-1]})
            )
        model(torch.rand(1, 3, 64, 64))
        return seen

    assert sides("resnet50") == {"first": 64, "second": 32}
    assert sides("imagenet_resnet50") == {"first": 16, "second": 8}
    assert sides("imagenet_resnet50", stride_first=True) == {"first": 8, "second": 8}


def test_eps_reaches_every_normalisation_layer():
    model = build_model("imagenet_resnet50", n_classes=2, **PIXELS, **THIN, eps=1e-3)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 1 + 4 * 3 + 4
    assert {norm.eps for norm in norms} == {1e-3}


@pytest.mark.parametrize("name", SMALL)
def test_pixels_are_normalised_inside_the_model(name):
    model = build_model(name, n_classes=3, **PIXELS, **SMALL[name]).eval()
    initialise(model, seed=0)
    plain = build_model(name, n_classes=3, mean=(0,) * 3, std=(1,) * 3, **SMALL[name]).eval()
    plain.load_state_dict(model.state_dict())
    images = torch.rand(2, 3, 32, 32, generator=generator(0))
    mean, std = (torch.tensor(PIXELS[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(model(images), plain((images - mean) / std))
    assert model(images).shape == (2, 3)
    assert not {"mean", "std"} & model.state_dict().keys()


@pytest.mark.parametrize(("norm", "kind"), [("group", nn.GroupNorm), ("none", nn.Identity)])
def test_norm_replaces_every_batchnorm_layer(norm, kind):
    model = build_model("resnet8", n_classes=3, mean=(0.5,), std=(0.5,), norm=norm)
    changed = [module for name, module in model.named_modules() if name.endswith(("bn1", "bn2"))]
    assert len(changed) == 7
    assert all(type(module) is kind for module in changed)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert [m.num_groups for m in changed if norm == "group"] in ([], [2, 2, 2, 4, 4, 8, 8])
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 3)


@pytest.mark.parametrize("name", SMALL)
def test_initial_weights_depend_only_on_the_seed(name):
    def weights(seed):
        model = build_model(name, n_classes=3, **PIXELS, **SMALL[name])
        initialise(model, seed=seed)
        return dict(model.named_parameters())

    before = torch.get_rng_state()
    one, same, other = weights(0), weights(0), weights(1)
    assert torch.equal(before, torch.get_rng_state())
    for key, value in one.items():
        assert torch.equal(value, same[key])
        if value.std() > 0 and "bias" not in key:
            assert not torch.equal(value, other[key]), key


def test_initial_vit_tokens_have_the_scale_of_the_pixels():
    model = build_model("vit_small", n_classes=10, **PIXELS)
    initialise(model, seed=0)
    images = torch.randn(8, 3, 32, 32, generator=generator(0))
    assert model.conv_proj(images).std().item() == pytest.approx(1, abs=0.05)
    # Uniform within sqrt(6 / (3 * 192 + 192)) has this deviation.
    attention = model.encoder.layers[0].self_attention
    assert attention.in_proj_weight.std().item() == pytest.approx((2 / (4 * 192)) ** 0.5, rel=0.01)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_dropout_goes_after_stages_or_quarters(name):
    with torch.device("meta"):
        found = find_sites(build_model(name, n_classes=10, **PIXELS))
    if name.startswith("vit"):
        ends = (2, 5, 8, 11) if name == "vit_b_16" else (1, 3, 6, 8)
        assert found == tuple(f"encoder.layers.encoder_layer_{end}" for end in ends)
    else:
        n_stages = 3 if name in ("resnet8", "resnet20") else 4
        assert found == tuple(f"layer{stage + 1}" for stage in range(n_stages))


@pytest.mark.parametrize("name", SMALL)
def test_every_architecture_adapts_with_fan_out(name):
    model = build_model(name, n_classes=3, **PIXELS, **SMALL[name])
    initialise(model, seed=0)
    before = [parameter.clone() for parameter in model.parameters()]
    with Session(model, "bitta", n_queries=2, lr=0.01) as session:
        images = torch.rand(6, 3, 32, 32, generator=generator(0))
        for query in session.predict(images).queries:
            session.answer(query.id, correct=True)
        assert session.learn().terms["feedback"].isfinite().all()
        assert session.adapter.wrapped.can_fan_out is True
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vit_small", {"patch_size": 5}, "image_size is 32; allowed: a multiple of patch_size"),
        ("vit_small", {"n_heads": 5}, "width is 192; allowed: a multiple of n_heads"),
        ("resnet8", {"std": (0.2, 0.3)}, "one number per channel"),
        ("resnet8", {"std": (0.2, 0.3, 0.0)}, "above 0"),
        ("resnet8", {"norm": "layer"}, "norm is 'layer'; allowed: batch, group, none"),
        ("resnet8", {"n_clases": 3}, "resnet8 cannot be built with these arguments"),
        ("vit_b16", {}, "did you mean 'vit_b_16'"),
    ],
)
def test_invalid_arguments_are_named(name, change, message):
    with pytest.raises(SettingError, match=message):
        build_model(name, **{"n_classes": 3, **PIXELS, **change})


def test_vit_refuses_images_of_another_size():
    model = build_model("vit_small", n_classes=3, **PIXELS, **SMALL["vit_small"])
    with pytest.raises(InputError, match="images are 28 x 32 pixels; allowed: 32"):
        model(torch.rand(1, 3, 28, 32))
