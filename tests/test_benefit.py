"""Tests of paired audits and of the benefit that they measure."""

import pytest
import torch
from torch import nn

from bitta import Session, Simulated
from bitta.benefit import BenefitEstimator, PairedScores
from bitta.errors import BenefitWarning, SettingError
from bitta.methods.source import Source
from bitta.seeding import generator
from bitta.types import Answer, Feedback, Prediction, Query


def paired_answer(*, shows_served, correct, n_represented=1.0):
    query = Query(
        id=0, index=0, served_label=1, shown_label=1 if shows_served else 2, uncertainty=0.0,
        input=torch.zeros(1), step=0, version=0, position=0, reason="paired_audit",
        n_represented=n_represented,
    )  # fmt: skip
    return Answer(query, correct)


class Shifted(Source):
    """Serves the class after the source model's for the samples whose first value is above 0."""

    n_queries = 3
    paired_audits = 1

    def predict(self, inputs):
        labels = self.source_labels(inputs)
        labels = torch.where(inputs[:, 0] > 0, (labels + 1) % 4, labels)
        return Prediction.from_logits(nn.functional.one_hot(labels, 4).float())


def identity_model():
    """Classify by the largest of the last four values."""
    model = nn.Linear(5, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(5)[1:])
    return model


def make_session(**options):
    return Session(identity_model(), Shifted, dropout=0.0, **options)


def stream(n, share_different, seed=0):
    """Return inputs, the source model's labels, and True for rows that `Shifted` changes."""
    rng = generator(seed)
    labels = torch.randint(4, (n,), generator=rng)
    different = torch.rand(n, generator=rng) < share_different
    return torch.cat([different.float()[:, None], torch.eye(4)[labels]], 1), labels, different


def serve(session, inputs):
    """Serve the stream in batches of 64."""
    for batch in inputs.split(64):
        session.step(batch)


def test_score_is_two_for_the_label_that_is_shown_and_correct():
    """Served label right: +2. Source model's label right: -2. Wrong: 0. The mean is 0.4."""
    scores = PairedScores()
    scores.add(paired_answer(shows_served=True, correct=True) for _ in range(2))
    scores.add([paired_answer(shows_served=False, correct=True)])
    scores.add(paired_answer(shows_served=shown, correct=False) for shown in (True, False))
    assert scores.n == 5
    assert scores.mean == pytest.approx((2 + 2 - 2) / 5)


def test_audits_of_large_groups_weigh_more():
    """Weights 3 and 1, scores 2 and -2: (6 - 2) / 4 = 1."""
    scores = PairedScores()
    scores.add([paired_answer(shows_served=True, correct=True, n_represented=3.0)])
    scores.add([paired_answer(shows_served=False, correct=True, n_represented=1.0)])
    assert scores.mean == pytest.approx(1.0)


def test_benefit_is_the_share_that_differs_times_the_mean_score():
    """4 of 16 samples differ, and the one audit scores 2, more than is possible: 25 points."""
    estimator = BenefitEstimator()
    estimator.add_window(n_samples=8, n_different=4)
    estimator.add_window(n_samples=8, n_different=0)
    estimator.add_answers([paired_answer(shows_served=True, correct=True, n_represented=4.0)])
    benefit = estimator.estimate()
    assert benefit.estimate == 0.25
    assert benefit.share_different == 0.25
    assert benefit.low < 0.25 == benefit.high
    assert (benefit.n_audits, benefit.n_samples) == (1, 16)


def test_benefit_is_exactly_zero_if_no_label_differs():
    estimator = BenefitEstimator()
    estimator.add_window(n_samples=8, n_different=0)
    benefit = estimator.estimate()
    assert (benefit.estimate, benefit.low, benefit.high) == (0.0, 0.0, 0.0)


def test_standard_error_matches_the_formula_after_many_audits():
    """Scores of 2 and 0, half each: variance 1, so the standard error of n audits is 1/√n."""
    scores = PairedScores()
    scores.add(paired_answer(shows_served=True, correct=i % 2 == 0) for i in range(1000))
    assert scores.standard_error == pytest.approx(1000**-0.5, rel=0.01)


def test_confidence_sequence_is_wider_than_an_interval_and_shrinks():
    radii = []
    for n in (10, 100, 1000):
        scores = PairedScores()
        scores.add(paired_answer(shows_served=True, correct=i % 2 == 0) for i in range(n))
        radii.append(scores.sequence_radius())
        assert radii[-1] > 1.96 * scores.standard_error
    assert radii == sorted(radii, reverse=True)


