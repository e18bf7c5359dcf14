"""Seeds become rows, rows of one protocol become sections."""

import json
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch

from bitta import Session
from bitta.bench.annotators import FeedbackConfig
from bitta.errors import InputError
from bitta.methods.bitta import BittaConfig
from bitta.methods.tent import TentConfig
from bitta.report.rows import DEFAULT_FEEDBACK, DEPENDENT_SETTINGS, Row, find_preset, row_title
from bitta.report.sections import read_sections
from bitta.report.statistics import Spread
from bitta.seeding import generator
from bitta.testing import toy_classifier
from made_results import ENVIRONMENT, made_run, made_section, made_sections


def changed(run, **experiment):
    return replace(run, experiment={**run.experiment, **experiment})


def elsewhere(run, **environment):
    return replace(run, environment={**run.environment, **environment})


def test_mean_and_sample_deviation_over_seeds_by_hand(tmp_path):
    """60, 70 and 80 %: squares 100 + 0 + 100, over 2."""
    runs = [made_run("tent", "tent", [n, n], seed=n) for n in (8, 6, 7)]
    [row] = made_section(tmp_path, runs).rows
    assert list(row.runs) == [6, 7, 8]
    assert row.accuracy == Spread(pytest.approx(70.0), pytest.approx(10.0), 3)
    assert row.accuracy_by_domain["snow"].mean == pytest.approx(70.0)


def test_one_seed_has_no_deviation(tmp_path):
    [row] = made_section(tmp_path, [made_run("tent", "tent", [3, 9])]).rows
    assert row.accuracy == Spread(60.0, None, 1)
    assert row.policy_ece is None


def test_a_mean_over_domains_counts_each_once():
    """10 of 20 samples and 9 of 10: 19 of 30 samples, but (50 + 90) / 2."""
    run = made_run("tent", "tent", [5, 5, 9, 0])
    row = Row("tent", {0: replace(run, steps=run.steps[:3])})
    assert row.accuracy.mean == pytest.approx(1900 / 30)
    assert row.domain_mean.mean == pytest.approx(70.0)


@pytest.mark.parametrize(
    "other",
    [
        replace(made_run("bitta", "bitta", [5, 6]), protocol="another, seed 0"),
        elsewhere(made_run("bitta", "bitta", [5, 6]), code="0" * 64),
        elsewhere(made_run("bitta", "bitta", [5, 6]), source_weights="0" * 64),
        changed(made_run("bitta", "bitta", [5, 6]), stream={"kind": "cifar10-c", "beta": 0.5}),
    ],
    ids=["protocol", "code", "weights", "stream"],
)
def test_what_must_not_be_compared_is_in_another_section(tmp_path, other):
    sections = made_sections(tmp_path, [made_run("tent", "tent", [1, 2]), other])
    assert [[row.name for row in section.rows] for section in sections] == [["tent"], ["bitta"]]


def test_a_row_is_told_apart_from_one_of_another_version(tmp_path):
    """Where code has changed since, a table of its own does not hide another step size."""
    runs = [
        made_run("bitta", "bitta", [5, 5], settings={"lr": 1e-4}),
        elsewhere(made_run("slow", "bitta", [6, 6], settings={"lr": 1e-5}), code="0" * 64),
        elsewhere(made_run("bn_stats", "bn_stats", [4, 4]), code="0" * 64),
    ]
    titles = [[row.title for row in section.rows] for section in made_sections(tmp_path, runs)]
    assert titles == [["BiTTA"], ["BN-Stats", "BiTTA (lr 1e-05)"]]


def test_rows_of_one_table_never_have_one_title(tmp_path):
    """Of the same settings, so that only their names tell them apart, whatever is elsewhere."""
    runs = [made_run(name, "bitta", [5, 5], settings={"lr": 1e-4}) for name in ("a", "b")]
    other = made_run("c", "bitta", [6, 6], settings={"lr": 1e-5})
    for code in ("0" * 64, ENVIRONMENT["code"]):
        folder = tmp_path / code
        folder.mkdir()
        sections = made_sections(folder, [*runs, elsewhere(other, code=code)])
        titles = [row.title for section in sections for row in section.rows]
        assert titles == ["BiTTA (a)", "BiTTA (b)", "BiTTA (lr 1e-05)"]


def test_the_same_row_of_two_versions_needs_no_telling(tmp_path):
    run = made_run("bitta", "bitta", [5, 5])
    sections = made_sections(tmp_path, [run, elsewhere(run, code="0" * 64)])
    assert [row.title for section in sections for row in section.rows] == ["BiTTA", "BiTTA"]


def test_seeds_and_paths_do_not_part_rows(tmp_path):
    there = changed(
        made_run("tent", "tent", [1, 2], seed=1),
        stream={"kind": "cifar10-c", "order": "continual", "path": "elsewhere"},
    )
    section = made_section(tmp_path, [made_run("bitta", "bitta", [1, 2]), there])
    assert section.protocol == "20 samples"
    assert section.seeds == (0, 1)


