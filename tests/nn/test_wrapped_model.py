"""Tests of the wrapped model: probes, fallbacks, logits, layouts."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bitta import FallbackWarning, Session
from bitta.errors import ModelError
from bitta.nn import SamplingSettings, WrappedModel
from bitta.seeding import RandomKey, generator
from bitta.testing import toy_classifier


class SkipAcrossStages(nn.Module):
    """Model with odd names and a connection from before the first stage into the head."""

    def __init__(self):
        super().__init__()
        self.ingress = nn.Conv2d(3, 4, 1)
        self.kappa = nn.Conv2d(4, 4, 3, padding=1)
        self.lam = nn.BatchNorm2d(4)
        self.egress = nn.Linear(4, 5)

    def forward(self, x):
        early = self.ingress(x)
        late = self.lam(self.kappa(early)).relu()
        return self.egress((late + early).mean((2, 3)))


class RemembersBatchSize(nn.Module):
    """Model that averages over neighbouring rows, so that repeated rows would mix."""

    def __init__(self):
        super().__init__()
        self.site = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.site(x)
        return self.head(hidden + hidden.roll(1, 0))


def sampled(wrapped, x):
    return wrapped.sample(x, SamplingSettings("batch", 0.3, 3), RandomKey((0,)))


@pytest.mark.parametrize(
    ("model", "sites", "shape"),
    [
        (SkipAcrossStages(), ["kappa"], (4, 3, 6, 6)),
        (RemembersBatchSize(), ["site"], (4, 4)),
    ],
    ids=["skip", "rows"],
)
def test_models_that_cannot_fan_out_run_pass_by_pass(model, sites, shape):
    wrapped = WrappedModel(model, sites=sites)
    x = torch.rand(shape, generator=generator(0))
    with pytest.warns(FallbackWarning, match="3 stochastic passes"):
        logits = sampled(wrapped, x)
    assert wrapped.can_fan_out is False
    assert logits.shape[:2] == (3, 4)
    assert torch.equal(logits, sampled(wrapped, x))


def test_model_with_a_skip_across_stages_adapts():
    x = torch.rand(8, 3, 6, 6, generator=generator(0))
    session = Session(SkipAcrossStages(), "bitta", sites=["kappa"], n_queries=2)
    with pytest.warns(FallbackWarning):
        queries = session.predict(x).queries
    for query in queries:
        session.answer(query.id, correct=False)
    assert session.learn().terms["feedback"].isfinite().all()


def test_probe_works_with_one_image():
    wrapped = WrappedModel(toy_classifier())
    sampled(wrapped, torch.rand(1, 3, 8, 8))
    assert wrapped.can_fan_out is True


def test_logits_of_a_model_that_returns_an_object():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return SimpleNamespace(scores=self.head(x))

    x = torch.rand(2, 4)
    with pytest.raises(ModelError, match="SimpleNamespace; logits"):
        WrappedModel(Wrapped())(x, statistics="running")
    assert WrappedModel(Wrapped(), logits="scores")(x, statistics="running").shape == (2, 3)
    with pytest.raises(ModelError, match="SimpleNamespace has no part 'nope'"):
        WrappedModel(Wrapped(), logits="nope")(x, statistics="running")
    by_function = WrappedModel(Wrapped(), logits=lambda output: output.scores)
    assert by_function(x, statistics="running").shape == (2, 3)


@pytest.mark.parametrize(("output", "logits"), [("dict", "scores"), ("tuple", 1)])
def test_logits_of_a_model_that_returns_a_dict_or_a_tuple(output, logits):
    class Several(nn.Linear):
        def forward(self, x):
            scores = super().forward(x)
            return {"aux": x, "scores": scores} if output == "dict" else (x, scores)

    wrapped = WrappedModel(Several(4, 3), logits=logits)
    assert wrapped(torch.rand(2, 4), statistics="running").shape == (2, 3)
    with pytest.raises(ModelError, match=r"has no part .* for logits"):
        WrappedModel(Several(4, 3), logits=7)(torch.rand(2, 4), statistics="running")


def test_callers_train_does_not_make_serving_stochastic():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    wrapped, x = WrappedModel(model), torch.rand(2, 4)
    model.train()
    one, two = (wrapped(x, statistics="running") for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit, which users still have
def test_torchscript_is_refused():
    with pytest.raises(ModelError, match="takes no hooks"):
        WrappedModel(torch.jit.trace(nn.Linear(4, 3), torch.rand(1, 4)))


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 1), (1, 3), (3,)], ids=str)
def test_logits_must_be_rows_of_classes(shape):
    class Fixed(nn.Module):
        def forward(self, _):
            return torch.zeros(shape)

    with pytest.raises(ModelError, match=r"\(2, classes\) is needed"):
        WrappedModel(Fixed())(torch.rand(2, 4), statistics="running")


def test_any_error_of_a_fanned_forward_falls_back():
    class Asserts(RemembersBatchSize):
        def forward(self, x):
            hidden = self.site(x)
            assert len(hidden) == len(x), "rows were lost"
            return self.head(hidden)

    wrapped = WrappedModel(Asserts(), sites=["site"])
    with pytest.warns(FallbackWarning, match="rows were lost"):
        assert sampled(wrapped, torch.rand(4, 4)).shape == (3, 4, 3)


def test_backwards_counts_differentiated_passes_only():
    x = torch.rand(6, 3, 8, 8, generator=generator(0))
    deterministic = Session(toy_classifier(), n_queries=0, dropout=0, epochs=2)
    deterministic.step(x)
    assert deterministic.adapter.wrapped.counts.backwards == 12
    idle = Session(toy_classifier(), n_queries=0, beta=0)
    idle.step(x)
    assert idle.adapter.wrapped.counts.backwards == 0
    sampling = Session(toy_classifier(), n_queries=0, epochs=1)
    sampling.step(x)
    assert sampling.adapter.wrapped.counts.backwards == 24


def test_sites_that_never_run_are_named():
    model = toy_classifier()
    model.unused = nn.Linear(2, 2)
    with pytest.raises(ModelError, match="unused ran"):
        sampled(WrappedModel(model, sites=["unused"]), torch.rand(2, 3, 8, 8))


def test_plain_chain_of_layers_adapts():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    with Session(model, n_queries=2) as session:
        for query in session.predict(torch.rand(6, 3, 8, 8, generator=generator(0))).queries:
            session.answer(query.id, correct=True)
        assert session.learn().terms["feedback"].isfinite().all()
        assert session.adapter.wrapped.sites == ("2", "4")
        assert session.adapter.wrapped.can_fan_out is True


def test_model_with_group_norm_keeps_the_contiguous_layout_on_a_cpu():
    """torch's gradient of GroupNorm crashes with channels last if its input needs no gradient."""

    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3, padding=1).requires_grad_(False)
            self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))
            self.site, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

        def forward(self, x):
            x = nn.functional.group_norm(self.stem(x), 2, self.scale, self.shift)
            return self.head(self.site(x).mean((2, 3)))

    session = Session(Functional(), n_queries=0, sites=["site"])
    session.step(torch.rand(4, 3, 8, 8, generator=generator(0)))
    assert not session.execution.channels_last


