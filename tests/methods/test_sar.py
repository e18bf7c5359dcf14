"""Tests of SAR: two passes, top layers, recovery."""

from contextlib import suppress
from math import log

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import SettingError
from bitta.losses import entropy
from bitta.models import build_model
from bitta.nn import norm_parameters, norm_parameters_below_top, sam_ascent
from bitta.testing import toy_classifier

PIXELS = {"n_classes": 10, "mean": (0.5,) * 3, "std": (0.2,) * 3}
SURE, UNSURE = (0.9999, 0.0001), (0.5, 0.5)


class Affine(nn.LayerNorm):
    """Model of scale and shift only. The softmax of log-probabilities returns the probabilities."""

    def forward(self, x):
        return x * self.weight + self.bias


class Block(nn.Module):
    """Block of a transformer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.dense = nn.Linear(4, 4)


def rows(*probs):
    return torch.tensor(probs).log()


def H(probs):
    return -sum(p * log(p) for p in probs)


def leaf(value, gradient):
    parameter = nn.Parameter(torch.tensor([value]))
    parameter.grad = torch.tensor([gradient])
    return parameter


def test_sam_ascent_uses_one_norm_and_restores_exactly():
    one, two = leaf(0.1, 3.0), leaf(0.7, 4.0)  # a gradient of length 5
    with sam_ascent([one, two], rho=0.5):
        assert one.item() == pytest.approx(0.1 + 0.3)
        assert two.item() == pytest.approx(0.7 + 0.4)
    assert torch.equal(one.detach(), torch.tensor([0.1]))
    assert torch.equal(two.detach(), torch.tensor([0.7]))


def test_sam_ascent_restores_after_an_error():
    parameter = leaf(0.1, 3.0)
    with suppress(ArithmeticError), sam_ascent([parameter], rho=0.5):
        raise ArithmeticError
    assert torch.equal(parameter.detach(), torch.tensor([0.1]))


def test_sam_ascent_does_not_move_without_gradient():
    flat, unused = leaf(0.1, 0.0), nn.Parameter(torch.ones(1))
    with sam_ascent([flat, unused], rho=0.5):
        assert flat.item() == pytest.approx(0.1)
        assert unused.item() == 1


def names_below(model):
    chosen = {id(parameter) for parameter in norm_parameters_below_top(model)}
    return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}


def norms_of(model):
    every = {id(parameter) for parameter in norm_parameters(model)}
    return {name for name, parameter in model.named_parameters() if id(parameter) in every}


@pytest.mark.parametrize(
    ("architecture", "top"), [("resnet8", "layer3"), ("resnet20", "layer3"), ("resnet18", "layer4")]
)
def test_top_of_a_residual_network_is_its_last_stage(architecture, top):
    model = build_model(architecture, **PIXELS)
    expected = {name for name in norms_of(model) if not name.startswith(top)}
    assert names_below(model) == expected
    assert expected < norms_of(model)


def test_top_of_a_transformer_is_its_last_quarter_and_final_norm():
    model = nn.Module()
    model.blocks = nn.Sequential(*(Block() for _ in range(12)))
    model.norm = nn.LayerNorm(4)
    below = [f"blocks.{place}.norm" for place in range(9)]
    assert names_below(model) == {f"{name}.{part}" for name in below for part in ("weight", "bias")}


def test_without_stages_all_normalisation_layers_are_below_the_top():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
                          nn.BatchNorm2d(4), nn.ReLU())  # fmt: skip
    for model in (plain, Affine(2)):
        assert names_below(model) == norms_of(model)


def test_top_is_not_trained():
    model = toy_classifier()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    options = {"lr": 0.1, "recover_below": 0.0, "entropy_margin": 2.0}
    Session(model, "sar", **options).step(torch.rand(6, 3, 8, 8))
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved <= {"norm.weight", "norm.bias", "stage1.0.norm.weight", "stage1.0.norm.bias"}
    assert "norm.weight" in moved


def test_without_reliable_samples_momentum_still_updates():
    model = Affine(2)
    session = Session(model, "sar", lr=0.1, momentum=0.9, recover_below=0.0)
    session.step(rows((0.95, 0.05)))
    first = model.bias.detach().clone()
    assert first.abs().max() > 0
    # p is close to 1/2, because scale and shift are nearly equal for both classes.
    loss = session.step(rows((0.5, 0.5)))[2].terms["entropy"].item()
    assert loss == 0
    assert torch.allclose(model.bias.detach(), first + 0.9 * first, atol=1e-6)


def test_loss_is_the_mean_over_reliable_samples():
    session = Session(Affine(2), "sar", lr=1e-9, rho=0.0)
    session.step(rows((0.99, 0.01), (0.9, 0.1)))
    assert H((0.9, 0.1)) > 0.4 * log(2) > H((0.99, 0.01))
    assert session.adapter.average == pytest.approx(H((0.99, 0.01)), abs=1e-5)


def test_samples_unreliable_in_the_first_pass_are_excluded_from_the_second():
    """The ascent of the reliable row goes towards the class of the other row, which gets surer."""
    x, rho = rows((0.99, 0.01), (0.08, 0.92)), 0.2
    model = Affine(2)
    first = entropy(model(x))
    slope = torch.autograd.grad(first[0], [model.weight, model.bias])
    step = [rho * gradient / torch.cat(slope).norm() for gradient in slope]
    second = entropy(x * (1 + step[0]) + step[1])
    margin = 0.4 * log(2)
    assert first[0] < margin < first[1]
    assert second[0] < margin
    assert second[1] < margin
    session = Session(model, "sar", lr=1e-9, rho=rho)
    session.step(x)
    assert session.adapter.average == pytest.approx(second[0].item(), abs=1e-5)


def test_second_loss_is_computed_at_the_ascended_weights():
    """H = .056 for p = (.99, .01). At the ascended weights it is higher."""
    flat = Session(Affine(2), "sar", lr=1e-9, rho=0.0)
    steep = Session(Affine(2), "sar", lr=1e-9, rho=0.1)
    one, two = (s.step(rows((0.99, 0.01)))[2].terms["entropy"].item() for s in (flat, steep))
    assert one == pytest.approx(H((0.99, 0.01)), abs=1e-5)
    assert two > one + 1e-3


def test_average_moves_by_a_tenth_and_skips_batches_without_reliable_samples():
    session = Session(Affine(2), "sar", lr=1e-9, rho=0.0, recover_below=0.0)
    first, second = (0.99, 0.01), (0.999, 0.001)
    for probs in (first, UNSURE, second):
        session.step(rows(probs))
    assert session.adapter.average == pytest.approx(0.9 * H(first) + 0.1 * H(second), abs=1e-5)


def learned_with_an_answer(*, correct=True, logits=None, **settings):
    model = Affine(2)
    session = Session(model, "sar", n_queries=1, lr=0.1, dropout=0.0, **settings)
    query = session.predict(rows(SURE, SURE, SURE) if logits is None else logits).queries[0]
    session.answer(query.id, correct=correct)
    assert session.learn().terms.keys() == {"entropy", "correct" if correct else "incorrect"}
    moved = not (torch.equal(model.weight, torch.ones(2)) and not model.bias.any())
    return session, moved


@pytest.mark.parametrize("correct", [True, False])
def test_recovery_triggers_with_feedback_and_keeps_momentum_and_average(correct):
    session, moved = learned_with_an_answer(correct=correct)
    assert not moved
    # The average leaves out the loss of the answer: -log(1 - .9999) = 9.2 if incorrect.
    assert 0 < session.adapter.average < 0.01
    assert any(slot["momentum_buffer"].any() for slot in session.adapter.optimiser.state.values())


def test_one_correct_answer_disables_recovery_of_the_published_code():
    session, moved = learned_with_an_answer(preset="reference")
    assert moved
    # A correct sample's loss is at least ln(e + C - 1) - 1, here ln(e + 1) - 1 = .313.
    assert session.adapter.average > 0.31


def test_recovery_can_be_switched_off():
    assert learned_with_an_answer(recover_below=0.0)[1]
    # -p log(p + 1e-6) is below 0 for p = 1.
    certain = torch.tensor([[50.0, -50.0]] * 3)
    settings = {"recover_below": 0.0, "entropy_eps": 1e-6, "correct": False}
    session, moved = learned_with_an_answer(logits=certain, **settings)
    assert session.adapter.average < 0
    assert moved


def test_moving_average_is_saved_and_reset(tmp_path):
    session = Session(Affine(2), "sar", lr=1e-9)
    session.step(rows((0.99, 0.01)))
    session.save(tmp_path / "session.safetensors")
    loaded = Session.load(tmp_path / "session.safetensors", Affine(2))
    assert loaded.adapter.average == session.adapter.average
    session.reset()
    assert session.adapter.average is None


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [("rho", -1.0, "0 or more"), ("recover_below", -0.1, "0 or more"),
     ("recovery_watches", "truth", "'entropy', 'loss'"), ("entropy_margin", 0.0, "above 0")],
)  # fmt: skip
def test_bad_settings_are_refused_with_the_allowed_values(setting, value, allowed):
    with pytest.raises(SettingError, match=f"{setting} is .*{allowed}"):
        Session(Affine(2), "sar", **{setting: value})
