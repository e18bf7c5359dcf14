"""Tests of query selection: uncertainty scores, budget, price and audits."""

from dataclasses import replace
from math import log2

import pytest
import torch

from bitta import Session
from bitta.errors import SettingError
from bitta.selection import Budget, Candidates, get_score_function
from bitta.testing import toy_classifier
from bitta.types import Prediction


def allowances(steps, **settings):
    budget, asked, given = Budget(**settings), 0, []
    for step in range(steps):
        given.append(budget.allowance(step=step, n_asked=asked))
        asked += given[-1]
    return given


def test_budget_is_saved_for_the_price_of_a_ten_class_label():
    """floor(3 t / 3.3219) is 0 1 2 3 4 5 6 7 8 9 9 10 for t = 1 to 12. A batch gets its rise."""
    assert allowances(12, n_queries=3, price=log2(10)) == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1]
    assert sum(allowances(1000, n_queries=3, price=log2(10))) == 903  # 3000 / 3.3219 = 903.09


def test_price_of_one_changes_nothing():
    for settings in ({"n_queries": 2}, {"n_queries": 2, "every": 3}, {"n_queries": 2, "total": 5}):
        assert allowances(9, **settings) == allowances(9, **settings, price=1.0)
    assert Budget(n_queries=2).allowance(step=5, n_asked=3) == 2  # nothing is saved up


def test_unused_allowance_is_carried_over():
    assert Budget(n_queries=3, price=2.0).allowance(step=3, n_asked=2) == 4  # 12 / 2 - 2


def test_price_combines_with_every_and_total():
    """Every other batch earns 3 / 2: floors 1, 3, 4, 6, so 1 2 1 2; at most 4 in all."""
    assert allowances(8, n_queries=3, every=2, price=2.0) == [1, 0, 2, 0, 1, 0, 2, 0]
    assert allowances(8, n_queries=3, every=2, price=2.0, total=4) == [1, 0, 2, 0, 1, 0, 0, 0]


def test_rounding_does_not_lose_a_question():
    assert allowances(30, n_queries=3, price=0.1) == [30] * 30
    assert allowances(9, n_queries=1, price=3 * (0.1 + 0.2) / 0.3) == [0, 0, 1] * 3


def test_number_of_questions_follows_limits_and_price():
    assert Budget(n_queries=3).count_questions(n_steps=10, max_per_step=64) == 30
    assert Budget(n_queries=3).count_questions(n_steps=10, max_per_step=2) == 20
    assert Budget(n_queries=3, total=7).count_questions(n_steps=10, max_per_step=64) == 7
    assert Budget(n_queries=3, price=log2(10)).count_questions(n_steps=1000, max_per_step=64) == 903


@pytest.mark.parametrize("price", [0, -1.0, float("nan"), float("inf"), "2"])
def test_invalid_prices_are_refused(price):
    with pytest.raises(SettingError, match=r"price is .*; allowed: a number above 0"):
        Budget(n_queries=1, price=price)


def test_price_is_saved_with_the_session():
    first = Session(toy_classifier(), n_queries=1, price=2.0)
    assert [len(first.step(torch.rand(4, 3, 8, 8))[0].queries) for _ in range(3)] == [0, 1, 0]
    second = Session.from_state(first.state_dict(), toy_classifier())
    assert second.budget == first.budget
    assert len(second.step(torch.rand(4, 3, 8, 8))[0].queries) == 1


def test_prediction_holds_the_policy_only_if_it_was_computed():
    inputs = torch.rand(6, 3, 8, 8)
    with Session(toy_classifier(), seed=3) as session:
        forwards = session.adapter.wrapped.counts.forwards
        policy = session.predict(inputs).policy
        spent = session.adapter.wrapped.counts.forwards - forwards
        assert torch.equal(policy, session.adapter.policy(inputs))
    assert spent == 6 * (1 + 1 + 4)  # statistics, serving, four stochastic passes
    for settings in ({"selection": "entropy"}, {"n_queries": 0}, {"every": 2, "n_queries": 1}):
        with Session(toy_classifier(), **settings) as session:
            session.step(inputs)
            assert session.predict(inputs).policy is None


def test_policy_in_a_window_is_that_of_the_served_samples():
    inputs = torch.rand(4, 3, 8, 8)
    with Session(toy_classifier(), window=4, seed=3) as session:
        served = [session.predict(part) for part in inputs.split(1)]
        assert [one.policy is None for one in served] == [True, True, True, False]
        assert torch.equal(served[-1].policy, session.adapter.policy(inputs)[-1:])


def candidates(key=(0, "selection", 0)):
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    policy = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]])
    return Candidates(Prediction.from_logits(logits), lambda: policy, lambda: logits, key)


def test_mc_confidence_scores_the_served_label():
    """Labels 0, 1, 0 have policy .9, .3, .4."""
    uncertainty = get_score_function("mc_confidence")(candidates())
    assert uncertainty.tolist() == pytest.approx([0.1, 0.7, 0.6])


def test_random_score_depends_on_its_key_and_needs_no_policy():
    random = get_score_function("random")
    lazy = replace(candidates((1,)), policy=lambda: pytest.fail("policy was computed"))
    assert torch.equal(random(lazy), random(lazy))
    assert not torch.equal(random(lazy), random(candidates((2,))))


def test_scores_without_stochastic_passes_equal_hand_computation():
    """Logit gaps 2, 1, 3: p = .881, .731, .953; log-sum-exp 2.127, 1.313, 3.049."""
    confidence, entropy, energy, last = (
        get_score_function(name)(candidates()).tolist()
        for name in ("confidence", "entropy", "energy", "last")
    )
    assert confidence == pytest.approx([0.1192, 0.2689, 0.0474], abs=1e-4)
    assert entropy == pytest.approx([0.3653, 0.5822, 0.1909], abs=1e-4)
    assert energy == pytest.approx([-2.1269, -1.3133, -3.0486], abs=1e-4)
    assert last == [0, 1, 2]


def test_queries_are_ordered_by_descending_uncertainty():
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
def test_number_of_queries_follows_the_budget(budget, expected):
    session = Session(toy_classifier(), **budget)
    asked = []
    for _ in range(4):
        asked.append(len(session.predict(torch.rand(5, 3, 8, 8)).queries))
        session.learn()
    assert asked == expected


def test_invalid_budgets_are_refused():
    with pytest.raises(SettingError, match="n_queries is -1"):
        Budget(n_queries=-1)
    with pytest.raises(SettingError, match="did you mean 'random'"):
        Session(toy_classifier(), selection="rando")
