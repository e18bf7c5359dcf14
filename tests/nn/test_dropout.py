"""Tests of MC-dropout: fan-out against separate passes, masks, rates."""

import pytest
import torch
from torch import nn

from bitta.nn import SamplingSettings, WrappedModel
from bitta.nn.batchnorm import RowLayout
from bitta.nn.mc_dropout import _make_mask, _RandomWords, dropout_at
from bitta.seeding import RandomKey, generator
from bitta.testing import NORMS, toy_classifier

KEY = (5, "test")
PASSES = 4


def images(n=6):
    return torch.rand(n, 3, 8, 8, generator=generator(1))


def kept(shape, rate, key, **part):
    return _make_mask(torch.ones(shape), rate, _RandomWords(RandomKey(key), (0, 0), (0,), **part))[
        0
    ]


def sample(wrapped, x, statistics, *, can_fan_out, passes=PASSES):
    wrapped.can_fan_out = can_fan_out
    return wrapped.sample(x, SamplingSettings(statistics, 0.3, passes), RandomKey(KEY))


def gradients(model, logits):
    loss = logits.softmax(-1).mean(0).square().sum()
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_fan_out_equals_separate_passes(norm, statistics, memory_format):
    model = toy_classifier(norm).to(memory_format=memory_format)
    buffers = [buffer.clone() for buffer in model.buffers()]
    wrapped, x = WrappedModel(model), images().to(memory_format=memory_format)
    fanned = sample(wrapped, x, statistics, can_fan_out=True)
    separate = sample(wrapped, x, statistics, can_fan_out=False)
    assert fanned.shape == (PASSES, 6, 5)
    assert torch.allclose(fanned, separate, atol=1e-6, rtol=0)
    for one, two in zip(gradients(model, fanned), gradients(model, separate), strict=True):
        assert torch.allclose(one, two, atol=1e-5, rtol=0)
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers(), strict=True))


def test_passes_differ_from_one_another():
    logits = sample(WrappedModel(toy_classifier()), images(), "batch", can_fan_out=True)
    assert not torch.allclose(logits[0], logits[1])


def test_pooled_statistics_differ_from_separate_ones():
    """Per-pass normalisation is not what a plain BatchNorm over all rows would give."""
    model = toy_classifier()
    wrapped, x, rows = WrappedModel(model), images(), RowLayout()
    fanned = sample(wrapped, x, "batch", can_fan_out=True)
    model.train()  # plain BatchNorm pools the passes
    with (
        torch.no_grad(),
        dropout_at(
            model,
            wrapped.sites,
            rate=0.3,
            passes=range(PASSES),
            random_key=RandomKey(KEY),
            rows=rows,
        ),
    ):
        pooled = model(x).unflatten(0, (PASSES, -1))
    assert (fanned - pooled).abs().max() > 1e-3


def test_prefix_runs_once_and_suffix_on_every_pass():
    model = toy_classifier()
    rows = {}
    for name in ("stem", "stage1", "stage2", "head"):
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: rows.setdefault(name, []).append(len(inputs[0]))
        )
    wrapped = WrappedModel(model)
    wrapped.prepare_inputs(images(6))  # tests the layout once
    rows.clear()
    sample(wrapped, images(6), "batch", can_fan_out=True)
    assert rows == {"stem": [6], "stage1": [6], "stage2": [24], "head": [24]}
    assert wrapped.counts.forwards == 24


def test_masks_depend_on_their_key_only():
    one = kept((3, 5), 0.5, (1, "a", 0))
    assert torch.equal(one, kept((3, 5), 0.5, (1, "a", 0)))
    assert not torch.equal(one, kept((3, 5), 0.5, (1, "a", 1)))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75])
def test_masks_drop_at_the_rate(rate):
    share = kept((1000, 1001), rate, (0,)).float().mean().item()
    assert share == pytest.approx(1 - rate, abs=0.002)


def test_part_of_a_batch_has_its_part_of_the_mask():
    whole = kept((6, 3, 4, 4), 0.3, (1,))
    part = kept((2, 3, 4, 4), 0.3, (1,), first_row=3, n_rows=6)
    assert torch.equal(part, whole[3:5])


def test_mask_has_the_memory_layout_of_its_input():
    x = torch.ones(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    words = _RandomWords(RandomKey(KEY), (0, 0), (0,))
    assert _make_mask(x, 0.3, words)[0].stride() == x.stride()
    odd = torch.ones(3, 2).T
    assert _make_mask(odd, 0.3, words)[0].is_contiguous()


def test_kept_elements_are_scaled_up():
    """Rate 1/2 changes ones to zeros and twos, so the expectation stays the same."""
    model = nn.Sequential(nn.Identity())
    with dropout_at(
        model, ["0"], rate=0.5, passes=(0,), random_key=RandomKey(KEY), rows=RowLayout()
    ):
        out = model(torch.ones(50, 7))
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert out.mean().item() == pytest.approx(1, abs=0.2)


def test_rate_zero_needs_no_site_and_one_pass():
    wrapped = WrappedModel(nn.Linear(4, 3))
    x = torch.rand(5, 4, generator=generator(2))
    logits = wrapped.sample(x, SamplingSettings("running", 0.0, 4), RandomKey(KEY))
    assert logits.shape == (1, 5, 3)
    assert torch.equal(logits[0], wrapped.model(x))


def test_hooks_are_gone_after_an_exception():
    model = toy_classifier()
    wrapped = WrappedModel(model)
    with pytest.raises(RuntimeError):
        sample(wrapped, torch.rand(2, 9, 8, 8), "batch", can_fan_out=True)
    assert all(not module._forward_hooks for module in model.modules())
    assert all("forward" not in module.__dict__ for module in model.modules())


def test_single_row_has_the_same_mask_as_among_others():
    """The first stride of a single row has no meaning and may differ."""
    whole = torch.ones(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    one = torch.ones(1, 3, 5, 5).as_strided((1, 3, 5, 5), (3, 1, 15, 3))
    words = {"n_rows": 4, "first_row": 2}
    among = _make_mask(whole, 0.3, _RandomWords(RandomKey(KEY), (0, 0), (0,)))[0]
    alone = _make_mask(one, 0.3, _RandomWords(RandomKey(KEY), (0, 0), (0,), **words))[0]
    assert torch.equal(alone[0], among[2])
