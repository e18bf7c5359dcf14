"""Tests of Source, BN-Stats and TENT."""

import torch

from bitta import Session
from bitta.nn import norm_parameters
from bitta.seeding import generator
from bitta.testing import toy_classifier


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def test_source_serves_the_unchanged_model():
    model = toy_classifier()
    with torch.no_grad():
        expected = model(images()).softmax(-1)
    session = Session(model, "source")
    first, second = (session.step(images())[0].probs for _ in range(2))
    assert torch.allclose(first, expected, atol=1e-6)
    assert torch.equal(first, second)


def test_bn_stats_equals_training_mode():
    model = toy_classifier()
    expected = toy_classifier().train()(images()).softmax(-1).detach()
    served = Session(model, "bn_stats").predict(images()).probs
    assert torch.allclose(served, expected, atol=1e-6)
    assert model.norm.running_mean.abs().max() == 0


def test_tent_trains_scale_and_shift_only_and_lowers_entropy():
    model = toy_classifier()
    trained = {id(parameter) for parameter in norm_parameters(model)}
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    session = Session(model, "tent", lr=0.01)
    losses = [session.step(images())[2].terms["entropy"].item() for _ in range(10)]
    assert losses[-1] < losses[0]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (id(parameter) not in trained)


def test_tent_asks_no_questions_by_default():
    assert Session(toy_classifier(), "tent").predict(images()).queries == ()
    asking = Session(toy_classifier(), "tent", n_queries=2)
    for query in asking.predict(images()).queries:
        asking.answer(query.id, correct=query.index % 2 == 0)
    assert "entropy" in asking.learn().terms


def test_tent_learns_from_answers():
    session = Session(toy_classifier(), "tent", n_queries=2, lr=0.01)
    right, wrong = session.predict(images()).queries
    session.answer(right.id, correct=True)
    session.answer(wrong.id, correct=False)
    assert session.learn().terms.keys() == {"correct", "incorrect", "entropy"}
