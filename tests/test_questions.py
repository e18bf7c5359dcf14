"""Tests of audits, of agreement, and of serving between updates."""

import pytest
import torch

from bitta import Session, Simulated
from bitta.errors import SettingError
from bitta.seeding import generator
from bitta.testing import toy_classifier


def images(number=0, n=12):
    return torch.rand(n, 3, 8, 8, generator=generator(4, number))


def test_audits_come_last_and_the_other_questions_are_the_most_uncertain():
    plain, audited = (Session(toy_classifier(), n_queries=4, audits=n) for n in (0, 1))
    expected = plain.predict(images()).queries
    queries = audited.predict(images()).queries
    assert [query.reason for query in queries] == ["uncertain"] * 3 + ["audit"]
    left = [query.index for query in expected if query.index != queries[3].index]
    assert [query.index for query in queries[:3]] == left[:3]
    assert [query.id for query in queries] == [0, 1, 2, 3]
    assert {query.reason for query in expected} == {"uncertain"}


def test_every_sample_is_audited_with_equal_probability():
    """Each of 12 samples is audited with probability 1/12, the most uncertain ones too.

    Without dropout the same two are most uncertain every time.
    """
    counts = torch.zeros(12)
    for seed in range(300):
        with Session(toy_classifier(), n_queries=3, audits=1, seed=seed, dropout=0.0) as session:
            counts[session.predict(images()).queries[-1].index] += 1
    assert counts.min() >= 9
    assert counts.max() <= 47


def test_session_with_audits_only_computes_no_policy_and_can_be_saved(tmp_path):
    session = Session(toy_classifier(), n_queries=2, audits=2)
    prediction = session.predict(images())
    assert [query.reason for query in prediction.queries] == ["audit", "audit"]
    assert prediction.policy is None
    assert prediction.agreement is None
    session.save(tmp_path / "s")
    again = Session.load(tmp_path / "s", toy_classifier())
    expected, found = (s.predict(images(1)).queries for s in (session, again))
    assert [query.position for query in found] == [query.position for query in expected]


@pytest.mark.parametrize("audits", [-1, 3])
def test_more_audits_than_questions_are_refused(audits):
    with pytest.raises(SettingError, match="audits"):
        Session(toy_classifier(), n_queries=2, audits=audits)


def test_method_that_chooses_rows_itself_is_audited_too():
    session = Session(toy_classifier(), "simatta", n_queries=3, audits=1, clusters=2)
    queries = session.predict(images()).queries
    assert queries[-1].reason == "audit"
    assert all(query.uncertainty >= 0 for query in queries)


def test_agreement_is_measured_over_the_whole_window():
    session = Session(toy_classifier(), n_queries=1, window=8, dropout=0.0)
    assert session.predict(images(n=4)).agreement is None
    assert session.predict(images(1, n=4)).agreement == 1.0, (
        "the policy equals the prediction without dropout"
    )


@pytest.mark.parametrize(("method", "epochs"), [("bitta", 3), ("tent", 1), ("cotta", 2)])
def test_requests_can_be_served_between_updates(method, epochs):
    """Two samples between any two updates: with three updates they complete a window of 4."""
    session = Session(
        toy_classifier(), method, n_queries=1, window=4, epochs=epochs,
        feedback=Simulated(torch.zeros(12, dtype=torch.long)),
    )  # fmt: skip
    session.predict(images(n=4))
    assert session.can_learn
    served = []
    session.learn(between_updates=lambda: served.append(session.predict(images(1, n=2))))
    assert len(served) == epochs - 1
    assert session.adapter.version == 1
    assert session.can_learn == (epochs == 3)
    assert all(torch.isfinite(prediction.confidence).all() for prediction in served)


@pytest.mark.parametrize("serving", [False, True])
def test_serving_between_updates_does_not_change_what_is_learned(serving):
    session, alone = (Session(toy_classifier(), n_queries=1, window=8) for _ in range(2))
    for one in (session, alone):
        one.predict(images(n=8))
    session.learn(between_updates=lambda: session.predict(images(1, n=1)) if serving else None)
    alone.learn()
    pairs = zip(session.model.parameters(), alone.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
