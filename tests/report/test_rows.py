"""Tests of rows. A row holds the runs of one experiment with different seeds."""

from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch

from bitta import Session
from bitta.bench.annotators import FeedbackConfig
from bitta.methods.bitta import BittaConfig
from bitta.methods.tent import TentConfig
from bitta.report.rows import DEFAULT_FEEDBACK, DEPENDENT_SETTINGS, Row, find_preset, row_title
from bitta.report.seed_statistics import Spread
from bitta.seeding import generator
from bitta.testing import toy_classifier
from made_results import made_run, made_section


def test_row_has_mean_and_sample_deviation_over_seeds(tmp_path):
    """60, 70 and 80 %: squares 100 + 0 + 100, over 2."""
    runs = [made_run("tent", "tent", [n, n], seed=n) for n in (8, 6, 7)]
    [row] = made_section(tmp_path, runs).rows
    assert list(row.runs) == [6, 7, 8]
    assert row.accuracy == Spread(pytest.approx(70.0), pytest.approx(10.0), 3)
    assert row.accuracy_by_domain["snow"].mean == pytest.approx(70.0)


def test_row_with_one_seed_has_no_deviation(tmp_path):
    [row] = made_section(tmp_path, [made_run("tent", "tent", [3, 9])]).rows
    assert row.accuracy == Spread(60.0, None, 1)
    assert row.policy_ece is None


def test_domain_mean_counts_each_domain_once():
    """10 of 20 samples and 9 of 10: 19 of 30 samples, but (50 + 90) / 2."""
    run = made_run("tent", "tent", [5, 5, 9, 0])
    row = Row("tent", {0: replace(run, steps=run.steps[:3])})
    assert row.accuracy.mean == pytest.approx(1900 / 30)
    assert row.domain_mean.mean == pytest.approx(70.0)


def test_row_titles_are_those_of_the_paper():
    assert row_title("tent", "none") == "TENT"
    assert row_title("tent", "verdict") == "TENT*"
    assert row_title("bitta", "verdict") == "BiTTA"
    assert row_title("bitta", "none") == "BiTTA (no answers)"
    assert row_title("simatta", "full", ["reference"]) == "SimATTA (full labels, reference)"


def test_answer_kind_depends_on_labels_and_received_answers(tmp_path):
    runs = [
        made_run("source", "source", [1, 2]),
        made_run("tent", "tent", [1, 2], n_queries=0),
        made_run("tent-feedback", "tent", [1, 2]),
        made_run("bitta-labels", "bitta", [1, 2], labels="full"),
    ]
    section = made_section(tmp_path, runs)
    assert [row.answer_kind for row in section.rows] == ["none", "none", "verdict", "full"]
    assert section.rows[3].title == "BiTTA (full labels)"


def test_preset_is_found_by_its_values():
    handicap = {"name": "tent", **vars(TentConfig()), **TentConfig.presets["reference"]}
    assert find_preset(handicap) == "reference"
    assert find_preset({**handicap, "lr": 7.0}) == "reference"
    assert find_preset({"name": "tent", **vars(TentConfig())}) == ""
    assert find_preset({"name": "unheard-of"}) == ""


def test_default_feedback_equals_the_defaults_of_an_experiment():
    usual = vars(FeedbackConfig())
    assert {key: usual[key] for key in DEFAULT_FEEDBACK} == DEFAULT_FEEDBACK


@pytest.mark.parametrize("name", DEPENDENT_SETTINGS)
def test_dependent_setting_has_no_effect_for_other_values(name):
    """With another value of the required setting, two values learn the same weights."""
    other, values = DEPENDENT_SETTINGS[name]
    literals = get_args(get_type_hints(BittaConfig)[other])
    assert set(values) < set(literals)
    for value in set(literals) - set(values):
        one, two = (_learned({other: value, name: number}) for number in (0.2, 0.6))
        assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("name", DEPENDENT_SETTINGS)
def test_dependent_setting_has_an_effect_for_required_values(name):
    other, values = DEPENDENT_SETTINGS[name]
    for value in values:
        one, two = (_learned({other: value, name: number}) for number in (0.2, 0.6))
        assert not all(map(torch.equal, one, two))


def _learned(settings):
    model = toy_classifier()
    session = Session(model, n_queries=2, lr=0.05, **settings)
    for number in range(3):
        session.step(torch.rand(16, 3, 8, 8, generator=generator(1, number)))
    return [*model.parameters(), *model.buffers()]