def test_a_setting_that_is_new_since_does_not_part_seeds(tmp_path):
    runs = [
        made_run("bitta", "bitta", [1, 2], seed=seed, settings=settings)
        for seed, settings in enumerate([{}, {"stream_memory": 0}, {"stream_memory": 4}])
    ]
    rows = made_section(tmp_path, runs).rows
    assert sorted(tuple(row.runs) for row in rows) == [(0, 1), (2,)]


def test_a_negative_seed_is_a_seed(tmp_path):
    runs = [made_run("tent", "tent", [1, 2], seed=seed) for seed in (-1, 0, 1)]
    section = made_section(tmp_path, runs)
    assert section.protocol == "20 samples"
    assert section.seeds == (-1, 0, 1)
    assert [list(row.runs) for row in section.rows] == [[-1, 0, 1]]


def test_other_images_under_one_protocol_are_refused(tmp_path):
    runs = [made_run("tent", "tent", [1, 2]), made_run("bitta", "bitta", [1, 2])]
    with pytest.raises(InputError, match=r"000.json.*001.json.*not the same images"):
        made_sections(tmp_path, [runs[0], elsewhere(runs[1], stream="0" * 64)])


def test_the_same_run_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match="the same run twice"):
        made_sections(tmp_path, [made_run("tent", "tent", [1, 2])] * 2)


def test_a_folder_given_twice_is_read_once(tmp_path):
    made_run("tent", "tent", [1, 2]).save(tmp_path / "tent.json")
    assert len(read_sections([tmp_path, tmp_path / "."])) == 1


def test_rows_of_one_name_say_in_what_they_differ(tmp_path):
    runs = [
        made_run("tent", "tent", [1, 2], settings={"lr": lr}, seed=seed)
        for seed, lr in enumerate((1e-3, 1e-4))
    ]
    names = [row.name for row in made_section(tmp_path, runs).rows]
    assert names == ["tent (method.lr=0.0001)", "tent (method.lr=0.001)"]


def test_rows_come_in_the_order_of_methods_then_of_numbers(tmp_path):
    given = [("bitta", "bitta"), ("tent-n10", "tent"), ("tent-n9", "tent"), ("s", "source")]
    section = made_section(tmp_path, [made_run(*names, [1, 2]) for names in given])
    assert [row.name for row in section.rows] == ["s", "tent-n9", "tent-n10", "bitta"]


def test_titles_are_those_of_the_paper():
    assert row_title("tent", "none") == "TENT"
    assert row_title("tent", "verdict") == "TENT*"
    assert row_title("bitta", "verdict") == "BiTTA"
    assert row_title("bitta", "none") == "BiTTA (no answers)"
    assert row_title("simatta", "full", ["reference"]) == "SimATTA (full labels, reference)"


def test_answers_are_what_was_learned_from(tmp_path):
    runs = [
        made_run("source", "source", [1, 2]),
        made_run("tent", "tent", [1, 2], n_queries=0),
        made_run("tent-feedback", "tent", [1, 2]),
        made_run("bitta-labels", "bitta", [1, 2], labels="full"),
    ]
    section = made_section(tmp_path, runs)
    assert [row.answer_kind for row in section.rows] == ["none", "none", "verdict", "full"]
    assert section.rows[3].title == "BiTTA (full labels)"


def test_a_preset_is_known_by_its_settings():
    handicap = {"name": "tent", **vars(TentConfig()), **TentConfig.presets["reference"]}
    assert find_preset(handicap) == "reference"
    assert find_preset({**handicap, "lr": 7.0}) == "reference"
    assert find_preset({"name": "tent", **vars(TentConfig())}) == ""
    assert find_preset({"name": "unheard-of"}) == ""


def test_what_is_usual_of_feedback_is_what_an_experiment_has_by_default():
    usual = vars(FeedbackConfig())
    assert {key: usual[key] for key in DEFAULT_FEEDBACK} == DEFAULT_FEEDBACK


def test_a_setting_that_varies_is_found_and_told(tmp_path):
    runs = [
        made_run(f"{method}-flip{flip}", method, [1, 2], flip=flip)
        for method in ("simatta", "bitta")
        for flip in (0.0, 0.1)
    ]
    section = made_section(tmp_path, runs)
    assert section.varied_settings == {
        "feedback.flip": {
            "simatta-flip0.0": 0.0, "simatta-flip0.1": 0.1, "bitta-flip0.0": 0.0,
            "bitta-flip0.1": 0.1,
        }
    }  # fmt: skip
    assert section.swept_settings == ("feedback.flip",)
    assert [row.title for row in section.rows[2:]] == ["BiTTA", "BiTTA (flip 0.1)"]
    assert section.rows[3].title_without(section.swept_settings) == "BiTTA"


