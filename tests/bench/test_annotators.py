"""Annotators of experiments: keys, prices, contradictions, logs."""

from math import log2
from pathlib import Path

import pytest
import torch

from bitta.bench.annotators import FeedbackConfig, build_annotators
from bitta.bench.clean import ForgettingConfig
from bitta.bench.enhanced import EnhancedConfig
from bitta.bench.experiment import Experiment
from bitta.bench.runner import Stopped, run
from bitta.bench.toml import read_toml
from bitta.config import describe_settings
from bitta.errors import BittaError
from bitta.feedback import FeedbackRecorder, FeedbackReplay, Panel, Simulated, SimulatedLabels
from small_experiment import without_times, write_experiment


def changed(tmp_path, name="trial", **tables):
    table = read_toml(write_experiment(tmp_path))
    for section, values in tables.items():
        table[section] = table.get(section, {}) | values
    return Experiment.of(table, name=name)


def source_of(**given):
    return build_annotators(FeedbackConfig.of(given), torch.zeros(9).long(), n_classes=5, seed=3)


def test_verdicts_labels_and_panels():
    assert source_of(flip=0.1, delay=2).settings == {
        "flip": 0.1, "delay": 2, "answer_every": 1, "seed": 3
    }  # fmt: skip
    full = source_of(labels="full", error=0.4, answer_every=2)
    assert isinstance(full, SimulatedLabels)
    assert (full.error, full.n_classes, full.answer_every) == (0.4, 5, 2)
    panel = source_of(annotators="0, .1,0.3", delay=1)
    assert isinstance(panel, Panel)
    assert [(one.flip, one.delay) for one in panel.members] == [(0, 1), (0.1, 1), (0.3, 1)]
    assert [one.error for one in source_of(labels="full", annotators="0,.3").members] == [0, 0.3]
    assert isinstance(source_of(record="x.jsonl"), FeedbackRecorder)


def test_defaults_are_those_of_a_perfect_annotator():
    source = source_of()
    assert isinstance(source, Simulated)
    assert source.settings == {"flip": 0.0, "delay": 0, "answer_every": 1, "seed": 3}
    assert FeedbackConfig.of({}).price(10) == 1


@pytest.mark.parametrize(
    ("given", "price"),
    [
        ({}, 1),
        ({"labels": "full"}, 1),
        ({"labels": "full", "equal": "bits"}, log2(10)),
        ({"labels": "full", "equal": "seconds"}, 11.7 / 1.6),
        ({"equal": "bits"}, 1),
        ({"equal": "seconds"}, 1),
    ],
)
def test_prices(given, price):
    assert FeedbackConfig.of(given).price(10) == price


def test_seconds_bring_the_errors_of_people_unless_others_are_given():
    assert FeedbackConfig.of({"equal": "seconds"}).flip == 0.008
    full = FeedbackConfig.of({"equal": "seconds", "labels": "full"})
    assert (full.error, full.flip) == (0.127, 0)
    assert FeedbackConfig.of({"equal": "seconds", "flip": 0.0}).flip == 0
    assert FeedbackConfig.of({"equal": "seconds", "labels": "full", "error": 0.4}).error == 0.4
    assert FeedbackConfig.of({"equal": "seconds", "annotators": "0.2"}).mistakes == (0.2,)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": "half"}, "labels is 'half'; allowed: 'verdict', 'full'"),
        ({"equal": "hours"}, "equal is 'hours'; allowed: 'count', 'bits', 'seconds'"),
        ({"labels": "full", "flip": 0.1}, 'flips are of verdicts and labels is "full"; give err'),
        ({"error": 0.1}, 'errors are of full labels and labels is "verdict"; give flip'),
        ({"labels": "full", "error": 2.0}, r"error is 2\.0; allowed: 0 to 1"),
        ({"annotators": "0,x"}, "annotators is '0,x'; allowed: numbers from 0 to 1, separated by"),
        ({"annotators": "0,1.5"}, "annotators is '0,1.5'"),
        ({"annotators": ","}, "annotators is ','"),
        ({"annotators": "0", "flip": 0.1}, "feedback.flip another; leave one of them out"),
        ({"replay": "a", "flip": 0.1}, "again, so feedback.flip has nothing to decide"),
        ({"replay": "a", "record": "b"}, "again, so feedback.record has nothing to decide"),
        ({"replay": "a", "delay": 1}, "again, so feedback.delay has nothing"),
        ({"replay": "a", "annotators": "0"}, "again, so feedback.annotators has nothing"),
    ],
)
def test_contradictions_get_one_sentence(given, message):
    with pytest.raises(BittaError, match=message):
        FeedbackConfig.of(given)


