"""Tests of the loss functions."""

import math

import pytest
import torch

from bitta.losses import complementary_loss, entropy, policy_loss


def test_entropy_of_a_fair_coin_is_ln_2():
    assert entropy(torch.zeros(1, 2)).item() == pytest.approx(math.log(2))


def test_entropy_with_eps_inside_the_logarithm():
    expected = -2 * 0.5 * math.log(0.5 + 1e-2)
    assert entropy(torch.zeros(1, 2), eps=1e-2).item() == pytest.approx(expected)


def test_policy_loss_is_minus_log_pi():
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    expected = (-math.log(0.75) - math.log(0.5)) / 2
    loss = policy_loss(probs, torch.tensor([1, 0]), second_softmax=False)
    assert loss.item() == pytest.approx(expected)


def test_second_softmax_bounds_the_loss_to_one_nat():
    """At the corners with ten classes: ln(e + 9) - 1 and ln(e + 9)."""
    corner = torch.eye(10)[:1]
    low = policy_loss(corner, torch.tensor([0]), second_softmax=True).item()
    high = policy_loss(corner, torch.tensor([1]), second_softmax=True).item()
    assert low == pytest.approx(math.log(math.e + 9) - 1, abs=1e-6)
    assert high == pytest.approx(math.log(math.e + 9), abs=1e-6)


def test_policy_loss_of_an_impossible_label_is_finite():
    probs = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = policy_loss(probs, torch.tensor([1]), second_softmax=False)
    loss.backward()
    assert math.isfinite(loss.item())
    assert probs.grad.isfinite().all()


def test_complementary_loss_is_minus_log_of_the_rest():
    """With three equal classes the rest is 1 - 1/3."""
    loss = complementary_loss(torch.zeros(1, 3), torch.tensor([2]))
    assert loss.item() == pytest.approx(-math.log(2 / 3))


def test_complementary_loss_is_finite_at_full_confidence():
    logits = torch.tensor([[100.0, 0.0]], requires_grad=True)
    loss = complementary_loss(logits, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(100)
    assert logits.grad.isfinite().all()


def test_complementary_loss_with_eps_is_bounded_without_gradient_at_full_confidence():
    """Two equal classes with eps .5 give -log(1/2 + 1/2). At full confidence -log(1e-6) remains."""
    equal = complementary_loss(torch.zeros(1, 2), torch.tensor([0]), eps=0.5)
    assert equal.item() == pytest.approx(0, abs=1e-6)
    logits = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = complementary_loss(logits, torch.tensor([0]), eps=1e-6)
    loss.backward()
    assert loss.item() == pytest.approx(6 * math.log(10))
    assert torch.equal(logits.grad, torch.zeros(1, 2))
