"""Tests of BiTTA."""

import math

import pytest
import torch

from bitta import Session
from bitta.errors import SettingError
from bitta.memory import MixedBatch
from bitta.methods.bitta import augmented_passes, perturbed_passes
from bitta.nn import SamplingSettings, WrappedModel
from bitta.seeding import RandomKey, generator
from bitta.testing import toy_classifier

STILL = {"momentum": 0.0, "weight_decay": 0.0, "epochs": 1, "dropout": 0.0, "lr": 0.05}


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


@pytest.mark.parametrize(("correct", "direction"), [(True, 1), (False, -1)])
def test_answer_moves_the_probability_of_the_served_label(correct, direction):
    session = Session(toy_classifier(), n_queries=1, beta=0.0, **STILL)
    query = session.predict(images()).queries[0]
    session.answer(query.id, correct=correct)
    rest = session._unlabelled
    mixed = torch.cat([query.input.unsqueeze(0), rest])

    def judged():
        """Return the probability of the judged label, with the statistics of an update."""
        return session.adapter.policy(mixed)[0, query.shown_label].item()

    before = judged()
    session.learn()
    assert (judged() - before) * direction > 0


def test_settings_have_the_defaults_of_the_method():
    only_answers = Session(toy_classifier(), n_queries=2, beta=0.0)
    only_agreement = Session(toy_classifier(), n_queries=2, alpha=0.0)
    for session, terms in ((only_answers, {"feedback"}), (only_agreement, {"agreement"})):
        for query in session.predict(images()).queries:
            session.answer(query.id, correct=True)
        assert session.learn().terms.keys() == terms


def test_no_update_without_answers_and_agreement():
    session = Session(toy_classifier(), n_queries=0, beta=0.0, weight_decay=0.5)
    before = [parameter.clone() for parameter in session.model.parameters()]
    session.step(images())
    assert all(map(torch.equal, before, session.model.parameters()))


def test_restore_rate_one_gives_the_source_weights():
    model = toy_classifier()
    session = Session(model, n_queries=2, restore=1.0, lr=0.1)
    session.step(images())
    for one, two in zip(model.parameters(), toy_classifier().parameters(), strict=True):
        assert torch.equal(one, two)


def test_restore_rate_half_mixes_source_and_adapted_weights():
    model, source = toy_classifier(width=32), toy_classifier(width=32)
    Session(model, n_queries=0, restore=0.5, lr=0.1).step(images())
    same = torch.cat(
        [(a == b).flatten() for a, b in zip(model.parameters(), source.parameters(), strict=True)]
    )
    assert 0.4 < same.float().mean().item() < 0.6


def test_served_label_is_the_judged_label_by_default():
    session = Session(toy_classifier(), n_queries=8)
    for number in range(3):
        prediction = session.predict(images(number) * (1 + number))
        assert all(
            query.shown_label == prediction.labels[query.index] for query in prediction.queries
        )
        session.learn()


@pytest.mark.parametrize(
    ("order", "moved_when_serving"),
    [("before_serving", True), ("before_asking", False), ("after_asking", False)],
)
def test_statistics_are_observed_at_the_time_of_the_setting(order, moved_when_serving):
    session = Session(toy_classifier(), n_queries=1, observes=order)
    source = Session(toy_classifier(), "source")
    x = images() * 3
    served = session.predict(x).probs
    assert torch.equal(served, source.predict(x).probs) != moved_when_serving
    assert session.model.norm.running_mean.abs().max() > 0  # observed when predict returns


def test_presets_change_their_settings():
    adapter = Session(toy_classifier(), preset="paper").adapter
    assert adapter.policy_statistics == "running"
    assert adapter.observes == "after_asking"
    assert not adapter.config.second_softmax
    assert Session(toy_classifier(), preset="reference").adapter.observes == "before_asking"


