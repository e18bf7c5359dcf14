"""Tests of the runner: recorded values, resuming, and kills."""

import random
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from bitta.bench.experiment import Experiment, read_toml
from bitta.bench.prefetch import Prefetch
from bitta.bench.runner import RunStopped
from bitta.errors import InputError
from bitta.results import RunResult
from bitta.session import Session
from bitta.statefile import load_state
from bitta.testing import toy_classifier
from small_experiment import run_experiment, without_times, write_experiment


def test_run_records_accuracy_questions_passes_and_environment(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    result = run_experiment(experiment, out=tmp_path)
    read = RunResult.load(tmp_path / "trial-seed0.json")
    assert read.accuracy == result.accuracy
    assert read.protocol.startswith("100 samples of data.npz, continual day > night")
    assert sum(step.n for step in read.steps) == 100
    assert list(read.accuracy_by_domain) == ["day", "night"]
    assert read.total("n_asked") == 2 * len(read.steps)
    assert read.total("n_answered") == 2 * (len(read.steps) - 1)
    assert read.forwards > read.backwards > 0
    assert {"torch", "source_weights", "threads"} <= read.environment.keys()
    assert not list(tmp_path.glob("*.safetensors"))


def test_agreement_is_measured_if_the_policy_selects_questions(tmp_path):
    table = Experiment.read(write_experiment(tmp_path)).as_table()
    chosen = run_experiment(Experiment.from_table(table, name="x"), out=tmp_path / "bitta")
    assert chosen.total("n_measured") == chosen.total("n") == 100
    assert 0 < chosen.total("n_agreeing_correct") <= chosen.total("n_correct")
    assert 0 < chosen.total("n_agreeing") < 100
    assert 0 < chosen.brier < 2
    policy = chosen.policy_reliability
    assert sum(policy.count) == 100
    assert sum(policy.correct) >= chosen.total("n_agreeing_correct")
    assert policy.count != chosen.reliability.count, (
        "the policy has the confidence of the served labels"
    )
    assert list(chosen.spreads) == ["day", "night"]
    other = table | {"method": {"name": "bitta", "selection": "random"}}
    unmeasured = run_experiment(Experiment.from_table(other, name="x"), out=tmp_path / "random")
    assert unmeasured.agreement.rate is None
    assert sum(unmeasured.policy_reliability.count) == 0


def test_confidence_of_served_labels_and_policy_is_recorded(tmp_path):
    """The sums over batches equal the sums over the bins of the whole stream."""
    table = Experiment.read(write_experiment(tmp_path)).as_table()
    chosen = run_experiment(Experiment.from_table(table, name="x"), out=tmp_path / "bitta")
    assert sum(chosen.reliability.confidence) == pytest.approx(chosen.total("confidence"))
    policy = sum(chosen.policy_reliability.confidence)
    assert policy == pytest.approx(chosen.total("policy_confidence"))
    assert all(step.n / 5 < step.confidence < step.n for step in chosen.steps)
    other = table | {"method": {"name": "bitta", "selection": "random"}}
    unmeasured = run_experiment(Experiment.from_table(other, name="x"), out=tmp_path / "random")
    assert unmeasured.total("confidence") > 0
    assert {step.policy_confidence for step in unmeasured.steps} == {None}


def test_all_methods_get_the_same_stream(tmp_path):
    table = Experiment.read(write_experiment(tmp_path)).as_table()
    counts = []
    for name in ("source", "bitta"):
        method = {"name": name}
        result = run_experiment(
            Experiment.from_table(table | {"method": method}, name="x"), out=tmp_path / name
        )
        counts.append([(step.domain, step.n) for step in result.steps])
    assert counts[0] == counts[1]


def test_resumed_run_has_the_result_of_an_uninterrupted_one(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    run_experiment(experiment, out=tmp_path / "whole")
    with pytest.raises(RunStopped, match="stopped after batch 1 of 14"):
        run_experiment(experiment, out=tmp_path / "parts", should_stop=lambda: True)
    run_experiment(experiment, out=tmp_path / "parts", resume=True)
    name = "trial-seed0.json"
    assert without_times(tmp_path / "whole" / name) == without_times(tmp_path / "parts" / name)


def test_result_divides_the_time_into_parts(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    seconds = run_experiment(experiment, out=tmp_path).extra["seconds"]
    assert list(seconds) == ["start_up", "making", "waiting", "learning", "capture", "total"]
    assert seconds["capture"] == 0
    assert min(seconds[name] for name in ("start_up", "making", "waiting", "learning")) > 0
    read = RunResult.load(tmp_path / "trial-seed0.json")
    assert read.extra["seconds"] == seconds
    assert seconds["learning"] == pytest.approx(sum(step.seconds for step in read.steps))
    parts = seconds["start_up"] + seconds["waiting"] + seconds["learning"]
    assert parts <= seconds["total"]
    assert seconds["waiting"] >= seconds["making"]  # on a CPU making images does not overlap


def test_seconds_of_all_processes_are_added(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    earlier = []
    for _ in range(3):
        with pytest.raises(RunStopped):
            run_experiment(experiment, out=tmp_path, resume=True, should_stop=lambda: True)
        earlier.append(load_state(tmp_path / "trial-seed0.safetensors")["seconds"])
    result = run_experiment(experiment, out=tmp_path, resume=True)
    by_process = [*earlier, result.extra["seconds"]]
    for before, after in pairwise(by_process):
        assert all(after[name] > before[name] for name in before if name != "capture")
    assert by_process[-1]["learning"] == pytest.approx(sum(step.seconds for step in result.steps))


def test_execution_path_is_reported_before_the_first_batch_and_recorded(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    events = []
    result = run_experiment(
        experiment,
        out=tmp_path,
        on_start=events.append,
        on_step=lambda done, *_: events.append(done),
    )
    assert events == ["eager, float32, channels_last", *range(1, 15)]
    assert result.extra["execution"] == "eager, float32, channels_last"


def test_run_may_be_resumed_on_another_execution_path(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    for precision in ("float32", "bfloat16", "bfloat16"):
        with pytest.raises(RunStopped):
            run_experiment(
                experiment,
                out=tmp_path,
                resume=True,
                eager=True,
                precision=precision,
                should_stop=lambda: True,
            )
    result = run_experiment(experiment, out=tmp_path, resume=True)
    assert result.extra["execution"] == (
        "eager, float32, channels_last; then eager, bfloat16, channels_last; "
        "then eager, float32, channels_last"
    )


@pytest.mark.parametrize("should_stop", [True, False])
def test_no_thread_is_left_after_a_run(tmp_path, monkeypatch, should_stop):
    make = Prefetch.__init__
    monkeypatch.setattr(
        Prefetch, "__init__", lambda self, *given, **named: make(self, *given, **named, ahead=True)
    )
    experiment = Experiment.read(write_experiment(tmp_path))
    before = set(threading.enumerate())
    seen = set()
    try:
        run_experiment(
            experiment,
            out=tmp_path,
            on_step=lambda *_: seen.update(threading.enumerate()),
            should_stop=lambda: should_stop,
        )
    except RunStopped:
        assert should_stop
    assert seen - before
    assert not set(threading.enumerate()) - before


def test_resume_does_not_repeat_a_finished_run(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    run_experiment(experiment, out=tmp_path)
    steps = []
    again = run_experiment(
        experiment, out=tmp_path, resume=True, on_step=lambda *step: steps.append(step)
    )
    assert not steps
    assert again.accuracy == RunResult.load(tmp_path / "trial-seed0.json").accuracy
    run_experiment(experiment, out=tmp_path, on_step=lambda *step: steps.append(step))
    assert len(steps) == 14


def test_result_with_other_settings_is_not_overwritten(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    run_experiment(experiment, out=tmp_path)
    other = Experiment.from_table(experiment.as_table() | {"method": {"name": "tent"}}, name="x")
    with pytest.raises(InputError, match="other settings"):
        run_experiment(other, out=tmp_path)
    assert (
        run_experiment(other, out=tmp_path, overwrite=True).experiment["method"]["name"] == "tent"
    )


def test_checkpoint_with_other_settings_is_refused(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    with pytest.raises(RunStopped):
        run_experiment(experiment, out=tmp_path, should_stop=lambda: True)
    other = Experiment.from_table(
        experiment.as_table() | {"method": {"name": "bitta", "lr": 0.5}}, name="x"
    )
    with pytest.raises(InputError, match="another experiment;"):
        run_experiment(other, out=tmp_path, resume=True)


def test_checkpoint_with_other_data_is_refused(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    with pytest.raises(RunStopped):
        run_experiment(experiment, out=tmp_path, should_stop=lambda: True)
    write_experiment(tmp_path, labels=np.zeros(100, int))
    with pytest.raises(InputError, match="another stream;"):
        run_experiment(experiment, out=tmp_path, resume=True)


def test_saved_session_is_refused_as_a_checkpoint(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    Session(toy_classifier()).save(tmp_path / "trial-seed0.safetensors")
    with pytest.raises(InputError, match="another experiment and stream and"):
        run_experiment(experiment, out=tmp_path, resume=True)


@pytest.mark.full
def test_ten_random_kills_change_only_times(tmp_path, monkeypatch, forker):
    """Kill the run with SIGKILL at random moments, and resume it until it is finished.

    The uninterrupted run and the last process each have their own interpreter.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in the forked processes
    path = write_experiment(tmp_path, n=800)
    command = ["run", str(path), "--checkpoint-seconds", "0", "--out"]
    parts, random_source = tmp_path / "parts", random.Random(5)
    checkpoint, result = parts / "trial-seed0.safetensors", parts / "trial-seed0.json"
    for _ in range(10):
        seen = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = forker.start([*command, str(parts), "--resume"], tmp_path / "log")
        while not checkpoint.exists() or checkpoint.stat().st_mtime_ns == seen:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        time.sleep(
            random_source.uniform(0, 0.06)
        )  # a batch takes 0.03 s, and more on a slow machine
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not result.exists()
    for out, *options in ((tmp_path / "whole",), (parts, "--resume")):
        subprocess.run(
            [sys.executable, "-m", "bitta.cli.main", *command, str(out), *options],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    assert without_times(result) == without_times(tmp_path / "whole" / "trial-seed0.json")


def changed(tmp_path, **stream):
    table = read_toml(write_experiment(tmp_path))
    table["stream"] |= stream
    return Experiment.from_table(table, name="trial")


def test_single_samples_ask_once_per_window(tmp_path):
    """100 samples have 12 full windows of 8, with two questions each."""
    result = run_experiment(changed(tmp_path, batch_size=1, window=8), out=tmp_path / "out")
    assert len(result.steps) == 100
    asked = [number for number, step in enumerate(result.steps) if step.n_asked]
    assert asked == list(range(7, 96, 8))
    assert result.total("n_asked") == 24
    assert result.protocol.endswith("batch 1, seed 0, window 8")


def test_order_single_resets_before_each_domain(tmp_path, monkeypatch):
    resets = []
    reset = Session.reset
    monkeypatch.setattr(
        Session, "reset", lambda session: (resets.append(session.n_steps), reset(session))
    )
    result = run_experiment(changed(tmp_path, order="single"), out=tmp_path / "out")
    assert resets == [7]  # day has 50 samples in 7 batches
    assert "reset before each" in result.protocol


def test_model_with_nan_outputs_has_a_result_with_accuracy_zero(tmp_path):
    table = read_toml(write_experiment(tmp_path))
    table["model"] = {"factory": "small_experiment:broken_classifier"}
    table["method"], table["feedback"] = {"name": "tent"}, {"n_queries": 0}
    result = run_experiment(Experiment.from_table(table, name="trial"), out=tmp_path)
    assert RunResult.load(tmp_path / "trial-seed0.json").accuracy == result.accuracy == 0
    assert None in result.steps[-1].losses.values()
    assert {step.confidence for step in result.steps} == {0.0}


def test_finished_result_with_other_data_is_refused(tmp_path):
    path = write_experiment(tmp_path)
    run_experiment(Experiment.read(path), out=tmp_path)
    run_experiment(Experiment.read(path), out=tmp_path, resume=True)
    write_experiment(tmp_path, inputs=np.zeros((100, 3, 8, 8), np.float32))
    with pytest.raises(InputError, match="another stream"):
        run_experiment(Experiment.read(path), out=tmp_path, resume=True)
