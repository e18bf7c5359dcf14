"""Tests of MECTA's normaliser."""

import math

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import ModelError, SettingError
from bitta.methods.mecta import MectaNorm, Moments, gaussian_distance
from bitta.nn import SamplingSettings, WrappedModel, batch_norms
from bitta.seeding import RandomKey, generator
from bitta.testing import toy_classifier

RANDOM_KEY = RandomKey((5,))
METHODS = ("tent", "eta", "eata", "bitta")


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def layer_of(channels, *, affine=True):
    layer = nn.BatchNorm2d(channels, affine=affine).double().eval()
    random_key = generator(4)
    with torch.no_grad():
        for tensor in layer.parameters():
            tensor.copy_(torch.rand(channels, generator=random_key) + 0.5)
        layer.running_mean.copy_(torch.randn(channels, generator=random_key))
        layer.running_var.copy_(torch.rand(channels, generator=random_key) + 0.5)
    return layer


def run(layer, x, norm, *, is_update=True):
    """Return the output of a model with this single layer and the normaliser."""
    wrapped = WrappedModel(layer, logits=lambda out: out.mean((2, 3)))
    wrapped.normaliser = norm
    captured = []
    handle = layer.register_forward_hook(lambda _module, _inputs, out: captured.append(out))
    if is_update:
        with norm.updating(RANDOM_KEY), norm.recording():
            wrapped(x, statistics="batch")
    else:
        wrapped(x, statistics="batch")
    handle.remove()
    return captured[-1]


def test_gaussian_distance_has_the_expected_value():
    """Means 1 apart, variances .999 and 1.999: (2/2 + 3/1)/2 - 1 = 1; equal ones: 0."""
    one = Moments(torch.tensor([0.0, 3.0]), torch.tensor([0.999, 2.0]))
    two = Moments(torch.tensor([1.0, 3.0]), torch.tensor([1.999, 2.0]))
    assert gaussian_distance(one, two).tolist() == pytest.approx([1.0, 0.0])
    assert gaussian_distance(two, one).tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize(
    ("gate", "rate"), [(None, 0.1), (0.0, 1 - math.exp(-0.5))], ids=["fixed", "gated"]
)
def test_running_statistics_move_by_the_rate_and_normalise_the_output(gate, rate):
    """Running means are 0, variances .999. Channel 0 has mean 1, variance 1.999 in the batch.

    Channel 1 has mean 0, variance .999. Distances 1 (as above) and 0, mean .5, β = 1 - exp(-.5).
    """
    layer = nn.BatchNorm1d(2, eps=0.0).eval()
    layer.running_var.fill_(0.999)
    x = torch.tensor([[1 - 1.999**0.5, -(0.999**0.5)], [1 + 1.999**0.5, 0.999**0.5]])
    wrapped = WrappedModel(layer)
    wrapped.normaliser = norm = MectaNorm(layer, prune=0.7, gate=gate)
    with norm.observing():
        wrapped.observe(x, momentum=1.0)
    mean, var = rate * 1.0, 0.999 + rate * 1.0
    assert layer.running_mean.tolist() == pytest.approx([mean, 0.0], abs=1e-6)
    assert layer.running_var.tolist() == pytest.approx([var, 0.999])
    out = wrapped(x, statistics="running")
    assert out[:, 0].tolist() == pytest.approx(((x[:, 0] - mean) / var**0.5).tolist())


def test_forward_without_gradient_uses_moved_statistics_and_moves_none():
    layer, x = layer_of(4), torch.randn(6, 4, 3, 3, generator=generator(0)).double()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    norm = MectaNorm(layer, prune=0.7)
    with torch.no_grad():
        given = run(layer, x, norm, is_update=False)
    mean = before["running_mean"].lerp(x.mean((0, 2, 3)), 0.1)
    var = before["running_var"].lerp(x.var((0, 2, 3), correction=0), 0.1)
    wanted = nn.functional.batch_norm(x, mean, var, layer.weight, layer.bias, eps=layer.eps)
    assert torch.allclose(given, wanted)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def reference(layer, x, kept):
    """Compute r x̂ + d for autograd. Dropped channels lack the gradient through the variance."""
    over = (0, 2, 3)
    mean, var = x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)
    old = [tensor.view(1, -1, 1, 1) for tensor in (layer.running_mean, layer.running_var)]
    moved_mean = old[0].lerp(mean, 0.1).detach()
    sigma = (old[1].lerp(var, 0.1).detach() + layer.eps).sqrt()
    inverse = (var + layer.eps).rsqrt()
    normal = (x - mean) * torch.where(kept.view(1, -1, 1, 1), inverse, inverse.detach())
    value = normal / (inverse * sigma).detach() + ((mean.detach() - moved_mean) / sigma)
    value_for_weight = torch.where(kept.view(1, -1, 1, 1), value, 0).detach()
    weight, bias = layer.weight.view(1, -1, 1, 1), layer.bias.view(1, -1, 1, 1)
    # Only kept channels have a gradient for the weight. All have one for the input.
    own = weight.detach() * value + bias
    return own + (weight - weight.detach()) * value_for_weight


