"""Tests of dropout sites, found by structure."""

import pytest
from torch import nn

from bitta.errors import BittaError, ModelError
from bitta.models import build_model
from bitta.nn.structure import find_sites

PIXELS = {"n_classes": 10, "mean": (0.5,) * 3, "std": (0.2,) * 3}


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))

    def forward(self, x):
        return x + self.body(x)


class Stage(nn.Module):
    """Stage that loops over its blocks."""

    def __init__(self, n_blocks):
        super().__init__()
        self.downsample = nn.Conv2d(4, 4, 1)
        self.layers = nn.ModuleList(Block() for _ in range(n_blocks))

    def forward(self, x):
        x = self.downsample(x)
        for layer in self.layers:
            x = layer(x)
        return x


def test_residual_stages_are_found_under_any_name():
    assert find_sites(build_model("resnet18", **PIXELS)) == ("layer1", "layer2", "layer3", "layer4")
    assert find_sites(build_model("resnet8", **PIXELS)) == ("layer1", "layer2", "layer3")
    odd = nn.Module()
    odd.trunk = nn.Module()
    odd.trunk.alpha = nn.Sequential(Block(), Block())
    odd.trunk.omega = nn.Sequential(Block(), Block(), Block())
    assert find_sites(odd) == ("trunk.alpha", "trunk.omega")


def test_stages_in_a_list_are_found():
    model = nn.Module()
    model.stages = nn.ModuleList([Stage(2), Stage(3), Stage(2)])
    assert find_sites(model) == ("stages.0", "stages.1", "stages.2")


def test_stages_between_downsampling_layers_are_found():
    def down():
        return nn.Sequential(nn.LayerNorm(4), nn.Conv2d(4, 4, 2))

    model = nn.Module()
    model.features = nn.Sequential(
        down(), nn.Sequential(Block(), Block()), down(), nn.Sequential(Block(), Block(), Block())
    )
    assert find_sites(model) == ("features.1", "features.3")


def test_blocks_outside_of_containers_are_found():
    model = nn.Module()
    model.stem = nn.Conv2d(3, 4, 1)
    model.first, model.second, model.third = Block(), Block(), Block()
    assert find_sites(model) == ("first", "second", "third")


def test_transformer_is_divided_into_quarters():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    assert find_sites(encoder) == ("layers.2", "layers.5", "layers.8", "layers.11")


def test_small_repeated_stems_are_ignored():
    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

    model = nn.Module()
    model.stem1, model.stem2 = Stem(), Stem()
    model.deep1, model.deep2 = nn.Sequential(Block()), nn.Sequential(Block())
    assert find_sites(model) == ("deep1", "deep2")


def test_blocks_are_preferred_to_the_layers_inside():
    class ConvNorm(nn.Module):
        def __init__(self, width=8):
            super().__init__()
            self.conv = nn.Conv2d(width, width, 3)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.expand, self.reduce = ConvNorm(), ConvNorm()

    model = nn.Module()
    model.stem1, model.stem2 = ConvNorm(), ConvNorm()
    model.layer = nn.ModuleList(Residual() for _ in range(3))
    assert find_sites(model) == ("layer.0", "layer.1", "layer.2")


def test_sites_can_be_names_or_a_function():
    model = build_model("resnet8", **PIXELS)
    assert find_sites(model, ["layer2"]) == ("layer2",)
    assert find_sites(model, lambda name, _: name.startswith("layer") and "." not in name) == (
        "layer1", "layer2", "layer3",
    )  # fmt: skip


def test_plain_chains_use_their_dropout_or_activations():
    layers = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)]
    assert find_sites(nn.Sequential(*layers)) == ("1", "3")
    assert find_sites(nn.Sequential(*layers[:4], nn.Dropout(0.2), layers[4])) == ("4",)


def test_errors_suggest_a_remedy():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"sites=\[\"1\"\], or set dropout=0"):
        find_sites(plain)
    with pytest.raises(BittaError, match="did you mean 'layer1'"):
        find_sites(build_model("resnet8", **PIXELS), ["layr1"])
    with pytest.raises(ModelError, match="matches none"):
        find_sites(plain, lambda *_: False)