def by(agreement, threshold):
    return {"agreement": agreement, "threshold": threshold}


def test_a_setting_without_effect_is_not_told(tmp_path):
    runs = [made_run(f"t{n}", "bitta", [1, 2], settings=by("threshold", n)) for n in (0.8, 0.95)]
    runs.append(made_run("policy", "bitta", [1, 2], settings=by("policy", 0.7)))
    section = made_section(tmp_path, runs)
    policy = section.rows[0]
    assert (policy.name, policy.title) == ("policy", "BiTTA")
    assert section.varied_settings["method.threshold"] == {
        "policy": None,
        "t0.8": 0.8,
        "t0.95": 0.95,
    }
    assert policy.flat_settings["method.threshold"] == 0.7


def test_rows_of_one_name_are_told_apart_by_a_setting_without_effect_too(tmp_path):
    runs = [
        made_run("bitta", "bitta", [1, 2], settings=by("policy", threshold), seed=seed)
        for seed, threshold in enumerate((0.8, 0.9))
    ]
    section = made_section(tmp_path, runs)
    names = [row.name for row in section.rows]
    assert names == ["bitta (method.threshold=0.8)", "bitta (method.threshold=0.9)"]
    assert section.varied_settings == {}


@pytest.mark.parametrize("name", DEPENDENT_SETTINGS)
def test_what_is_said_to_have_no_effect_has_none(name):
    """Other values of it, where the setting it hangs on is another: the same weights."""
    other, values = DEPENDENT_SETTINGS[name]
    literals = get_args(get_type_hints(BittaConfig)[other])
    assert set(values) < set(literals)
    for value in set(literals) - set(values):
        one, two = (_learned({other: value, name: number}) for number in (0.2, 0.6))
        assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("name", DEPENDENT_SETTINGS)
def test_and_has_one_where_it_counts(name):
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


def test_one_variant_among_many_methods_is_no_sweep(tmp_path):
    runs = [made_run(name, name, [1, 2]) for name in ("source", "bn_stats", "tent", "sar", "eta")]
    runs += [made_run("bitta", "bitta", [1, 2]), made_run("late", "bitta", [1, 2], delay=5)]
    section = made_section(tmp_path, runs)
    assert list(section.varied_settings) == ["feedback.delay"]
    assert section.swept_settings == ()
    assert section.rows[-1].title == "BiTTA (delay 5)"


def test_collapse_is_under_half_of_the_source_with_the_same_seed(tmp_path):
    """Fog: source 40 % and 80 %; 30 % is no collapse beside 40, but beside 80."""
    runs = [made_run("source", "source", [fog, 8], seed=s) for s, fog in enumerate((4, 8))]
    runs += [made_run("tent", "tent", [3, 8], seed=seed) for seed in (0, 1, 2)]
    section = made_section(tmp_path, runs)
    # Seed 2 has no source of its own and takes that of seed 0.
    assert section.rows[1].collapsed_domains == {1: ("fog",)}
    hidden = section.with_rows(["tent"])
    assert [row.name for row in hidden.rows] == ["tent"]
    assert hidden.rows[0].collapsed_domains == {1: ("fog",)}


def test_without_a_source_few_classes_are_a_collapse(tmp_path):
    spreads = {"fog": {"served": 0.1, "true": 1.0}, "snow": {"served": 0.9, "true": 1.0}}
    run = replace(made_run("tent", "tent", [1, 2]), spreads=spreads)
    assert made_section(tmp_path, [run]).rows[0].collapsed_domains == {0: ("fog",)}


def test_without_a_source_half_of_the_median_row_is_a_collapse(tmp_path):
    """Fog: 20, 60 and 80 %, so the least is 30; snow: 40, 70 and 60, so it is 30."""
    rights = {"tent": [2, 4], "sar": [6, 7], "bitta": [8, 6]}
    section = made_section(tmp_path, [made_run(name, name, of) for name, of in rights.items()])
    assert {row.name: row.collapsed_domains for row in section.rows} == {
        "tent": {0: ("fog",)}, "sar": {}, "bitta": {},
    }  # fmt: skip


def test_other_tables_are_refused_by_name(tmp_path):
    for text in ("[1]", "{", json.dumps({"format": 1}), json.dumps({"format": 2})):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(InputError, match=r"other.json.*bitta run and bitta sweep wrote"):
            read_sections([tmp_path])


def test_logs_checkpoints_and_folders_are_passed_over(tmp_path):
    (tmp_path / "tent-seed0.log").write_text("")
    (tmp_path / "tent-seed1.safetensors").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.json").write_text("")
    with pytest.raises(InputError, match=r"no result.*give these: .*folder"):
        read_sections([tmp_path])
    assert made_section(tmp_path, [made_run("tent", "tent", [1, 2])]).rows[0].name == "tent"
