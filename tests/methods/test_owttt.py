"""Tests of OWTTT."""

import math

import pytest
import torch
import torch.nn.functional as F

from bitta import Session
from bitta.errors import InputError, ModelError, SettingError
from bitta.methods.owttt import Gaussian, otsu_threshold, symmetric_divergence
from bitta.nn import WrappedModel
from bitta.seeding import generator
from bitta.source_statistics import SourceStatistics
from bitta.testing import toy_classifier, toy_statistics


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def gaussian(mean, covariance):
    return Gaussian(torch.tensor(mean, dtype=torch.double), torch.tensor(covariance).double())


@pytest.fixture
def statistics(tmp_path):
    return toy_statistics("batch", tmp_path)


def test_otsu_threshold_splits_near_from_far_scores():
    """Every threshold from .13 to .50 separates {.105, .125} from {.505}. The first is .13.

    A lower one puts .125 into the far group: spread (.19² + .19²)/3 instead of (.01² + .01²)/3.
    """
    assert otsu_threshold(torch.tensor([0.105, 0.505, 0.125])).item() == pytest.approx(0.13)


def test_otsu_threshold_is_infinite_if_nothing_splits_the_scores():
    assert otsu_threshold(torch.tensor([0.301, 0.302])).item() == math.inf
    assert otsu_threshold(torch.tensor([0.3])).item() == math.inf


def test_symmetric_divergence_equals_the_textbook_formula():
    """Covariances diag(30, 30) and diag(10, 30), means (3, 0) and 0; 1 is added to each variance.

    ½ [31/11 + 1 + 11/31 + 1 + 9 (1/31 + 1/11)] - 2.
    """
    one = gaussian([3.0, 0.0], [[30.0, 0.0], [0.0, 30.0]])
    other = gaussian([0.0, 0.0], [[10.0, 0.0], [0.0, 30.0]])
    expected = (31 / 11 + 1 + 11 / 31 + 1 + 9 * (1 / 31 + 1 / 11)) / 2 - 2
    assert symmetric_divergence(one, other).item() == pytest.approx(expected, rel=1e-12)
    assert symmetric_divergence(one, one).item() == pytest.approx(0.0, abs=1e-12)


def test_symmetric_divergence_equals_both_divergences_of_torch():
    random_key = generator(3)
    roots = [torch.randn(4, 4, generator=random_key).double() for _ in range(2)]
    one, other = (Gaussian(root[0], root @ root.T) for root in roots)
    widening = one.covariance.amax() / 30 * torch.eye(4).double()
    normal = torch.distributions.MultivariateNormal
    both = [normal(g.mean, g.covariance + widening) for g in (one, other)]
    expected = torch.distributions.kl_divergence(*both) + torch.distributions.kl_divergence(
        *reversed(both)
    )
    assert torch.allclose(symmetric_divergence(one, other), expected)


def test_first_features_of_the_stream_give_exact_moments():
    """Two batches give the mean and the covariance (over n) of all five features."""
    features = torch.randn(5, 3, generator=generator(4)).double()
    found = gaussian([0.0] * 3, [[0.0] * 3] * 3).update_with(features[:2], horizon=100)
    found = found.update_with(features[2:], horizon=100)
    assert torch.allclose(found.mean, features.mean(0))
    assert torch.allclose(found.covariance, features.T.cov(correction=0))
    assert found.n == 5


def test_later_features_have_the_weight_of_the_horizon():
    """After 8 features the mean is 0, the variance 1. Then come two features 2, horizon 4.

    The mean is 0 + (2 + 2)/4 = 1, the variance 1 + (4 + 4 - 2)/4 - 1² = 1.5.
    """
    found = Gaussian(torch.zeros(1).double(), torch.ones(1, 1).double(), 8)
    found = found.update_with(torch.full((2, 1), 2.0).double(), horizon=4)
    assert (found.mean.item(), found.covariance.item()) == pytest.approx((1.0, 1.5))


def test_batch_above_the_horizon_keeps_a_valid_covariance():
    found = gaussian([0.0], [[1.0]]).update_with(
        torch.randn(9, 1, generator=generator(1)).double(), horizon=2
    )
    assert found.covariance.item() > 0