def test_model_that_takes_views_keeps_the_contiguous_layout():
    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.site, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 64, 3)

        def forward(self, x):
            features = self.site(x)
            return self.head(features.view(len(features), -1))

    session = Session(Views(), n_queries=0, sites=["site"])
    session.step(torch.rand(4, 3, 8, 8, generator=generator(0)))
    assert not session.execution.channels_last
    assert session.model.site.weight.is_contiguous()


@pytest.mark.parametrize(
    ("convolution", "channels_last"),
    [
        (nn.Conv2d(4, 8, 1, stride=2), False),
        (nn.Conv2d(32, 32, 1, stride=2, groups=4), False),
        (nn.Conv2d(16, 8, 1, stride=2), True),
        (nn.Conv2d(4, 8, 1), True),
        (nn.Conv2d(4, 8, 3, stride=2), True),
    ],
)
def test_strided_convolution_of_few_channels_keeps_the_contiguous_layout(
    convolution, channels_last
):
    """oneDNN writes beyond its memory in the gradient of such 1 x 1 convolutions."""
    model = nn.Sequential(convolution, nn.Flatten(), nn.LazyLinear(3))
    model(torch.rand(2, convolution.in_channels, 8, 8))
    assert WrappedModel(model).execution.channels_last == channels_last


def test_channels_last_model_is_made_contiguous_if_needed():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 1, stride=2), nn.Flatten())
    model.to(memory_format=torch.channels_last)
    seen = []
    model[1].register_forward_pre_hook(lambda _, given: seen.append(given[0].is_contiguous()))
    wrapped = WrappedModel(model)
    wrapped(torch.rand(2, 8, 8, 3).permute(0, 3, 1, 2), statistics="running")
    assert seen == [True]
    assert model[0].weight.is_contiguous()
    wrapped.close()
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_model_that_changes_its_inputs_sees_them_once():
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 3)

        def forward(self, x):
            return self.head(x.sub_(0.5).mean((2, 3)))

    model, x = Writes(), torch.rand(4, 3, 8, 8, generator=generator(0))
    expected = (model.head((x - 0.5).mean((2, 3)))).softmax(-1)
    served = Session(model, "source").predict(x.clone()).probs
    assert torch.allclose(served, expected, atol=1e-6)


def test_half_precision_works_on_a_cpu_and_other_types_are_kept():
    x = torch.rand(4, 3, 8, 8, generator=generator(0))
    exact = Session(toy_classifier(), "bn_stats").predict(x).probs
    half = Session(toy_classifier(), "bn_stats", precision="bfloat16").predict(x).probs
    assert not torch.equal(exact, half)
    assert torch.allclose(exact, half, atol=0.03)
    double = Session(toy_classifier().double(), "bn_stats", precision="bfloat16")
    assert "own precision" in str(double.execution)
    assert torch.allclose(double.predict(x).probs.float(), exact, atol=1e-5)
