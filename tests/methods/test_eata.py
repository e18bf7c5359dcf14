"""Tests of ETA's filter and EATA's penalty, on a model whose logits are its inputs."""

from math import exp, log

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import InputError, ModelError, SettingError
from bitta.nn import weight_hash
from bitta.source_statistics import SourceStatistics
from bitta.testing import check_method

STILL = {"lr": 1e-9, "dropout": 0.0}
EVERYTHING = {"entropy_margin": 2.0, "similarity": 1.01, "dropout": 0.0}
E0 = 0.4 * log(2)
SURE, OTHER, UNSURE = (0.99, 0.01), (0.02, 0.98), (0.6, 0.4)


class Affine(nn.LayerNorm):
    """Model of scale and shift only. The softmax of log-probabilities returns the probabilities."""

    def forward(self, x):
        return x * self.weight + self.bias


def rows(*probs):
    return torch.tensor(probs).log()


def H(probs):
    return -sum(p * log(p) for p in probs)


def weighted(probs):
    return exp(E0 - H(probs)) * H(probs)


def test_certain_samples_have_higher_weights():
    session = Session(Affine(2), "eta", **STILL)
    loss = session.step(rows(SURE, OTHER, UNSURE))[2].terms["entropy"].item()
    assert loss == pytest.approx((weighted(SURE) + weighted(OTHER)) / 2, abs=1e-5)
    assert session.adapter.mean_probs.tolist() == pytest.approx([0.505, 0.495], abs=1e-5)


def test_samples_near_the_moving_mean_are_redundant():
    session = Session(Affine(2), "eta", **STILL)
    session.step(rows(SURE))  # m = (.99, .01)
    loss = session.step(rows(SURE, OTHER))[2].terms["entropy"].item()  # cosines 1 and .03
    assert loss == pytest.approx(weighted(OTHER), abs=1e-5)
    # .9 (.99, .01) + .1 (.02, .98)
    assert session.adapter.mean_probs.tolist() == pytest.approx([0.893, 0.107], abs=1e-5)


def test_moving_mean_starts_with_the_first_reliable_sample():
    session = Session(Affine(2), "eta", **STILL)
    assert not session.step(rows(UNSURE))[2].terms
    assert session.adapter.mean_probs is None
    assert session.step(rows(SURE))[2].terms
    session.reset()
    assert session.adapter.mean_probs is None


def test_no_update_without_selected_samples_despite_momentum():
    model = Affine(2)
    session = Session(model, "eta", lr=0.01, weight_decay=0.1)
    session.step(rows(SURE))
    before = model.weight.clone()
    assert not session.step(rows(SURE, UNSURE))[2].terms
    assert torch.equal(model.weight, before)


def test_answers_are_learned_from_without_selected_samples():
    model = Affine(2)
    session = Session(model, "eta", n_queries=1, lr=0.01, dropout=0.0)
    query = session.predict(rows(UNSURE, UNSURE)).queries[0]
    session.answer(query.id, correct=True)
    before = model.bias.clone()
    assert session.learn().terms.keys() == {"correct"}
    assert not torch.equal(model.bias, before)


def test_fisher_information_is_the_mean_square_of_batch_gradients_at_the_source():
    """The gradient of CE(f, argmax f) with respect to the shift is p - onehot: ∓.2, then ∓.4.

    So F = (.04 + .16) / 2 = .1, although the weights have changed between the batches.
    """
    model = Affine(2)
    session = Session(model, "eata", fisher_samples=2, lr=0.5, **EVERYTHING)
    penalty = session.adapter.penalty
    first = session.step(rows((0.8, 0.2)))[2]
    assert "fisher" not in first.terms
    assert model.bias.abs().max() > 0.01
    assert penalty.partial is not None
    session.step(rows((0.6, 0.4)))
    assert penalty.fisher["bias"].tolist() == pytest.approx([0.1, 0.1], abs=1e-6)
    assert penalty.partial is None


def test_penalty_is_the_weighted_squared_distance_from_the_source():
    model = Affine(2)
    options = {"fisher_samples": 1, "fisher_weight": 3.0, "lr": 0.5, **EVERYTHING}
    session = Session(model, "eata", **options)
    session.step(rows((0.8, 0.2)))
    fisher = session.adapter.penalty.fisher
    way = {"weight": model.weight.detach() - 1, "bias": model.bias.detach().clone()}
    expected = 3 * sum((fisher[name] * way[name] ** 2).sum().item() for name in way)
    penalty = session.step(rows((0.8, 0.2)))[2].terms["fisher"].item()
    assert expected > 1e-4
    assert penalty == pytest.approx(expected, rel=1e-5)


