"""Tests of SoTTA: its memory and its running statistics."""

from collections import Counter

import pytest
import torch

from bitta import Session
from bitta.errors import SettingError
from bitta.memory import ConfidentMemory
from bitta.seeding import generator
from bitta.testing import check_method, toy_classifier

OPEN = {"confident": 0.0, "capacity": 6}


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def offer(memory, *labels, confidence=1.0, value=0.0):
    n = len(labels)
    memory.offer(torch.full((n, 1), value), torch.tensor(labels), torch.full((n,), confidence))


def memory_of(*labels, capacity=4, seed=0):
    memory = ConfidentMemory(capacity, min_confidence=0.9, key=(seed, "test"))
    offer(memory, *labels)
    return memory


def test_only_confident_samples_are_remembered():
    memory = memory_of()
    memory.offer(
        torch.arange(3.0).unsqueeze(1), torch.tensor([5, 6, 7]), torch.tensor([0.89, 0.9, 1.0])
    )
    assert memory.labels == [6, 7]
    assert memory.inputs.flatten().tolist() == [1, 2]


def test_sample_of_a_smaller_class_replaces_one_of_the_largest():
    memory = memory_of(0, 0, 0, 1)
    offer(memory, 1, value=9)
    assert Counter(memory.labels) == {0: 2, 1: 2}
    assert 9 in memory.inputs


def test_sample_of_a_largest_class_replaces_one_of_its_own():
    for seed in range(10):
        memory = memory_of(0, 0, 1, 1, seed=seed)
        offer(memory, 0, value=9)
        assert Counter(memory.labels) == {0: 2, 1: 2}
        assert memory.labels[memory.inputs.flatten().tolist().index(9)] == 0


def test_new_class_replaces_a_sample_of_any_largest_class():
    left = Counter()
    for seed in range(20):
        memory = memory_of(0, 0, 1, 1, seed=seed)
        offer(memory, 2)
        assert memory.labels.count(2) == 1
        left[0 if memory.labels.count(0) == 1 else 1] += 1
    assert left[0] > 3
    assert left[1] > 3


def test_loaded_memory_continues_like_the_saved_one():
    memory = memory_of(0, 1, 2, 3)
    other = ConfidentMemory(4, min_confidence=0.9, key=(0, "test"))
    other.load_state_dict(memory.state_dict(), device=torch.device("cpu"))
    for number in range(10):
        for each in (memory, other):
            offer(each, number % 3, value=number)
    assert memory.labels == other.labels
    assert torch.equal(memory.inputs, other.inputs)


def stem_mean(model, x):
    """Return the input mean of the first BatchNorm layer, which training does not change."""
    with torch.no_grad():
        return model.stem(x).mean((0, 2, 3))


@pytest.mark.parametrize("n_queries", [0, 2])
def test_running_statistics_follow_the_memory_by_a_fifth_in_both_passes(n_queries):
    """0, then .2 m, then .8 (.2 m) + .2 m = .36 m. Answered samples do not change them."""
    model = toy_classifier()
    session = Session(model, "sotta", confident=0.0, n_queries=n_queries, dropout=0.0)
    for query in session.predict(images()).queries:
        session.answer(query.id, correct=True)
    kept = session._unlabelled
    assert len(kept) == 8 - n_queries
    terms = session.learn().terms
    assert ("correct" in terms) == bool(n_queries)
    assert torch.allclose(model.norm.running_mean, 0.36 * stem_mean(model, kept), atol=1e-6)


def test_serving_uses_running_statistics_and_changes_nothing():
    model = toy_classifier()
    with torch.no_grad():
        expected = model(images()).softmax(-1)
    assert torch.allclose(Session(model, "sotta").predict(images()).probs, expected, atol=1e-6)
    assert not model.norm.running_mean.any()


def test_no_update_without_confident_samples_and_answers():
    model = toy_classifier()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    session = Session(model, "sotta", confident=1.0, weight_decay=0.5)
    assert not session.step(images())[2].terms
    assert all(map(torch.equal, before, model.state_dict().values()))


def test_answers_are_learned_from_without_a_confident_sample():
    model = toy_classifier()
    session = Session(model, "sotta", confident=1.0, n_queries=1)
    session.answer(session.predict(images()).queries[0].id, correct=False)
    assert session.learn().terms.keys() == {"incorrect"}
    assert not model.norm.running_mean.any()


def test_memory_is_learned_from_without_new_confident_samples():
    session = Session(toy_classifier(), "sotta", **OPEN)
    session.step(images())
    session.adapter.confident.min_confidence = 1.0
    remembered = session.adapter.confident.inputs.clone()
    assert "entropy" in session.step(images(1))[2].terms
    assert torch.equal(session.adapter.confident.inputs, remembered)


def test_entropy_of_the_memory_falls():
    session = Session(toy_classifier(), "sotta", confident=0.0, capacity=8, lr=0.01)
    losses = [session.step(images())[2].terms["entropy"].item() for _ in range(10)]
    assert losses[-1] < losses[0]


@pytest.mark.full
def test_contract_holds_with_a_full_memory():
    check_method("sotta", **OPEN)


def test_micro_batches_are_refused_with_batch_norm():
    with pytest.raises(SettingError, match="micro_batch is 2; allowed: 0 for SoTTA"):
        Session(toy_classifier(), "sotta", micro_batch=2)
    whole, parts = (
        Session(toy_classifier("layer"), "sotta", confident=0.0, micro_batch=size)
        for size in (0, 3)
    )
    one, two = (session.step(images())[2].terms["entropy"] for session in (whole, parts))
    assert torch.allclose(one, two, atol=1e-6)


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [("confident", 1.1, "0 to 1"), ("capacity", 0, "1 or more"), ("rho", -1.0, "0 or more"),
     ("bn_momentum", 2.0, "0 to 1")],
)  # fmt: skip
def test_bad_settings_are_refused_with_the_allowed_values(setting, value, allowed):
    with pytest.raises(SettingError, match=f"{setting} is .*{allowed}"):
        Session(toy_classifier(), "sotta", **{setting: value})