def test_gradients_of_stored_and_dropped_channels_follow_the_formula():
    layer = layer_of(10)
    x = torch.randn(6, 10, 3, 3, generator=generator(0)).double().requires_grad_()
    slopes = torch.randn(x.shape, generator=generator(2)).double()
    drawn = torch.rand(10, generator=RANDOM_KEY.at("mecta", 0))
    kept = torch.zeros(10, dtype=torch.bool)
    kept[drawn.topk(3).indices] = True
    wanted = reference(layer, x, kept)
    gradients = torch.autograd.grad(wanted, (x, layer.weight, layer.bias), slopes)
    given = run(layer, x, MectaNorm(layer, prune=0.7))
    found = torch.autograd.grad(given, (x, layer.weight, layer.bias), slopes)
    assert torch.allclose(given, wanted)
    for one, two in zip(found, gradients, strict=True):
        assert torch.allclose(one, two)
    assert torch.equal(found[1] != 0, kept)
    assert torch.allclose(found[2], slopes.sum((0, 2, 3)))


def test_rate_one_with_all_channels_equals_batch_norm():
    layer = layer_of(4)
    x = torch.randn(6, 4, 3, 3, generator=generator(0)).double().requires_grad_()
    slopes = torch.randn(x.shape, generator=generator(2)).double()
    wanted = nn.functional.batch_norm(x, None, None, layer.weight, layer.bias, True, eps=layer.eps)
    given = run(layer, x, MectaNorm(layer, prune=0.0, rate=1.0))
    of = (x, layer.weight, layer.bias)
    for one, two in zip(
        torch.autograd.grad(given, of, slopes), torch.autograd.grad(wanted, of, slopes), strict=True
    ):
        assert torch.allclose(one, two)


def test_gated_layer_passes_gradients_on_and_learns_nothing():
    """The gate is just above the rate, or just below it."""
    layer = layer_of(4)
    x = torch.randn(6, 4, 3, 3, generator=generator(0)).double().requires_grad_()
    running = Moments(layer.running_mean, layer.running_var)
    batch = Moments(x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0))
    rate = 1 - math.exp(-gaussian_distance(batch, running).mean().item())
    sigma = (layer.running_var.lerp(batch.var, rate) + layer.eps).sqrt()

    def gradients(gate):
        fresh = layer_of(4)
        out = run(fresh, x, MectaNorm(fresh, prune=0.7, gate=gate))
        of = (x, fresh.weight, fresh.bias)
        return torch.autograd.grad(out.sum(), of, allow_unused=True)

    by_input, by_weight, by_bias = gradients(rate + 1e-6)
    assert by_weight is None
    assert by_bias is None
    wanted = (layer.weight / sigma).view(1, -1, 1, 1).expand_as(by_input)
    assert torch.allclose(by_input, wanted)
    assert gradients(rate - 1e-6)[2].tolist() == [54.0] * 4


@pytest.mark.parametrize(
    ("prune", "gate", "share"), [(0.7, None, 0.3), (0.0, None, 1.0), (0.7, 0.999, 0.0)]
)
def test_only_chosen_channels_are_stored(prune, gate, share):
    layer = layer_of(100)
    x = torch.randn(8, 100, 6, 6, generator=generator(0)).double().requires_grad_()
    with torch.no_grad():  # so close that the gate stops learning
        layer.running_mean.copy_(x.mean((0, 2, 3)))
        layer.running_var.copy_(x.var((0, 2, 3)))
    saved = {}

    def pack(tensor):
        saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(layer, x, MectaNorm(layer, prune=prune, gate=gate))
    vectors = 8 * 100 * 8
    whole = x.numel() * x.element_size()
    assert sum(saved.values()) == pytest.approx(share * whole, abs=vectors)


