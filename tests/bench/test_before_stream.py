"""Tests of the preparation before the stream, and of the files of prepared models."""

from functools import partial

import pytest

from bitta.bench.before_stream import PreparationProgress
from bitta.bench.experiment import Experiment, read_toml
from bitta.bench.run_files import file_lock
from bitta.bench.runner import RunStopped
from bitta.cli.main import main
from bitta.errors import BittaError
from bitta.statefile import load_state
from small_experiment import run_experiment, without_times, write_experiment

NOISE = {"factory": "small_experiment:AddNoise", "n_batches": 4, "scale": 0.1}


@pytest.fixture
def table(tmp_path):
    """Table of a small experiment with a preparation."""
    table = read_toml(write_experiment(tmp_path))
    return table | {"method": {"name": "bn_stats"}, "feedback": {"n_queries": 0}} | {
        "before_stream": NOISE
    }  # fmt: skip


@pytest.fixture
def prepare(table, tmp_path):
    """Return a function that runs the experiment and returns the reported batch numbers."""

    def run(out, *, stop_after=None, options=None, **tables):
        reported = []
        experiment = Experiment.from_table(table | tables, name="trial")
        defaults = {
            "on_preparation": lambda done, *_: reported.append(done),
            "should_stop": lambda: bool(reported) and reported[-1] == stop_after,
        }
        run_experiment(experiment, out=tmp_path / out, resume=True, **(defaults | (options or {})))
        return reported

    return run


@pytest.fixture
def files(tmp_path):
    """Return a function that lists the files of prepared models."""
    return lambda out: sorted((tmp_path / out / "before-stream").iterdir())


@pytest.fixture
def result(tmp_path):
    """Return a function that reads the result of a run, without times."""
    return lambda out, name="trial": without_times(tmp_path / out / f"{name}-seed0.json")


def test_run_starts_from_the_prepared_model_and_records_it(prepare, result, table, tmp_path):
    assert prepare("out") == [1, 2, 3, 4]
    prepared = result("out")
    assert prepared["extra"]["before_stream"] == {"n_batches": 4}
    assert prepared["experiment"]["before_stream"] == NOISE
    del table["before_stream"]
    run_experiment(Experiment.from_table(table, name="trial"), out=tmp_path / "plain")
    plain = result("plain")
    assert "before_stream" not in plain["experiment"]
    assert "before_stream" not in plain["extra"]
    assert plain["final_weights"] != prepared["final_weights"]
    assert plain["environment"]["source_weights"] == prepared["environment"]["source_weights"]


def test_stopped_preparation_continues_to_the_same_result(prepare, result, files):
    for stop in (1, 3):
        with pytest.raises(RunStopped, match="stopped after batch 0 of 14"):
            prepare("parts", stop_after=stop)
    assert prepare("parts") == [4]
    prepare("whole")
    assert result("parts") == result("whole")
    assert len(files("parts")) == 1  # no locks, no drafts


def test_seconds_are_those_of_all_processes(prepare, files):
    with pytest.raises(RunStopped):
        prepare("parts", stop_after=3)
    [file] = files("parts")
    saved = load_state(file)
    assert PreparationProgress(file, saved=saved).seconds > saved["seconds"] > 0


@pytest.mark.parametrize(("seconds", "n_saves"), [(0, 5), (600, 1)])
def test_progress_is_saved_when_due_and_at_the_end(prepare, monkeypatch, seconds, n_saves):
    saves = []
    monkeypatch.setattr("bitta.bench.before_stream.save_state", lambda *_: saves.append(1))
    prepare("out", options={"checkpoint_seconds": seconds})
    assert len(saves) == n_saves


def test_methods_that_start_from_the_same_prepared_model_share_it(prepare, result):
    prepare("shared")
    sar = {"method": {"name": "sar"}, "name": "sar"}
    assert prepare("shared", **sar) == []
    assert len(prepare("alone", **sar)) == 4
    assert result("shared", "sar") == result("alone", "sar")


@pytest.mark.parametrize(
    "changed",
    [{"feedback": {"n_queries": 2, "delay": 3}}, {"forgetting": {"n_samples": 0}}],
)
def test_settings_outside_of_the_identity_reuse_the_prepared_model(prepare, changed):
    prepare("out")
    assert prepare("out", name="second", **changed) == []


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"seed": 1}, {}),
        ({"before_stream": NOISE | {"scale": 0.2}}, {}),
        ({"feedback": {"n_queries": 0, "labels": "full"}}, {}),
        ({}, {"precision": "bfloat16"}),
    ],
)
def test_settings_in_the_identity_make_another_model(prepare, files, changed, options):
    prepare("out")
    assert prepare("out", name="second", options=options, **changed)
    assert len(files("out")) == 2


