"""Questions that cost more than a verdict; and what choosing them leaves for a measurement."""

from math import log2

import pytest
import torch

from bitta import Session
from bitta.errors import SettingError
from bitta.selection import Budget
from bitta.testing import toy_classifier


def allowances(steps, **settings):
    budget, asked, given = Budget(**settings), 0, []
    for step in range(steps):
        given.append(budget.allowance(step=step, n_asked=asked))
        asked += given[-1]
    return given


def test_a_label_of_ten_classes_is_saved_up_for():
    """floor(3 t / 3.3219): 0 1 2 3 4 5 6 7 8 9 9 at t = 1 to ... : nine in the first ten."""
    assert allowances(12, n_queries=3, price=log2(10)) == [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1]
    assert sum(allowances(1000, n_queries=3, price=log2(10))) == 903  # 3000 / 3.3219 = 903.09


def test_a_price_of_one_is_no_price():
    for settings in ({"n_queries": 2}, {"n_queries": 2, "every": 3}, {"n_queries": 2, "total": 5}):
        assert allowances(9, **settings) == allowances(9, **settings, price=1.0)
    assert Budget(n_queries=2).allowance(step=5, n_asked=3) == 2  # nothing is saved up


def test_what_could_not_be_asked_is_asked_later():
    assert Budget(n_queries=3, price=2.0).allowance(step=3, n_asked=2) == 4  # 12 / 2 - 2


def test_a_price_goes_with_every_and_total():
    """Every other batch earns 3 / 2: floors 1, 3, 4, 6, so 1 2 1 2; at most 4 in all."""
    assert allowances(8, n_queries=3, every=2, price=2.0) == [1, 0, 2, 0, 1, 0, 2, 0]
    assert allowances(8, n_queries=3, every=2, price=2.0, total=4) == [1, 0, 2, 0, 1, 0, 0, 0]


def test_whole_prices_are_not_missed_by_a_rounding():
    assert allowances(30, n_queries=3, price=0.1) == [30] * 30
    assert allowances(9, n_queries=1, price=3 * (0.1 + 0.2) / 0.3) == [0, 0, 1] * 3


def test_questions_in_all():
    assert Budget(n_queries=3).count_questions(n_steps=10, max_per_step=64) == 30
    assert Budget(n_queries=3).count_questions(n_steps=10, max_per_step=2) == 20
    assert Budget(n_queries=3, total=7).count_questions(n_steps=10, max_per_step=64) == 7
    assert Budget(n_queries=3, price=log2(10)).count_questions(n_steps=1000, max_per_step=64) == 903


@pytest.mark.parametrize("price", [0, -1.0, float("nan"), float("inf"), "2"])
def test_prices_that_make_no_sense_are_refused(price):
    with pytest.raises(SettingError, match=r"price is .*; allowed: a number above 0"):
        Budget(n_queries=1, price=price)


def test_a_session_keeps_its_price():
    first = Session(toy_classifier(), n_queries=1, price=2.0)
    assert [len(first.step(torch.rand(4, 3, 8, 8))[0].queries) for _ in range(3)] == [0, 1, 0]
    second = Session.from_state(first.state_dict(), toy_classifier())
    assert second.budget == first.budget
    assert len(second.step(torch.rand(4, 3, 8, 8))[0].queries) == 1


def test_the_policy_comes_with_the_prediction_where_it_was_computed():
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


def test_in_a_window_the_policy_is_that_of_the_samples_served():
    inputs = torch.rand(4, 3, 8, 8)
    with Session(toy_classifier(), window=4, seed=3) as session:
        served = [session.predict(part) for part in inputs.split(1)]
        assert [one.policy is None for one in served] == [True, True, True, False]
        assert torch.equal(served[-1].policy, session.adapter.policy(inputs)[-1:])
