"""Tests of the conversion of a ResNet-50 from Keras."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from bitta.models import build_model
from bitta.seeding import generator

SCRIPT = Path(__file__).parents[2] / "scripts" / "convert_keras_resnet50.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("convert_keras_resnet50", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tiny_package(script):
    """Return Keras tensors with two output channels and three input channels."""
    keras = {"fc1000/kernel": torch.rand(2, 5), "fc1000/bias": torch.rand(5)}
    for _, _, conv, norm in script.layer_names():
        keras[f"{conv}/kernel"] = torch.rand(1, 1, 3, 2, generator=generator(0, conv))
        keras[f"{conv}/bias"] = torch.tensor([1.0, 2.0])
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            keras[f"{norm}/{name}"] = torch.rand(2, generator=generator(0, norm, name))
    return keras


def test_every_weight_of_the_architecture_is_filled(script):
    with torch.device("meta"):
        model = build_model("imagenet_resnet50", n_classes=5, mean=(0,) * 3, std=(1,) * 3)
    counters = {key for key in model.state_dict() if key.endswith("num_batches_tracked")}
    assert (
        script.convert_tensors(tiny_package(script)).keys() == model.state_dict().keys() - counters
    )


def test_kernels_are_transposed_and_the_first_becomes_rgb(script):
    keras = tiny_package(script)
    state = script.convert_tensors(keras)
    assert state["layer1.0.conv1.weight"][1, 2] == keras["res2a_branch2a/kernel"][0, 0, 2, 1]
    assert state["conv1.weight"][1, 0] == keras["conv1/kernel"][0, 0, 2, 1]
    assert state["conv1.weight"][1, 2] == keras["conv1/kernel"][0, 0, 0, 1]
    assert torch.equal(state["fc.weight"], keras["fc1000/kernel"].T)


def test_biases_are_folded_into_batchnorm_means(script):
    keras = tiny_package(script)
    means = script.convert_tensors(keras)["layer2.0.downsample.1.running_mean"]
    assert torch.equal(means, keras["bn3a_branch1/moving_mean"] - torch.tensor([1.0, 2.0]))


def test_normalised_pixels_equal_those_of_keras(script):
    card = script.make_card(("a", "b"), eps=0.001)
    red = (200 / 255 - card.arguments["mean"][0]) / card.arguments["std"][0]
    assert red == pytest.approx(200 - 123.68)
    assert card.arguments["eps"] == 0.001
    assert card.arguments["stride_first"] is True


def test_shards_are_split_by_the_manifest(script, tmp_path):
    floats = np.arange(7, dtype="<f4").tobytes()
    (tmp_path / "1.bin").write_bytes(floats[:10])  # a shard may end within a number
    (tmp_path / "2.bin").write_bytes(floats[10:])
    entries = [
        {"name": "a", "shape": [2, 2], "dtype": "float32"},
        {"name": "b", "shape": [3], "dtype": "float32"},
    ]
    tensors = script.read_shards(tmp_path, [{"paths": ["1.bin", "2.bin"], "weights": entries}])
    assert tensors["a"].tolist() == [[0, 1], [2, 3]]
    assert tensors["b"].tolist() == [4, 5, 6]