@pytest.mark.parametrize("name", ["bitta.results.NUMERICS_VERSION", "torch.__version__"])
def test_another_numerics_version_or_torch_makes_another_model(prepare, monkeypatch, name):
    prepare("out")
    monkeypatch.setattr(name, "0.1")
    assert prepare("out", name="second")


def test_run_waits_while_another_process_prepares_the_model(prepare, files):
    prepare("out")
    [file] = files("out")
    waits = []
    with file_lock(file, on_wait=pytest.fail), pytest.raises(RunStopped):
        prepare(
            "out", name="second",
            options={"on_wait": partial(waits.append, 1), "should_stop": lambda: len(waits) == 3},
        )  # fmt: skip
    assert len(waits) == 3


def test_damaged_file_is_named_with_advice(prepare, files):
    prepare("out")
    [file] = files("out")
    file.write_bytes(b"half a file")
    with pytest.raises(BittaError, match=file.name):
        prepare("out", name="second")


def test_run_succeeds_without_its_file_on_a_full_disk(prepare, result, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    prepare("whole")
    monkeypatch.setattr("bitta.bench.before_stream.save_state", fail)
    with pytest.warns(UserWarning, match="No space left on device"):
        prepare("out", options={"checkpoint_seconds": 0})
    assert result("out") == result("whole")


def test_unusable_folder_is_refused_before_the_work(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "before-stream").write_text("a file")
    with pytest.raises(BittaError, match="before-stream"):
        prepare("out")


def test_errors_of_the_method_are_raised_before_the_preparation(prepare, table):
    batches = []
    with pytest.raises(BittaError, match="nowhere"):
        prepare(
            "out",
            method={"name": "bn_stats", "sites": ["nowhere"]},
            options={"on_preparation": lambda *_: batches.append(1)},
        )
    assert not batches
    with pytest.raises(BittaError, match=r"owttt .*source statistics"):
        Experiment.from_table(
            table | {"method": {"name": "owttt", "source_statistics": "x"}}, name="trial"
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "before_stream.factory is None"),
        ({"factory": "no_such_module:Thing"}, "'no_such_module:Thing' cannot be loaded"),
        ({"factory": "bitta.testing:toy_classifier"}, "BeforeStream"),
        (NOISE | {"n_batch": 1}, "unknown setting 'n_batch' of [before_stream]"),
        (NOISE | {"n_batches": "4"}, "n_batches is '4'"),
    ],
)
def test_invalid_before_stream_table_is_refused(table, given, message):
    with pytest.raises(BittaError) as error:
        Experiment.from_table(table | {"before_stream": given}, name="trial")
    assert message in str(error.value)


def test_older_results_without_fine_tuning_match(table):
    del table["before_stream"]
    experiment = Experiment.from_table(table, name="trial")
    older = {"n_samples": 0, "epochs": 150, "lr": 0.001, "batch_size": 64, "momentum": 0.0}
    assert experiment.matches(experiment.as_table() | {"enhanced": older})
    assert not experiment.matches(experiment.as_table() | {"enhanced": older | {"n_samples": -1}})


@pytest.mark.full
def test_two_processes_of_a_sweep_prepare_one_model(tmp_path, capsys):
    path = write_experiment(tmp_path)
    sweep = (
        '[before_stream]\nfactory = "small_experiment:AddNoise"\nn_batches = 40\n'
        '[sweep]\nseeds = [0]\n"method.name" = ["tent", "sar"]\n'
    )
    path.write_text(path.read_text().replace("restore = 0.05\n", "") + sweep)
    command = ["sweep", str(path), "--jobs"]
    assert main([*command, "2", "--out", str(tmp_path / "two")]) == 0
    assert main([*command, "1", "--out", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.count("2 runs: 2 done, 0 failed") == 2
    for name in ("trial-tent-seed0.json", "trial-sar-seed0.json"):
        assert without_times(tmp_path / "two" / name) == without_times(tmp_path / "one" / name)
    assert len(list((tmp_path / "two" / "before-stream").iterdir())) == 1
