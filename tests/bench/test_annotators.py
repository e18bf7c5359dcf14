"""Tests of the annotators of experiments: settings, prices and logs of answers."""

from math import log2
from pathlib import Path

import numpy as np
import pytest
import torch

from bitta.bench.annotators import FeedbackConfig, build_annotators
from bitta.bench.experiment import Experiment, read_toml
from bitta.bench.runner import RunStopped
from bitta.bench.streams import ForgettingConfig
from bitta.config_base import describe_settings
from bitta.errors import BittaError
from bitta.feedback import (
    FeedbackRecorder,
    FeedbackReplay,
    Panel,
    Simulated,
    SimulatedLabels,
)
from bitta.streams import embedded_pack
from small_experiment import run_experiment, without_times, write_experiment


def build_experiment(tmp_path, name="trial", **tables):
    table = read_toml(write_experiment(tmp_path))
    for section, values in tables.items():
        table[section] = table.get(section, {}) | values
    return Experiment.from_table(table, name=name)


def build_source(**given):
    return build_annotators(
        FeedbackConfig.from_table(given), torch.zeros(9).long(), n_classes=5, seed=3
    )


def test_settings_build_verdicts_labels_and_panels():
    assert build_source(flip=0.1, delay=2).settings == {
        "flip": 0.1, "delay": 2, "answer_every": 1, "seed": 3
    }  # fmt: skip
    full = build_source(labels="full", error=0.4, answer_every=2)
    assert isinstance(full, SimulatedLabels)
    assert (full.error, full.n_classes, full.answer_every) == (0.4, 5, 2)
    panel = build_source(annotators="0, .1,0.3", delay=1)
    assert isinstance(panel, Panel)
    assert [(one.flip, one.delay) for one in panel.members] == [(0, 1), (0.1, 1), (0.3, 1)]
    assert [one.error for one in build_source(labels="full", annotators="0,.3").members] == [0, 0.3]
    assert isinstance(build_source(record="x.jsonl"), FeedbackRecorder)


def test_people_answer_about_the_images_that_the_stream_drew(tmp_path):
    """All people see the true class, in the order of the set: the result is that of no errors."""
    labels = embedded_pack("cifar10").labels
    np.save(tmp_path / "people.npy", 50 * np.eye(10)[labels])
    stream = {"kind": "corruptions", "corruptions": "fog", "n_samples": 24, "batch_size": 8}

    def run(name, **feedback):
        table = {
            "stream": stream, "model": {"weights": "embedded:cifar10-resnet8"},
            "method": {"name": "bitta"}, "feedback": feedback,
        }  # fmt: skip
        return run_experiment(Experiment.from_table(table, name=name), out=tmp_path)

    people = run("people", people=str(tmp_path / "people.npy"))
    assert people.final_weights == run("truth").final_weights


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"people": "missing.npy"}, "'missing.npy' cannot be read"),
        ({"people": "p.npy", "flip": 0.1}, "feedback.flip has no effect"),
    ],
)
def test_people_are_refused_without_a_file_or_with_other_errors(given, message):
    with pytest.raises(BittaError, match=message):
        build_source(**given)


def test_file_of_people_with_too_few_rows_is_refused(tmp_path):
    np.save(tmp_path / "people.npy", np.ones((4, 5)))
    config = FeedbackConfig(people=str(tmp_path / "people.npy"))
    rows = torch.tensor([0, 7])
    with pytest.raises(BittaError, match="has 4 rows, but the stream has image 7"):
        build_annotators(config, torch.zeros(2).long(), rows=rows, n_classes=5, seed=0)


def test_defaults_are_those_of_a_perfect_annotator():
    source = build_source()
    assert isinstance(source, Simulated)
    assert source.settings == {"flip": 0.0, "delay": 0, "answer_every": 1, "seed": 3}
    assert FeedbackConfig.from_table({}).price(10) == 1


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
def test_price_depends_on_labels_and_unit(given, price):
    assert FeedbackConfig.from_table(given).price(10) == price


def test_unit_seconds_has_published_error_rates_by_default():
    assert FeedbackConfig.from_table({"equal": "seconds"}).flip == 0.008
    full = FeedbackConfig.from_table({"equal": "seconds", "labels": "full"})
    assert (full.error, full.flip) == (0.127, 0)
    assert FeedbackConfig.from_table({"equal": "seconds", "flip": 0.0}).flip == 0
    assert (
        FeedbackConfig.from_table({"equal": "seconds", "labels": "full", "error": 0.4}).error == 0.4
    )
    assert FeedbackConfig.from_table({"equal": "seconds", "annotators": "0.2"}).error_rates == (
        0.2,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": "half"}, "labels is 'half'; allowed: 'verdict', 'full'"),
        ({"equal": "hours"}, "equal is 'hours'; allowed: 'count', 'bits', 'seconds'"),
        (
            {"labels": "full", "flip": 0.1},
            'feedback.flip is 0.1, .* labels is "full"; give feedback.error',
        ),
        ({"error": 0.1}, 'feedback.error is 0.1, .* labels is "verdict"; give feedback.flip'),
        ({"labels": "full", "error": 2.0}, r"error is 2\.0; allowed: 0 to 1"),
        ({"annotators": "0,x"}, "annotators is '0,x'; allowed: numbers from 0 to 1, separated by"),
        ({"annotators": "0,1.5"}, "annotators is '0,1.5'"),
        ({"annotators": ","}, "annotators is ','"),
        ({"annotators": "0", "flip": 0.1}, "feedback.flip"),
        ({"replay": "a", "flip": 0.1}, "feedback.flip"),
        ({"replay": "a", "record": "b"}, "feedback.record"),
        ({"replay": "a", "delay": 1}, "feedback.delay"),
        ({"replay": "a", "annotators": "0"}, "feedback.annotators"),
    ],
)
def test_invalid_or_contradicting_settings_are_refused(given, message):
    with pytest.raises(BittaError, match=message):
        FeedbackConfig.from_table(given)


