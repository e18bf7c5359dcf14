"""Tests of sections. A section holds the rows of result files with one protocol."""

import json
from dataclasses import replace

import pytest

from bitta.errors import InputError
from bitta.report.sections import read_sections
from made_results import ENVIRONMENT, made_run, made_section, made_sections


def changed(run, **experiment):
    return replace(run, experiment={**run.experiment, **experiment})


def with_environment(run, **environment):
    return replace(run, environment={**run.environment, **environment})


@pytest.mark.parametrize(
    "other",
    [
        replace(made_run("bitta", "bitta", [5, 6]), protocol="another, seed 0"),
        with_environment(made_run("bitta", "bitta", [5, 6]), code="0" * 64),
        with_environment(made_run("bitta", "bitta", [5, 6]), source_weights="0" * 64),
        changed(made_run("bitta", "bitta", [5, 6]), stream={"kind": "cifar10-c", "beta": 0.5}),
    ],
    ids=["protocol", "code", "weights", "stream"],
)
def test_results_that_are_not_comparable_are_in_different_sections(tmp_path, other):
    sections = made_sections(tmp_path, [made_run("tent", "tent", [1, 2]), other])
    assert [[row.name for row in section.rows] for section in sections] == [["tent"], ["bitta"]]


def test_title_distinguishes_a_row_from_one_of_another_code_version(tmp_path):
    """A row of another code version shows that its learning rate is different."""
    runs = [
        made_run("bitta", "bitta", [5, 5], settings={"lr": 1e-4}),
        with_environment(made_run("slow", "bitta", [6, 6], settings={"lr": 1e-5}), code="0" * 64),
        with_environment(made_run("bn_stats", "bn_stats", [4, 4]), code="0" * 64),
    ]
    titles = [[row.title for row in section.rows] for section in made_sections(tmp_path, runs)]
    assert titles == [["BiTTA"], ["BN-Stats", "BiTTA (lr 1e-05)"]]


def test_rows_of_a_section_have_different_titles(tmp_path):
    """Rows with the same settings get their names as qualifiers."""
    runs = [made_run(name, "bitta", [5, 5], settings={"lr": 1e-4}) for name in ("a", "b")]
    other = made_run("c", "bitta", [6, 6], settings={"lr": 1e-5})
    for code in ("0" * 64, ENVIRONMENT["code"]):
        folder = tmp_path / code
        folder.mkdir()
        sections = made_sections(folder, [*runs, with_environment(other, code=code)])
        titles = [row.title for section in sections for row in section.rows]
        assert titles == ["BiTTA (a)", "BiTTA (b)", "BiTTA (lr 1e-05)"]


def test_same_row_of_two_code_versions_has_no_qualifiers(tmp_path):
    run = made_run("bitta", "bitta", [5, 5])
    sections = made_sections(tmp_path, [run, with_environment(run, code="0" * 64)])
    assert [row.title for section in sections for row in section.rows] == ["BiTTA", "BiTTA"]


def test_runs_that_differ_in_seed_or_paths_are_one_row(tmp_path):
    there = changed(
        made_run("tent", "tent", [1, 2], seed=1),
        stream={"kind": "cifar10-c", "order": "continual", "path": "elsewhere"},
    )
    section = made_section(tmp_path, [made_run("bitta", "bitta", [1, 2]), there])
    assert section.protocol == "20 samples"
    assert section.seeds == (0, 1)


def test_runs_from_before_a_setting_existed_share_a_row_with_its_default(tmp_path):
    runs = [
        made_run("bitta", "bitta", [1, 2], seed=seed, settings=settings)
        for seed, settings in enumerate([{}, {"stream_memory": 0}, {"stream_memory": 4}])
    ]
    rows = made_section(tmp_path, runs).rows
    assert sorted(tuple(row.runs) for row in rows) == [(0, 1), (2,)]


def test_negative_seed_is_read(tmp_path):
    runs = [made_run("tent", "tent", [1, 2], seed=seed) for seed in (-1, 0, 1)]
    section = made_section(tmp_path, runs)
    assert section.protocol == "20 samples"
    assert section.seeds == (-1, 0, 1)
    assert [list(row.runs) for row in section.rows] == [[-1, 0, 1]]


def test_different_images_under_one_protocol_are_refused(tmp_path):
    runs = [made_run("tent", "tent", [1, 2]), made_run("bitta", "bitta", [1, 2])]
    with pytest.raises(InputError, match=r"000.json.*001.json.*not the same images"):
        made_sections(tmp_path, [runs[0], with_environment(runs[1], stream="0" * 64)])


def test_same_run_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match="the same run twice"):
        made_sections(tmp_path, [made_run("tent", "tent", [1, 2])] * 2)


def test_folder_given_twice_is_read_once(tmp_path):
    made_run("tent", "tent", [1, 2]).save(tmp_path / "tent.json")
    assert len(read_sections([tmp_path, tmp_path / "."])) == 1