def test_warning_comes_once_when_learning_does_harm_and_names_the_difference():
    """Half of the samples are served a wrong label where the source model is right."""
    inputs, labels, _ = stream(64 * 40, 0.5)
    session = make_session(feedback=Simulated(labels), window=0)
    with pytest.warns(BenefitWarning, match=r"-[345]\d\.\d points") as caught:
        serve(session, inputs)
    assert len(caught) == 1
    assert session.benefit.high < 0


def test_no_warning_comes_if_learning_helps(recwarn):
    inputs, labels, different = stream(64 * 40, 0.5)
    truth = torch.where(different, (labels + 1) % 4, labels)
    session = make_session(feedback=Simulated(truth), window=0)
    serve(session, inputs)
    assert session.benefit.low > 0
    assert not recwarn.list


def test_paired_audits_are_about_samples_that_differ_and_show_each_label_half_of_the_time():
    inputs, _, different = stream(6400, 0.2)
    session = make_session()
    queries = [q for part in inputs.split(64) for q in session.predict(part).queries]
    paired = [query for query in queries if query.reason == "paired_audit"]
    assert len(paired) == 100
    assert all(different[query.position] for query in paired)
    n_source = sum(query.shown_label != query.served_label for query in paired)
    assert 35 <= n_source <= 65
    others = [query for query in queries if query.reason != "paired_audit"]
    assert all(query.shown_label == query.served_label for query in others)


def test_every_sample_that_differs_is_audited_with_equal_probability():
    """8 of 16 samples differ: each is drawn with probability 1/8, also beside a random audit."""
    inputs = torch.cat(
        [torch.arange(16).remainder(2)[:, None].float(), torch.eye(4).repeat(4, 1)], 1
    )
    counts = torch.zeros(16)
    for seed in range(800):
        with make_session(audits=1, seed=seed) as session:
            for query in session.predict(inputs).queries:
                counts[query.index] += query.reason == "paired_audit"
    assert counts[::2].sum() == 0
    assert counts[1::2].min() > 65
    assert counts[1::2].max() < 140


@pytest.mark.parametrize("share_answered", [1.0, 0.5])
def test_estimate_is_unbiased_and_its_interval_contains_the_true_difference(share_answered):
    """Truth: the served label is right on 60 % of the samples that differ, the source's on 20 %."""
    covered, errors = [], []
    for seed in range(60):
        inputs, labels, different = stream(6400, 0.2, seed)
        rng = generator(seed, "truth")
        drawn = torch.rand(len(labels), generator=rng)
        offset = torch.where(drawn < 0.6, 1, torch.where(drawn < 0.8, 0, 2))
        truth = torch.where(different, (labels + offset) % 4, labels)
        annotator = Simulated(truth, answer_every=round(1 / share_answered))
        session = make_session(feedback=annotator, seed=seed)
        for part in inputs.split(64):
            session.step(part)
        served = torch.where(different, (labels + 1) % 4, labels)
        true = ((served == truth).float() - (labels == truth).float()).mean().item()
        benefit = session.benefit
        assert benefit.n_audits == 100 * share_answered
        covered.append(benefit.low <= true <= benefit.high)
        errors.append(benefit.estimate - true)
    assert abs(sum(errors) / len(errors)) < 0.01
    assert sum(covered) >= 0.9 * len(covered)


def test_label_of_the_source_model_is_learned_if_judged_correct_and_excluded_if_not():
    right, wrong = (paired_answer(shows_served=False, correct=c) for c in (True, False))
    feedback = Feedback.from_answers([right, wrong], like=torch.zeros(1, 1))
    assert feedback.correct.labels.tolist() == [2]
    assert feedback.incorrect.labels.tolist() == [2]


def test_audits_do_not_change_what_is_served():
    inputs, *_ = stream(640, 0.3)
    with_audits, without = (make_session(paired_audits=n) for n in (1, 0))
    for part in inputs.split(64):
        assert torch.equal(with_audits.predict(part).labels, without.predict(part).labels)
    assert without.benefit is None


def test_saved_session_continues_its_estimate(tmp_path):
    inputs, labels, _ = stream(640, 0.3)
    session = make_session(feedback=Simulated(labels))
    for part in inputs[:320].split(64):
        session.step(part)
    session.save(tmp_path / "s")
    again = Session.load(
        tmp_path / "s", identity_model(), method=Shifted, feedback=Simulated(labels)
    )
    for part in inputs[320:].split(64):
        session.step(part)
        again.step(part)
    assert again.benefit == session.benefit
    assert again.benefit.n_audits == 10


@pytest.mark.parametrize(("audits", "paired_audits"), [(0, 4), (2, 2), (0, -1)])
def test_more_audits_than_questions_are_refused(audits, paired_audits):
    with pytest.raises(SettingError, match="paired_audits"):
        make_session(audits=audits, paired_audits=paired_audits)