def test_presets_for_larger_sets_have_the_values_of_the_paper():
    tiny = Session(toy_classifier(), preset="tiny").adapter.config
    assert (tiny.lr, tiny.epochs, tiny.dropout, tiny.restore) == (5e-5, 5, 0.1, 0.01)
    large = Session(toy_classifier(), preset="large").adapter.config
    assert (large.selection, large.dropout) == ("random", 0.1)
    assert tiny.weight_decay == large.weight_decay == 0


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({}, [1, 2]),
        ({"agreement": "threshold"}, [0]),
        ({"agreement": "threshold", "threshold": 0.79}, [0, 1, 2]),
        ({"agreement": "threshold", "threshold": 0.99}, []),
    ],
    ids=str,
)
def test_threshold_selects_rows_by_deterministic_confidence(settings, rows):
    """π disagrees in row 0; the deterministic confidence is .95, .9 (not above .9) and .8.

    -log softmax(π) of the deterministic label: ln(1 + e^.2), ln(1 + e^-.4), ln(1 + e^-.6).
    """
    plain = torch.tensor([[0.95, 0.05], [0.9, 0.1], [0.2, 0.8]])
    sampled = torch.tensor([[0.4, 0.6], [0.7, 0.3], [0.2, 0.8]])
    none = torch.tensor([], dtype=torch.long)
    adapter = Session(toy_classifier(), **settings).adapter
    term = adapter._agreement_term(MixedBatch(plain, none, none), sampled, plain)["agreement"]
    each = [math.log(1 + math.exp(-gap)) for gap in (-0.2, 0.4, 0.6)]
    wanted = sum(each[row] for row in rows) / max(1, len(rows))
    assert term.item() == pytest.approx(wanted)


def test_dropout_zero_equals_the_softmax_policy():
    ends = []
    for settings in ({"policy": "softmax"}, {"dropout": 0.0}, {}):
        session = Session(toy_classifier(), n_queries=2, lr=0.05, **settings)
        for number in range(2):
            for query in session.predict(images(number)).queries:
                session.answer(query.id, correct=query.index % 2 == 0)
            session.learn()
        ends.append(session.model.head.weight)
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_augmented_passes_are_reproducible_and_differ_from_one_another():
    wrapped, x = WrappedModel(toy_classifier()), images()
    how = SamplingSettings("batch", 0.0, 3)
    with torch.no_grad():
        first, second = (augmented_passes(wrapped, x, how, RandomKey((1,))) for _ in range(2))
        other = augmented_passes(wrapped, x, how, RandomKey((2,)))
        plain = wrapped(x, statistics="batch")
    assert torch.equal(first, second)
    assert first.shape == (3, 8, 5)
    assert all(not torch.allclose(first[0], given) for given in (first[1], other[0], plain))


