"""Tests with models of the transformers library."""

import pytest
import torch

from bitta import Session
from bitta.seeding import generator

transformers = pytest.importorskip("transformers", reason="needs the test extra transformers")


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16],
        depths=[1, 2, 1],
        layer_type="basic",
        num_labels=4,
    )
    return transformers.ResNetForImageClassification(config), ("0", "1", "2")


def vit():
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=8, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=8, num_labels=4,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config), ("1", "3", "5", "7")


def convnext():
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1, 2, 1, 1], patch_size=2, num_labels=4
    )
    return transformers.ConvNextForImageClassification(config), ("0", "1", "2", "3")


@pytest.mark.full
@pytest.mark.parametrize("make", [resnet, vit, convnext], ids=lambda make: make.__name__)
def test_transformers_model_adapts_with_fan_out(make):
    model, ends = make()
    size = 16 if make is vit else 32
    before = [parameter.clone() for parameter in model.parameters()]
    with Session(model, "bitta", n_queries=2, logits="logits", lr=0.01) as session:
        for number in range(3):
            images = torch.rand(6, 3, size, size, generator=generator(0, number))
            for query in session.predict(images).queries:
                session.answer(query.id, correct=query.index % 2 == 0)
            assert session.learn().terms["feedback"].isfinite().all()
        sites = session.adapter.wrapped.sites
        assert tuple(name.rpartition(".")[2] for name in sites) == ends
        assert session.adapter.wrapped.can_fan_out is True
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(not module._forward_hooks for module in model.modules())
