"""Tests of low memory and micro batches: the same gradient with fewer stored activations."""

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import DeviceMemoryError
from bitta.nn import SamplingSettings, WrappedModel
from bitta.seeding import RandomKey, generator
from bitta.testing import NORMS, toy_classifier

SAMPLING = {name: SamplingSettings(name, 0.3, 3) for name in ("running", "batch")}


def images(n=7):
    return torch.rand(n, 3, 8, 8, generator=generator(1))


def gradients(statistics, *, norm="batch", can_fan_out=True, **saving):
    """Return the gradients of a loss that mixes the passes."""
    model = toy_classifier(norm)
    wrapped = WrappedModel(model)
    wrapped.can_fan_out = can_fan_out
    for name, value in saving.items():
        setattr(wrapped, name, value)
    logits = wrapped.sample(images(), SAMPLING[statistics], RandomKey((2,)))
    loss = logits.softmax(-1).mean(0).square().sum()
    return logits.detach(), torch.autograd.grad(loss, list(model.parameters()))


def assert_same(one, two, *, within=1e-5):
    assert torch.allclose(one[0], two[0], atol=1e-6)
    for a, b in zip(one[1], two[1], strict=True):
        assert torch.allclose(a, b, atol=within, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("statistics", SAMPLING)
def test_low_memory_gives_the_same_gradient(norm, statistics):
    plain = gradients(statistics, norm=norm)
    assert_same(plain, gradients(statistics, norm=norm, low_memory=True))


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_micro_batches_give_the_same_gradient_without_batch_statistics(size):
    assert_same(gradients("running"), gradients("running", micro_batch=size))


def test_each_micro_batch_is_normalised_by_itself():
    whole, parts = gradients("batch"), gradients("batch", micro_batch=3)
    assert not torch.allclose(whole[0], parts[0], atol=1e-3)


def test_low_memory_and_micro_batches_work_together():
    saving = {"low_memory": True, "micro_batch": 2}
    assert_same(gradients("running"), gradients("running", **saving))


def test_low_memory_stores_only_the_inputs_of_each_pass():
    def n_saved(*, low):
        wrapped = WrappedModel(toy_classifier())
        wrapped.can_fan_out, wrapped.low_memory = True, low
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: saved.append(x.numel()) or x, lambda x: x
        ):
            logits = wrapped.sample(images(), SamplingSettings("batch", 0.3, 4), RandomKey((2,)))
        assert logits.requires_grad
        return sum(saved)

    assert n_saved(low=True) == 4 * images().numel()
    assert n_saved(low=False) > 4 * n_saved(low=True)


@pytest.mark.parametrize(
    ("method", "saving", "fixed"),
    [("bitta", {"memory": "low"}, {}), ("tent", {"memory": "low"}, {}),
     ("bitta", {"micro_batch": 4}, {"adapt_statistics": "running"})],
    ids=str,
)  # fmt: skip
def test_memory_saving_sessions_learn_the_same(method, saving, fixed):
    ends = []
    for settings in (fixed, fixed | saving):
        with Session(toy_classifier(), method, n_queries=2, lr=0.05, **settings) as session:
            for number in range(3):
                for query in session.predict(images() * (1 + number)).queries:
                    session.answer(query.id, correct=number % 2 == 0)
                session.learn()
            ends.append([p.detach().clone() for p in session.model.parameters()])
    for one, two in zip(*ends, strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def test_out_of_memory_error_names_the_settings():
    class Greedy(nn.Module):
        def __init__(self):
            super().__init__()
            self.stage1, self.stage2 = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            if torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")
            return self.stage2(self.stage1(x))

    session = Session(Greedy(), n_queries=0, sites=["stage1"])
    session.predict(torch.rand(5, 4))
    with pytest.raises(
        DeviceMemoryError, match=r"5 samples with 4 passes .*memory='low'.*micro_batch"
    ):
        session.learn()