@pytest.mark.parametrize("given", [{"record": "a"}, {"replay": "a"}])
def test_what_is_asked_beforehand_is_in_no_log(tmp_path, given):
    with pytest.raises(BittaError, match="which a log does not hold"):
        changed(tmp_path, feedback={"flip": 0.0, "delay": 0} | given, enhanced={})


def test_a_table_gives_the_experiment_again(tmp_path):
    for feedback in (
        {"labels": "full", "equal": "seconds", "flip": 0.0},
        {"equal": "seconds", "annotators": "0,.2", "flip": 0.0},
        {"replay": "x.jsonl", "flip": 0.0, "delay": 0, "equal": "seconds"},
    ):
        experiment = changed(tmp_path, feedback=feedback)
        assert Experiment.of(experiment.as_table(), name="x") == experiment


def test_labels_at_equal_cost_are_fewer_and_name_classes(tmp_path):
    """13 or 14 batches of 2 verdicts buy 28 / log2(5) = 12.06 labels of five classes."""
    experiment = changed(
        tmp_path, feedback={"labels": "full", "equal": "bits", "flip": 0.0, "error": 0.2}
    )
    result = run(experiment, out=tmp_path)
    assert result.total("n_asked") == 12
    assert result.extra["price"] == pytest.approx(log2(5))


def test_a_run_is_recorded_and_replayed(tmp_path):
    log = str(tmp_path / "log.jsonl")
    run(changed(tmp_path, feedback={"record": log}), out=tmp_path / "recorded")
    replayed = changed(tmp_path, feedback={"replay": log, "flip": 0.0, "delay": 0})
    run(replayed, out=tmp_path / "replayed")
    one, two = (
        without_times(tmp_path / name / "trial-seed0.json") for name in ("recorded", "replayed")
    )
    for result in (one, two):
        del result["experiment"]["feedback"], result["environment"]["identity"]
    assert one == two


def test_another_run_than_the_recorded_one_is_told(tmp_path):
    log = str(tmp_path / "log.jsonl")
    run(changed(tmp_path, feedback={"record": log}), out=tmp_path)
    replayed = {"replay": log, "flip": 0.0, "delay": 0}
    for feedback, message in (
        (replayed | {"n_queries": 1}, "is not the one in the log"),
        (replayed | {"total": 20}, "answers question 20 in batch 11, where it has not"),
        (replayed | {"n_queries": 3}, "is not the one in the log"),
    ):
        with pytest.raises(BittaError, match=message):
            run(changed(tmp_path, name="again", feedback=feedback), out=tmp_path)
    lines = (tmp_path / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:4]))
    cut = replayed | {"replay": str(tmp_path / "cut.jsonl")}
    with pytest.raises(BittaError, match="has no end: it was cut after 3 answers"):
        run(changed(tmp_path, name="again", feedback=cut), out=tmp_path)


@pytest.mark.parametrize(
    "feedback",
    [
        {"record": "log.jsonl"},
        {"annotators": "0,.3", "flip": 0.0},
        {"labels": "full", "error": 0.3, "flip": 0.0, "equal": "seconds"},
    ],
)
def test_a_stopped_run_goes_on_with_its_annotators(tmp_path, monkeypatch, feedback):
    logs, results = [], []
    for name, stops in (("whole", 0), ("parts", 3)):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        experiment = changed(tmp_path, feedback=feedback)
        for _ in range(stops):
            with pytest.raises(Stopped):
                run(experiment, out=folder, resume=True, should_stop=lambda: True)
        run(experiment, out=folder, resume=True)
        results.append(without_times(folder / "trial-seed0.json"))
        logs.append([path.read_bytes() for path in folder.glob("*.jsonl")])
    assert results[0] == results[1]
    assert logs[0] == logs[1]
    assert len(logs[0]) == ("record" in feedback)


def test_a_run_that_starts_over_writes_its_own_log_anew_but_no_other(tmp_path):
    log = tmp_path / "log.jsonl"
    experiment = changed(tmp_path, feedback={"record": str(log)})
    with pytest.raises(Stopped):
        run(experiment, out=tmp_path, should_stop=lambda: True)
    run(experiment, out=tmp_path)
    assert FeedbackReplay(log).path == log
    other = changed(tmp_path, name="other", feedback={"record": str(log)})
    with pytest.raises(BittaError, match="already holds something else"):
        run(other, out=tmp_path)


@pytest.mark.parametrize("kind", [FeedbackConfig, EnhancedConfig, ForgettingConfig])
def test_every_key_is_explained(kind):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "run-experiments.md").read_text()
    for setting in describe_settings(kind):
        default = '""' if setting.default == "" else setting.default
        assert f"| `{setting.name}` | {default} | {setting.meaning} |" in page