def test_rows_of_one_name_get_their_differing_settings_as_name(tmp_path):
    runs = [
        made_run("tent", "tent", [1, 2], settings={"lr": lr}, seed=seed)
        for seed, lr in enumerate((1e-3, 1e-4))
    ]
    names = [row.name for row in made_section(tmp_path, runs).rows]
    assert names == ["tent (method.lr=0.0001)", "tent (method.lr=0.001)"]


def test_rows_are_sorted_by_method_then_by_numbers_in_names(tmp_path):
    given = [("bitta", "bitta"), ("tent-n10", "tent"), ("tent-n9", "tent"), ("s", "source")]
    section = made_section(tmp_path, [made_run(*names, [1, 2]) for names in given])
    assert [row.name for row in section.rows] == ["s", "tent-n9", "tent-n10", "bitta"]


def test_varied_setting_is_found_and_in_the_title(tmp_path):
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


def settings_of(agreement, threshold):
    return {"agreement": agreement, "threshold": threshold}


def test_setting_without_effect_is_not_in_the_title(tmp_path):
    runs = [
        made_run(f"t{n}", "bitta", [1, 2], settings=settings_of("threshold", n))
        for n in (0.8, 0.95)
    ]
    runs.append(made_run("policy", "bitta", [1, 2], settings=settings_of("policy", 0.7)))
    section = made_section(tmp_path, runs)
    policy = section.rows[0]
    assert (policy.name, policy.title) == ("policy", "BiTTA")
    assert section.varied_settings["method.threshold"] == {
        "policy": None,
        "t0.8": 0.8,
        "t0.95": 0.95,
    }
    assert policy.flat_settings["method.threshold"] == 0.7


def test_rows_of_one_name_may_differ_in_a_setting_without_effect(tmp_path):
    runs = [
        made_run("bitta", "bitta", [1, 2], settings=settings_of("policy", threshold), seed=seed)
        for seed, threshold in enumerate((0.8, 0.9))
    ]
    section = made_section(tmp_path, runs)
    names = [row.name for row in section.rows]
    assert names == ["bitta (method.threshold=0.8)", "bitta (method.threshold=0.9)"]
    assert section.varied_settings == {}


def test_one_variant_among_many_methods_is_not_swept(tmp_path):
    runs = [made_run(name, name, [1, 2]) for name in ("source", "bn_stats", "tent", "sar", "eta")]
    runs += [made_run("bitta", "bitta", [1, 2]), made_run("late", "bitta", [1, 2], delay=5)]
    section = made_section(tmp_path, runs)
    assert list(section.varied_settings) == ["feedback.delay"]
    assert section.swept_settings == ()
    assert section.rows[-1].title == "BiTTA (delay 5)"


def test_row_collapses_below_half_of_the_source_model_with_the_same_seed(tmp_path):
    """A row with 30 % in fog has collapsed if the source model has 80 %, but not if it has 40 %."""
    runs = [made_run("source", "source", [fog, 8], seed=s) for s, fog in enumerate((4, 8))]
    runs += [made_run("tent", "tent", [3, 8], seed=seed) for seed in (0, 1, 2)]
    section = made_section(tmp_path, runs)
    # Seed 2 has no source row, so the one of seed 0 is used.
    assert section.rows[1].collapsed_domains == {1: ("fog",)}
    hidden = section.with_rows(["tent"])
    assert [row.name for row in hidden.rows] == ["tent"]
    assert hidden.rows[0].collapsed_domains == {1: ("fog",)}


def test_row_collapses_if_few_classes_are_served_without_a_source_row(tmp_path):
    spreads = {"fog": {"served": 0.1, "true": 1.0}, "snow": {"served": 0.9, "true": 1.0}}
    run = replace(made_run("tent", "tent", [1, 2]), spreads=spreads)
    assert made_section(tmp_path, [run]).rows[0].collapsed_domains == {0: ("fog",)}


def test_row_collapses_below_half_of_the_median_row_without_a_source_row(tmp_path):
    """The limit is 30 % in both domains: half of the median of 20, 60, 80 and of 40, 70, 60."""
    rights = {"tent": [2, 4], "sar": [6, 7], "bitta": [8, 6]}
    section = made_section(tmp_path, [made_run(name, name, of) for name, of in rights.items()])
    assert {row.name: row.collapsed_domains for row in section.rows} == {
        "tent": {0: ("fog",)}, "sar": {}, "bitta": {},
    }  # fmt: skip


def test_other_json_files_are_refused_by_name(tmp_path):
    for text in ("[1]", "{", json.dumps({"format": 1}), json.dumps({"format": 2})):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(InputError, match=r"other.json.*bitta run and bitta sweep wrote"):
            read_sections([tmp_path])


def test_logs_checkpoints_and_subfolders_are_skipped(tmp_path):
    (tmp_path / "tent-seed0.log").write_text("")
    (tmp_path / "tent-seed1.safetensors").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.json").write_text("")
    with pytest.raises(InputError, match=r"no result.*give these: .*folder"):
        read_sections([tmp_path])
    assert made_section(tmp_path, [made_run("tent", "tent", [1, 2])]).rows[0].name == "tent"
