"""BiTTA's own parts, by hand."""

import pytest
import torch

from bitta import Session
from bitta.errors import SettingError
from bitta.seeding import generator
from bitta.testing import toy_classifier

STILL = {"momentum": 0.0, "weight_decay": 0.0, "epochs": 1, "dropout": 0.0, "lr": 0.05}


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


@pytest.mark.parametrize(("correct", "direction"), [(True, 1), (False, -1)])
def test_an_answer_moves_the_probability_of_the_label_shown(correct, direction):
    session = Session(toy_classifier(), n_queries=1, beta=0.0, **STILL)
    query = session.predict(images()).queries[0]
    session.answer(query.id, correct=correct)
    rest = session._unlabelled
    mixed = torch.cat([query.input.unsqueeze(0), rest])

    def judged():
        """What the model, normalised as it learns, thinks of the label that was judged."""
        return session.adapter.policy(mixed)[0, query.label].item()

    before = judged()
    session.learn()
    assert (judged() - before) * direction > 0


def test_settings_of_the_parts():
    only_answers = Session(toy_classifier(), n_queries=2, beta=0.0)
    only_agreement = Session(toy_classifier(), n_queries=2, alpha=0.0)
    for session, terms in ((only_answers, {"feedback"}), (only_agreement, {"agreement"})):
        for query in session.predict(images()).queries:
            session.answer(query.id, correct=True)
        assert session.learn().terms.keys() == terms


def test_no_answer_and_no_agreement_takes_no_step():
    session = Session(toy_classifier(), n_queries=0, beta=0.0, weight_decay=0.5)
    before = [parameter.clone() for parameter in session.model.parameters()]
    session.step(images())
    assert all(map(torch.equal, before, session.model.parameters()))


def test_restoring_everything_gives_the_source_weights_back():
    model = toy_classifier()
    session = Session(model, n_queries=2, restore=1.0, lr=0.1)
    session.step(images())
    for one, two in zip(model.parameters(), toy_classifier().parameters(), strict=True):
        assert torch.equal(one, two)


def test_restoring_half_mixes_source_and_adapted_weights():
    model, source = toy_classifier(width=32), toy_classifier(width=32)
    Session(model, n_queries=0, restore=0.5, lr=0.1).step(images())
    same = torch.cat(
        [(a == b).flatten() for a, b in zip(model.parameters(), source.parameters(), strict=True)]
    )
    assert 0.4 < same.float().mean().item() < 0.6


def test_label_served_is_label_judged_by_default():
    session = Session(toy_classifier(), n_queries=8)
    for number in range(3):
        prediction = session.predict(images(number) * (1 + number))
        assert all(query.label == prediction.labels[query.index] for query in prediction.queries)
        session.learn()


@pytest.mark.parametrize(
    ("order", "moved_when_serving"),
    [("before_serving", True), ("before_asking", False), ("after_asking", False)],
)
def test_statistics_are_taken_in_when_the_setting_says(order, moved_when_serving):
    session = Session(toy_classifier(), n_queries=1, observes=order)
    source = Session(toy_classifier(), "source")
    x = images() * 3
    served = session.predict(x).probs
    assert torch.equal(served, source.predict(x).probs) != moved_when_serving
    assert session.model.norm.running_mean.abs().max() > 0  # taken in by the end of predict


def test_presets_change_what_they_say():
    adapter = Session(toy_classifier(), preset="paper").adapter
    assert adapter.policy_statistics == "running"
    assert adapter.observes == "after_asking"
    assert not adapter.config.second_softmax
    assert Session(toy_classifier(), preset="reference").adapter.observes == "before_asking"


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [("dropout", 1.0, "below 1"), ("lr", 0.0, "above 0"), ("restore", 2.0, "0 to 1"),
     ("epochs", 0, "1 or more"), ("observes", "never", "before_serving"), ("lr", "fast", "float"),
     ("epochs", 1.5, "whole number"), ("sites", 5, "names of modules"),
     ("sites", [], "names of modules"), ("second_softmax", 1, "bool")],
)  # fmt: skip
def test_bad_settings_are_refused_with_what_is_allowed(setting, value, allowed):
    with pytest.raises(SettingError, match=f"{setting} is .*{allowed}"):
        Session(toy_classifier(), **{setting: value})