def test_fisher_information_stops_at_its_sample_limit():
    session = Session(Affine(2), "eata", fisher_samples=3, **STILL)
    session.step(rows((0.8, 0.2), (0.8, 0.2)))  # g = .2
    session.step(rows((0.6, 0.4), (0.9, 0.1)))  # the first row alone: g = .4
    assert session.adapter.penalty.fisher["bias"].tolist() == pytest.approx([0.1, 0.1], abs=1e-6)


def test_fisher_weight_zero_equals_eta():
    ends = []
    for method, settings in (("eta", {}), ("eata", {"fisher_weight": 0.0})):
        model = Affine(2)
        session = Session(model, method, lr=0.1, **EVERYTHING, **settings)
        for _ in range(3):
            session.step(rows((0.8, 0.2), (0.3, 0.7)))
        ends.append(torch.cat([model.weight, model.bias]))
    assert torch.equal(*ends)


def statistics(path, fisher, *, model=None):
    zero, weights = torch.zeros(2), weight_hash(model or Affine(2))
    made = SourceStatistics(
        prototypes=zero, mean=zero, covariance=zero, fisher=fisher, n=1, weights=weights
    )
    made.save(path)
    return str(path)


def test_fisher_information_from_a_file_acts_from_the_second_step(tmp_path):
    fisher = {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor([3.0, 4.0])}
    path = statistics(tmp_path / "source.safetensors", fisher)
    session = Session(Affine(2), "eata", source_statistics=path, lr=0.1, **EVERYTHING)
    assert session.step(rows((0.8, 0.2)))[2].terms["fisher"].item() == 0  # nothing has moved
    assert session.step(rows((0.8, 0.2)))[2].terms["fisher"].item() > 0
    session.save(tmp_path / "session.safetensors")
    session.reset()
    for again in (session, Session.load(tmp_path / "session.safetensors", Affine(2))):
        assert torch.equal(again.adapter.penalty.fisher["bias"], fisher["bias"])


@pytest.mark.parametrize(
    "fisher",
    [{"weight": torch.ones(2)}, {"weight": torch.ones(2), "bias": torch.ones(3)}],
    ids=["missing", "another shape"],
)
def test_fisher_information_of_another_model_is_refused(tmp_path, fisher):
    path = statistics(tmp_path / "source.safetensors", fisher)
    with pytest.raises(InputError, match=r"no Fisher information for 'bias' of shape \(2,\)"):
        Session(Affine(2), "eata", source_statistics=path)


def test_fisher_information_of_other_weights_is_refused_at_the_first_step(tmp_path):
    other = Affine(2)
    torch.nn.init.constant_(other.bias, 0.5)
    fisher = {"weight": torch.ones(2), "bias": torch.ones(2)}
    path = statistics(tmp_path / "source.safetensors", fisher, model=other)
    session = Session(Affine(2), "eata", source_statistics=path)
    with pytest.raises(ModelError, match="holds statistics of a model with weights"):
        session.step(rows((0.8, 0.2)))


@pytest.mark.full
def test_contract_holds_if_the_fisher_information_becomes_complete():
    check_method("eata", norms=["batch", "layer"], fisher_samples=14, **EVERYTHING)


def test_paper_preset_has_the_values_of_the_paper():
    config = Session(Affine(2), "eata", preset="paper").adapter.config
    assert (config.lr, config.similarity, config.fisher_weight) == (1e-3, 0.5, 2000)


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [("similarity", -1.0, "0 or more"), ("entropy_margin", 0.0, "above 0"),
     ("momentum", 1.0, "below 1"), ("moving_average", 2.0, "0 to 1"),
     ("fisher_samples", 0, "1 or more"), ("fisher_weight", -1.0, "0 or more")],
)  # fmt: skip
def test_bad_settings_are_refused_with_the_allowed_values(setting, value, allowed):
    with pytest.raises(SettingError, match=f"{setting} is .*{allowed}"):
        Session(Affine(2), "eata", **{setting: value})