def test_experiment_is_restored_from_its_table(tmp_path):
    for feedback in (
        {"labels": "full", "equal": "seconds", "flip": 0.0},
        {"equal": "seconds", "annotators": "0,.2", "flip": 0.0},
        {"replay": "x.jsonl", "flip": 0.0, "delay": 0, "equal": "seconds"},
    ):
        experiment = build_experiment(tmp_path, feedback=feedback)
        assert Experiment.from_table(experiment.as_table(), name="x") == experiment


def test_full_labels_at_equal_cost_are_fewer(tmp_path):
    """13 or 14 batches of 2 verdicts buy 28 / log2(5) = 12.06 labels of five classes."""
    experiment = build_experiment(
        tmp_path, feedback={"labels": "full", "equal": "bits", "flip": 0.0, "error": 0.2}
    )
    result = run_experiment(experiment, out=tmp_path)
    assert result.total("n_asked") == 12
    assert result.extra["price"] == pytest.approx(log2(5))


def test_replayed_run_equals_the_recorded_one(tmp_path):
    log = str(tmp_path / "log.jsonl")
    run_experiment(build_experiment(tmp_path, feedback={"record": log}), out=tmp_path / "recorded")
    replayed = build_experiment(tmp_path, feedback={"replay": log, "flip": 0.0, "delay": 0})
    run_experiment(replayed, out=tmp_path / "replayed")
    one, two = (
        without_times(tmp_path / name / "trial-seed0.json") for name in ("recorded", "replayed")
    )
    for result in (one, two):
        del result["experiment"]["feedback"], result["environment"]["identity"]
    assert one == two


def test_replay_with_other_questions_is_refused(tmp_path):
    log = str(tmp_path / "log.jsonl")
    run_experiment(build_experiment(tmp_path, feedback={"record": log}), out=tmp_path)
    replayed = {"replay": log, "flip": 0.0, "delay": 0}
    for feedback, message in (
        (replayed | {"n_queries": 1}, "is not the one in the log"),
        (replayed | {"total": 20}, "question 20 in batch 11"),
        (replayed | {"n_queries": 3}, "is not the one in the log"),
    ):
        with pytest.raises(BittaError, match=message):
            run_experiment(
                build_experiment(tmp_path, name="again", feedback=feedback), out=tmp_path
            )
    lines = (tmp_path / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:4]))
    cut = replayed | {"replay": str(tmp_path / "cut.jsonl")}
    with pytest.raises(BittaError, match=r"cut\.jsonl.* 3 answers"):
        run_experiment(build_experiment(tmp_path, name="again", feedback=cut), out=tmp_path)


@pytest.mark.parametrize(
    "feedback",
    [
        {"record": "log.jsonl"},
        {"annotators": "0,.3", "flip": 0.0},
        {"labels": "full", "error": 0.3, "flip": 0.0, "equal": "seconds"},
    ],
)
def test_stopped_run_continues_with_its_annotators(tmp_path, monkeypatch, feedback):
    logs, results = [], []
    for name, stops in (("whole", 0), ("parts", 3)):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        experiment = build_experiment(tmp_path, feedback=feedback)
        for _ in range(stops):
            with pytest.raises(RunStopped):
                run_experiment(experiment, out=folder, resume=True, should_stop=lambda: True)
        run_experiment(experiment, out=folder, resume=True)
        results.append(without_times(folder / "trial-seed0.json"))
        logs.append([path.read_bytes() for path in folder.glob("*.jsonl")])
    assert results[0] == results[1]
    assert logs[0] == logs[1]
    assert len(logs[0]) == ("record" in feedback)


def test_restarted_run_replaces_its_own_log_only(tmp_path):
    log = tmp_path / "log.jsonl"
    experiment = build_experiment(tmp_path, feedback={"record": str(log)})
    with pytest.raises(RunStopped):
        run_experiment(experiment, out=tmp_path, should_stop=lambda: True)
    run_experiment(experiment, out=tmp_path)
    assert FeedbackReplay(log).path == log
    other = build_experiment(tmp_path, name="other", feedback={"record": str(log)})
    with pytest.raises(BittaError, match=r"log\.jsonl"):
        run_experiment(other, out=tmp_path)


@pytest.mark.parametrize("kind", [FeedbackConfig, ForgettingConfig])
def test_every_setting_is_in_the_docs(kind):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "run-experiments.md").read_text()
    for setting in describe_settings(kind):
        default = '""' if setting.default == "" else setting.default
        assert f"| `{setting.name}` | {default} | {setting.meaning} |" in page