def test_ensemble_without_noise_equals_the_plain_pass():
    model, x = toy_classifier(), images()
    wrapped, before = WrappedModel(model), toy_classifier().state_dict()
    weights = list(model.parameters())
    how = SamplingSettings("batch", 0.0, 2)
    with torch.no_grad():
        plain = wrapped(x, statistics="batch")
        still = perturbed_passes(wrapped, x, how, RandomKey((1,)), size=0.0)
        noisy = perturbed_passes(wrapped, x, how, RandomKey((1,)), size=0.1)
    assert torch.allclose(still, plain.expand(2, 8, 5), atol=1e-6)
    assert not torch.allclose(noisy[0], plain, atol=1e-3)
    assert not torch.allclose(noisy[0], noisy[1], atol=1e-3)
    assert all(one is two for one, two in zip(weights, model.parameters(), strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("policy", ["augmentation", "ensemble"])
def test_every_policy_trains_every_weight(policy):
    """A bias before BatchNorm has no effect, so it is the only exception."""
    model, source = toy_classifier(), toy_classifier()
    session = Session(model, policy=policy, n_queries=0, lr=0.1, weight_decay=0.0)
    session.step(images())
    for (name, one), two in zip(model.named_parameters(), source.parameters(), strict=True):
        moved = (one - two).abs().max()
        assert moved < 1e-6 if name.endswith("conv.bias") or name == "stem.bias" else moved > 1e-6


@pytest.mark.parametrize("policy", ["augmentation", "ensemble"])
def test_every_policy_makes_the_same_updates_in_low_memory_mode(policy):
    models = [toy_classifier(), toy_classifier()]
    for model, memory in zip(models, ("full", "low"), strict=True):
        Session(model, policy=policy, memory=memory, lr=0.1).step(images())
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_stream_memory_holds_unasked_samples_balanced_by_label():
    session = Session(toy_classifier(), n_queries=2, stream_memory=6)
    seen, asked = [], []
    for number in range(3):
        batch = images(number)
        seen += list(batch)
        asked += [batch[query.index] for query in session.predict(batch).queries]
        session.learn()
    kept = session.adapter.stream_memory
    assert len(kept) == 6
    assert all(any(torch.equal(one, other) for other in seen) for one in kept.inputs)
    assert not any(torch.equal(one, other) for one in kept.inputs for other in asked)


def test_statistics_follow_the_stream_memory_when_it_is_learned_from():
    """With momentum 1 they are those of the stored samples, with the weights before the step."""
    model, source = toy_classifier(), toy_classifier()
    session = Session(model, n_queries=0, stream_memory=6, bn_momentum=1.0)
    session.predict(images() * 3)
    assert torch.equal(model.norm.running_mean, source.norm.running_mean)
    session.learn()
    before = source.stem(session.adapter.stream_memory.inputs)
    assert torch.allclose(model.norm.running_mean, before.mean((0, 2, 3)), atol=1e-5)


def test_stream_memory_makes_uncertainty_independent_of_the_batch():
    """Without dropout π equals the served probabilities, which use running statistics."""
    for size, same in ((6, True), (0, False)):
        session = Session(toy_classifier(), n_queries=0, stream_memory=size, dropout=0.0)
        session.step(images() * 3)
        adapter = session.adapter
        policy, alone = adapter.policy(images(1)), adapter.policy(images(1)[:4])
        assert torch.allclose(policy[:4], alone, atol=1e-6) == same
        assert torch.allclose(policy, adapter.predict(images(1)).probs, atol=1e-6) == same


def test_stream_memory_of_exactly_the_batch_equals_the_batch():
    """Without questions the memory holds the batch. Only the statistics are updated differently."""
    models = [toy_classifier(), toy_classifier()]
    for model, size in zip(models, (0, 8), strict=True):
        Session(model, n_queries=0, stream_memory=size, lr=0.1, dropout=0.0).step(images())
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_mecta_and_stream_memory_exclude_one_another():
    with pytest.raises(SettingError, match="mecta is 'fixed'; allowed: 'off' with a stream_memory"):
        Session(toy_classifier(), mecta="fixed", stream_memory=8)


def test_ensemble_refuses_micro_batches():
    with pytest.raises(SettingError, match="micro_batch is 2; allowed: 0 with policy='ensemble'"):
        Session(toy_classifier(), policy="ensemble", micro_batch=2)


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [("dropout", 1.0, "below 1"), ("lr", 0.0, "above 0"), ("restore", 2.0, "0 to 1"),
     ("epochs", 0, "1 or more"), ("observes", "never", "before_serving"), ("lr", "fast", "float"),
     ("epochs", 1.5, "whole number"), ("sites", 5, "names of modules"),
     ("sites", [], "names of modules"), ("second_softmax", 1, "bool"),
     ("policy", "magic", "'ensemble'"), ("agreement", "no", "'threshold'"),
     ("threshold", 1.0, "below 1"), ("perturbation", -1.0, "0 or more")],
)  # fmt: skip
def test_bad_settings_are_refused_with_the_allowed_values(setting, value, allowed):
    with pytest.raises(SettingError, match=f"{setting} is .*{allowed}"):
        Session(toy_classifier(), **{setting: value})
