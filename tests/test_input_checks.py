"""Tests of common mistakes: each is accepted correctly or refused with what to do."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from bitta import Session, Simulated
from bitta.errors import FeedbackWarning, InputError, ModelError, SettingError
from bitta.feedback import AnswerCheck
from bitta.seeding import generator
from bitta.testing import toy_classifier
from bitta.types import Answer, Query


def images(n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1))


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (torch.full((8,), 5), r"label 5.* 5 classes"),
        (torch.full((8,), -1), "label -1"),
        (torch.full((8,), 0.5), "whole numbers"),
    ],
)
def test_labels_that_are_not_classes_are_refused(truth, message):
    with pytest.raises(InputError, match=message):
        Session(toy_classifier(), feedback=Simulated(truth)).step(images())


def test_whole_numbers_as_floats_are_labels():
    session = Session(toy_classifier(), feedback=Simulated(torch.full((8,), 4.0)))
    assert session.step(images())[1]


def test_model_that_returns_probabilities_is_refused_and_the_remedy_works():
    model = nn.Sequential(toy_classifier(), nn.Softmax(1))
    with pytest.raises(ModelError, match="probabilities"):
        Session(model).predict(images())
    session = Session(model, logits=lambda output: output.clamp_min(1e-12).log())
    assert len(session.predict(images()).labels) == 8


@pytest.mark.parametrize(
    ("inputs", "remedy"),
    [(images()[0], r"unsqueeze\(0\)"), (images().permute(0, 2, 3, 1), r"permute\(0, 3, 1, 2\)")],
)
def test_images_of_another_layout_are_refused_with_the_remedy(inputs, remedy):
    with pytest.raises(ModelError, match=remedy):
        Session(toy_classifier()).predict(inputs)


def test_session_inside_inference_mode_learns():
    model = toy_classifier()
    before = [parameter.clone() for parameter in model.parameters()]
    with torch.inference_mode():
        session = Session(model)
        session.answer(session.predict(images()).queries[0].id, correct=True)
        session.learn()
    pairs = zip(before, model.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_model_made_inside_inference_mode_is_refused():
    with torch.inference_mode():
        model = toy_classifier()
    with pytest.raises(ModelError, match="inference_mode"):
        Session(model)


@pytest.mark.parametrize("correct", [torch.tensor(True), np.bool_(True), True])
def test_verdict_may_be_any_kind_of_boolean(correct):
    session = Session(toy_classifier(), n_queries=1)
    session.answer(session.predict(images()).queries[0].id, correct=correct)
    session.learn()
    assert session.n_answered == 1


@pytest.mark.parametrize(
    ("given", "name"), [("learning_rate", "lr"), ("n_epochs", "epochs"), ("k", "n_queries")]
)
def test_names_of_other_libraries_are_refused_with_ours(given, name):
    with pytest.raises(SettingError, match=f"'{name}'"):
        Session(toy_classifier(), **{given: 1})


def answers(n, *, correct, uncertainty):
    query = Query(
        id=0, index=0, served_label=0, shown_label=0, uncertainty=uncertainty,
        input=torch.zeros(1), step=0, version=0, position=0,
    )  # fmt: skip
    return [Answer(query, correct)] * n


def test_equal_answers_to_uncertain_questions_give_one_warning():
    check = AnswerCheck()
    check.add(answers(99, correct=True, uncertainty=0.5))
    with pytest.warns(FeedbackWarning, match="100 answers.*'correct'"):
        check.add(answers(1, correct=True, uncertainty=0.5))
    check.add(answers(100, correct=True, uncertainty=0.5))


def test_confident_model_may_be_right_every_time():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AnswerCheck().add(answers(1000, correct=True, uncertainty=0.001))


def test_session_describes_itself():
    session = Session(toy_classifier(), n_queries=3, paired_audits=1)
    session.answer(session.predict(images()).queries[0].id, correct=True)
    session.learn()
    text = repr(session)
    for value in ("bitta", "stage1, stage2", "8 samples", "3 asked, 1 answered", "source model"):
        assert value in text
