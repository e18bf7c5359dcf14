"""Tests that architectures compute the same as those of another library."""

import pytest
import torch

from bitta.models import build_model
from bitta.seeding import generator

transformers = pytest.importorskip("transformers", reason="needs the test extra transformers")

PLAIN = {"n_classes": 5, "mean": (0,) * 3, "std": (1,) * 3}


@torch.no_grad()
def randomise(model):
    """Set random weights, means and variances, none of which is 0 or 1."""
    for place, tensor in enumerate(model.state_dict().values()):
        if tensor.is_floating_point():
            tensor.uniform_(0.2, 0.9, generator=generator(0, place))
            if tensor.dim() > 1:
                tensor.sub_(0.55)


def test_vit_equals_another_library():
    theirs = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
            image_size=16, patch_size=4, num_labels=5, layer_norm_eps=1e-6,
        )
    ).eval()  # fmt: skip
    ours = build_model(
        "vit_small", image_size=16, patch_size=4, width=16, depth=2, n_heads=2, mlp_width=24,
        **PLAIN,
    ).eval()  # fmt: skip
    randomise(theirs)
    ours.load_state_dict(vit_weights(theirs.state_dict()))
    images = torch.randn(3, 3, 16, 16, generator=generator(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride_first", [False, True])
@pytest.mark.parametrize("block", ["basic", "bottleneck"])
def test_imagenet_resnet_equals_another_library(block, stride_first):
    wider = 4 if block == "bottleneck" else 1
    theirs = transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=4, hidden_sizes=[4 * wider, 8 * wider, 8 * wider], depths=[1, 2, 1],
            layer_type=block, downsample_in_bottleneck=stride_first, num_labels=5,
        )
    ).eval()  # fmt: skip
    ours = build_model(
        "imagenet_resnet50", block=block, blocks=(1, 2, 1), widths=(4, 8, 8),
        stride_first=stride_first, **PLAIN,
    ).eval()  # fmt: skip
    randomise(theirs)
    ours.load_state_dict(resnet_weights(theirs.state_dict()))
    images = torch.randn(2, 3, 40, 40, generator=generator(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-5, atol=1e-5)


def resnet_weights(theirs):
    """Return weights of the transformers library under torchvision's names."""

    def name(key):
        key = key.removeprefix("resnet.").replace("classifier.1.", "fc.")
        key = key.replace("embedder.embedder.convolution", "conv1")
        key = key.replace("embedder.embedder.normalization", "bn1")
        for stage in range(3):
            key = key.replace(f"encoder.stages.{stage}.layers.", f"layer{stage + 1}.")
        key = key.replace("shortcut.convolution", "downsample.0")
        key = key.replace("shortcut.normalization", "downsample.1")
        for place in range(3):
            key = key.replace(f"layer.{place}.convolution", f"conv{place + 1}")
            key = key.replace(f"layer.{place}.normalization", f"bn{place + 1}")
        return key

    return {name(key): tensor for key, tensor in theirs.items()}


def vit_weights(theirs):
    """Return the weights likewise. Query, key and value become one tensor."""
    pairs = {
        "class_token": "vit.embeddings.cls_token",
        "encoder.pos_embedding": "vit.embeddings.position_embeddings",
        "conv_proj": "vit.embeddings.patch_embeddings.projection",
        "encoder.ln": "vit.layernorm",
        "heads.head": "classifier",
    }
    state = {}
    for place in range(2):
        ours, block = f"encoder.layers.encoder_layer_{place}", f"vit.layers.{place}"
        pairs |= {
            f"{ours}.ln_1": f"{block}.layernorm_before",
            f"{ours}.ln_2": f"{block}.layernorm_after",
            f"{ours}.mlp.0": f"{block}.mlp.fc1",
            f"{ours}.mlp.3": f"{block}.mlp.fc2",
            f"{ours}.self_attention.out_proj": f"{block}.attention.o_proj",
        }
        for kind in ("weight", "bias"):
            state[f"{ours}.self_attention.in_proj_{kind}"] = torch.cat(
                [theirs[f"{block}.attention.{part}_proj.{kind}"] for part in "qkv"]
            )
    for name, other in pairs.items():
        if other in theirs:
            state[name] = theirs[other]
        else:
            state |= {f"{name}.{kind}": theirs[f"{other}.{kind}"] for kind in ("weight", "bias")}
    return state