def test_logits_are_cosines_to_the_source_prototypes(statistics):
    model = toy_classifier()
    wrapped = WrappedModel(model)
    with torch.no_grad():
        features, _ = wrapped.features(images(), statistics="running")
    wrapped.close()
    prototypes = SourceStatistics.load(statistics).prototypes
    cosines = F.cosine_similarity(features.unsqueeze(1), prototypes, dim=-1)
    with Session(model, "owttt", source_statistics=statistics, delta=0.5) as session:
        served = session.predict(images())
    assert torch.allclose(served.probs, (cosines / 0.5).softmax(-1), atol=1e-6)


def test_both_terms_equal_the_formulas_of_the_paper(statistics):
    """Compare the losses of the first batch, in which all samples are near.

    The divergence uses the mean and covariance of this batch alone. The cross-entropy uses the four
    of eight samples with the largest cosine.
    """
    known = SourceStatistics.load(statistics)
    wrapped = WrappedModel(toy_classifier())
    with torch.no_grad():
        batch, _ = wrapped.features(images(), statistics="batch", momentum=0.1)
        features, _ = wrapped.features(images(), statistics="running")
    logits = F.cosine_similarity(features.unsqueeze(1), known.prototypes, dim=-1) / 0.1
    surest = logits.amax(-1).topk(4).indices
    there = Gaussian(known.mean.double(), known.covariance.double())
    here = Gaussian(batch.mean(0).double(), batch.T.cov(correction=0).double())
    with Session(toy_classifier(), "owttt", source_statistics=statistics) as session:
        session.predict(images())
        session.adapter._queue = torch.tensor([0.99] * 400)  # far scores, so all samples are near
        losses = session.learn().mean()
    assert losses["alignment"] == pytest.approx(
        0.05 * symmetric_divergence(there, here).item(), rel=1e-3
    )
    expected = 0.1 * F.cross_entropy(logits[surest], logits[surest].argmax(-1)).item()
    assert losses["prototypes"] == pytest.approx(expected, rel=1e-3)


def test_samples_far_from_every_prototype_are_excluded(statistics):
    with Session(toy_classifier(), "owttt", source_statistics=statistics) as session:
        adapter = session.adapter
        with torch.no_grad():
            scores = adapter._scores(adapter.logits(images(n=32)))
        near = scores <= otsu_threshold(scores)
        assert 0 < near.sum() < 32
        session.step(images(n=32))
        assert adapter._stream.n == near.sum()


def test_all_layers_but_the_last_are_trained_and_statistics_follow(statistics):
    model = toy_classifier()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with Session(model, "owttt", source_statistics=statistics, n_queries=2) as session:
        for query in session.predict(images()).queries:
            session.answer(query.id, correct=True)
        assert session.learn().terms.keys() == {"alignment", "prototypes", "correct"}
    same = {n for n, t in model.state_dict().items() if torch.equal(t, before[n])}
    assert {name for name in same if "num_batches" not in name} == {"head.weight", "head.bias"}


def test_missing_or_unfitting_source_statistics_are_refused(tmp_path, statistics):
    with pytest.raises(SettingError, match=r'OWTTT needs .* make them with "bitta statistics"'):
        Session(toy_classifier(), "owttt")
    with pytest.raises(InputError, match="there is no file"):
        Session(toy_classifier(), "owttt", source_statistics=str(tmp_path / "none"))
    with pytest.raises(ModelError, match="has no such last layer"):
        Session(toy_classifier(width=16), "owttt", source_statistics=statistics)
    with (
        Session(toy_classifier(seed=1), "owttt", source_statistics=statistics) as session,
        pytest.raises(ModelError, match="holds statistics of a model with weights"),
    ):
        session.predict(images())


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"queue": 0}, {"da_scale": -1.0}], ids=str)
def test_settings_out_of_range_are_refused(wrong, statistics):
    with pytest.raises(SettingError, match="allowed"):
        Session(toy_classifier(), "owttt", source_statistics=statistics, **wrong)
