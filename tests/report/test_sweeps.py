"""Tests that rows become series along the settings that vary."""

from bitta.report.sweeps import find_sweeps
from made_results import made_run, made_section


def test_settings_that_change_together_make_one_sweep(tmp_path):
    runs = [
        made_run(f"b{e}", "bitta", [5, 5 + e], settings={"epochs": e, "lr": 3e-4 / e})
        for e in (1, 2, 3)
    ]
    [sweep] = find_sweeps(made_section(tmp_path, runs))
    assert (sweep.key, sweep.coupled_keys) == ("method.epochs", ("method.lr",))
    assert sweep.title == "epochs per batch (with learning rate)"
    assert sweep.series[0].values == (1, 2, 3)


def test_rows_that_differ_in_another_setting_are_another_series(tmp_path):
    runs = [
        made_run(f"b-{flip}-{lr}", "bitta", [5, 5], flip=flip, settings={"lr": lr})
        for flip in (0.0, 0.1, 0.2)
        for lr in (1e-4, 1e-3)
    ]
    [sweep] = find_sweeps(made_section(tmp_path, runs))
    assert sweep.key == "feedback.flip"
    assert [(series.label, series.values) for series in sweep.series] == [
        ("BiTTA (learning rate 0.0001)", (0.0, 0.1, 0.2)),
        ("BiTTA (learning rate 0.001)", (0.0, 0.1, 0.2)),
    ]


def test_series_uses_the_seeds_that_all_its_rows_have(tmp_path):
    """Seed 1 is always correct, but ran once: a mean of both seeds would be a false peak."""
    seeds = {0.0: (0,), 0.1: (0, 1), 0.2: (0,)}
    runs = [
        made_run(f"b{flip}", "bitta", [5 + 5 * seed] * 2, flip=flip, seed=seed)
        for flip, those in seeds.items()
        for seed in those
    ]
    [series] = find_sweeps(made_section(tmp_path, runs))[0].series
    assert series.label == "BiTTA (seed 0)"
    assert [row.accuracy.mean for row in series.rows] == [50.0, 50.0, 50.0]


def test_series_without_a_shared_seed_uses_all_seeds(tmp_path):
    runs = [
        made_run(f"b{flip}", "bitta", [5 + seed] * 2, flip=flip, seed=seed)
        for seed, flip in enumerate((0.0, 0.1, 0.2))
    ]
    [series] = find_sweeps(made_section(tmp_path, runs))[0].series
    assert series.label == "BiTTA"
    assert [row.accuracy.mean for row in series.rows] == [50.0, 60.0, 70.0]


def test_setting_with_fewer_values_is_not_coupled(tmp_path):
    """Two budget units and three shares of wrong labels make no series of three."""
    runs = [
        made_run(f"s{error}", "simatta", [5, 5], labels="full", error=error, equal=equal)
        for error, equal in ((0.0, "bits"), (0.127, "seconds"), (0.4, "bits"))
    ]
    assert find_sweeps(made_section(tmp_path, runs)) == []


def test_two_presets_make_no_sweep(tmp_path):
    runs = [
        made_run("a", "tent", [5, 5], n_queries=0, settings={"lr": 1e-3, "reset": True}),
        made_run("b", "tent", [5, 5], n_queries=0, settings={"lr": 1e-4, "reset": False}),
    ]
    assert find_sweeps(made_section(tmp_path, runs)) == []


def test_two_words_make_a_sweep_for_two_methods_but_not_for_one(tmp_path):
    runs = [
        made_run(f"{method}-{equal}", method, [5, 5], equal=equal)
        for method in ("simatta", "bitta")
        for equal in ("bits", "seconds")
    ]
    both = made_section(tmp_path, runs)
    assert [sweep.key for sweep in find_sweeps(both)] == ["feedback.equal"]
    assert find_sweeps(both.with_rows(["bitta*"])) == []


def test_single_row_that_differs_in_another_setting_is_a_series(tmp_path):
    runs = [
        made_run(f"b{beta}", "bitta", [5, 5], settings={"beta": beta, "alpha": 1.0})
        for beta in (0.5, 1.0, 2.0)
    ]
    runs.append(made_run("other", "bitta", [6, 6], settings={"beta": 1.0, "alpha": 2.0}))
    [sweep] = find_sweeps(made_section(tmp_path, runs))
    assert [(series.label, series.values) for series in sweep.series] == [
        ("BiTTA (weight of answers α 1)", (0.5, 1.0, 2.0)),
        ("BiTTA (weight of answers α 2)", (1.0,)),
    ]
