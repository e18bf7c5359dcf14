"""Who is asked about, and how often."""

from dataclasses import replace

import pytest
import torch

from bitta import Session
from bitta.errors import SettingError
from bitta.selection import Budget, Candidates, get_score_function
from bitta.testing import toy_classifier
from bitta.types import Prediction


def candidates(key=(0, "selection", 0)):
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    policy = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]])
    return Candidates(Prediction.from_logits(logits), lambda: policy, lambda: logits, key)


def test_mc_confidence_doubts_the_label_that_was_served():
    """Labels 0, 1, 0 have policy .9, .3, .4."""
    uncertainty = get_score_function("mc_confidence")(candidates())
    assert uncertainty.tolist() == pytest.approx([0.1, 0.7, 0.6])


def test_random_follows_its_key_and_needs_no_policy():
    random = get_score_function("random")
    lazy = replace(candidates((1,)), policy=lambda: pytest.fail("policy was computed"))
    assert torch.equal(random(lazy), random(lazy))
    assert not torch.equal(random(lazy), random(candidates((2,))))


def test_selectors_without_stochastic_passes_rank_what_was_served():
    """Logit gaps 2, 1, 3: p = .881, .731, .953; log-sum-exp 2.127, 1.313, 3.049."""
    confidence, entropy, energy, last = (
        get_score_function(name)(candidates()).tolist()
        for name in ("confidence", "entropy", "energy", "last")
    )
    assert confidence == pytest.approx([0.1192, 0.2689, 0.0474], abs=1e-4)
    assert entropy == pytest.approx([0.3653, 0.5822, 0.1909], abs=1e-4)
    assert energy == pytest.approx([-2.1269, -1.3133, -3.0486], abs=1e-4)
    assert last == [0, 1, 2]


def test_queries_come_most_uncertain_first():
    session = Session(toy_classifier(), n_queries=4)
    queries = session.predict(torch.rand(8, 3, 8, 8)).queries
    doubts = [query.uncertainty for query in queries]
    assert doubts == sorted(doubts, reverse=True)
    assert [query.id for query in queries] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"n_queries": 2}, [2, 2, 2, 2]),
        ({"n_queries": 2, "every": 2}, [2, 0, 2, 0]),
        ({"n_queries": 2, "total": 3}, [2, 1, 0, 0]),
        ({"n_queries": 0}, [0, 0, 0, 0]),
    ],
)
def test_budget(budget, expected):
    session = Session(toy_classifier(), **budget)
    asked = []
    for _ in range(4):
        asked.append(len(session.predict(torch.rand(5, 3, 8, 8)).queries))
        session.learn()
    assert asked == expected


def test_bad_budgets_are_refused():
    with pytest.raises(SettingError, match="n_queries is -1"):
        Budget(n_queries=-1)
    with pytest.raises(SettingError, match="did you mean 'random'"):
        Session(toy_classifier(), selection="rando")