def test_update_moves_statistics_once_by_the_mean_over_its_passes():
    model, x = toy_classifier(), images()
    wrapped = WrappedModel(model)
    wrapped.normaliser = norm = MectaNorm(model, prune=0.7)
    seen = []
    last = batch_norms(model)[-1]
    handle = last.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0].detach()))
    with norm.updating(RANDOM_KEY):
        with norm.recording():
            wrapped.sample(x, SamplingSettings("batch", 0.3, 3), RandomKey((1,)))
        assert last.running_mean.abs().max() == 0  # not before the end of the update
    handle.remove()
    passes = seen[-1].chunk(3)
    means = torch.stack([part.mean((0, 2, 3)) for part in passes])
    variances = torch.stack([part.var((0, 2, 3), correction=0) for part in passes])
    assert torch.allclose(last.running_mean, 0.1 * means.mean(0), atol=1e-6)
    assert torch.allclose(last.running_var, 0.9 + 0.1 * variances.mean(0), atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("mecta", ["gated", "fixed"])
@pytest.mark.parametrize("policy", ["dropout", "augmentation", "ensemble"])
def test_low_memory_mode_makes_the_same_updates(mecta, policy):
    ends = []
    for memory in ("full", "low"):
        session = Session(
            toy_classifier(width=16),
            n_queries=2,
            mecta=mecta,
            memory=memory,
            policy=policy,
            lr=0.05,
        )
        for number in range(3):
            for query in session.predict(images(number)).queries:
                session.answer(query.id, correct=query.index % 2 == 0)
            session.learn()
        ends.append(session.model.state_dict())
    source = toy_classifier(width=16).state_dict()
    for name, tensor in ends[0].items():
        assert torch.allclose(tensor, ends[1][name], atol=1e-5), name
        assert tensor.dtype == torch.long or not torch.equal(tensor, source[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_each_update_stores_other_channels(method):
    selects = method in ("eta", "eata")
    all_rows = {"entropy_margin": 2.0, "similarity": 2.0} if selects else {}
    session = Session(toy_classifier(width=64), method, mecta="fixed", **all_rows)
    learned = []
    for number in range(2):
        session.step(images(number))
        learned.append(session.model.norm.weight.grad != 0)
    assert [kept.sum() for kept in learned] == [19, 19]  # .3 of 64
    assert not torch.equal(*learned)


@pytest.mark.parametrize("settings", [{}, {"memory": "low"}, {"epochs": 2}], ids=str)
@pytest.mark.parametrize("method", ["tent", "bitta"])
def test_statistics_move_when_observing_and_once_per_update(method, settings):
    """A tenth of the way to the mean m, twice, is .19 m; three times it is .271 m."""
    model, x = toy_classifier(), images()
    mean = toy_classifier().stem(x).mean((0, 2, 3)).detach()
    settings = {"epochs": 1, "mecta": "fixed", "n_queries": 0, "lr": 1e-9} | settings
    session = Session(model, method, **settings)
    session.predict(x)
    session.adapter.policy(x)
    assert torch.allclose(model.norm.running_mean, 0.1 * mean, atol=1e-6)
    session.learn()
    share = {1: 0.19, 2: 0.271}[settings["epochs"]]
    assert torch.allclose(model.norm.running_mean, share * mean, atol=1e-6)


def test_observed_statistics_are_used_to_serve():
    session = Session(toy_classifier(), "tent", mecta="fixed")
    before = session.model.norm.running_mean.clone()
    x = images()
    served = session.predict(x).probs
    assert not torch.equal(before, session.model.norm.running_mean)
    with torch.no_grad():
        assert torch.allclose(served, session.model.eval()(x).softmax(-1), atol=1e-6)


def test_one_value_per_channel_uses_running_statistics():
    layer = nn.BatchNorm1d(2, eps=0.0).eval()
    wrapped = WrappedModel(layer)
    wrapped.normaliser = norm = MectaNorm(layer, prune=0.7)
    with norm.observing():
        wrapped.observe(torch.tensor([[5.0, 7.0]]), momentum=1.0)
    assert layer.running_var.tolist() == [1.0, 1.0]
    assert wrapped(torch.tensor([[5.0, 7.0]]), statistics="batch").tolist() == [[5.0, 7.0]]


@pytest.mark.parametrize("norm", ["layer", "group"])
@pytest.mark.parametrize("method", METHODS)
def test_model_without_running_statistics_is_refused(method, norm):
    with pytest.raises(ModelError, match="needs BatchNorm layers with running statistics"):
        Session(toy_classifier(norm), method, mecta="gated")


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"mecta": "on"}, "mecta is 'on'; allowed: 'off', 'gated', 'fixed'"),
     ({"mecta_prune": 1.0}, "mecta_prune is 1.0; allowed: at least 0 and below 1"),
     ({"mecta_rate": 2.0}, "mecta_rate is 2.0; allowed: 0 to 1"),
     ({"mecta_gate": -1.0}, "mecta_gate is -1.0; allowed: at least 0"),
     ({"mecta": "fixed", "preset": "paper"}, "mecta is 'fixed'.*adapt_statistics='running'")],
)  # fmt: skip
def test_bad_settings_are_refused(settings, said):
    with pytest.raises(SettingError, match=said):
        Session(toy_classifier(), **settings)
