"""Fine-tuning that is kept: stopped, gone on with, shared by runs that begin with the same."""

from functools import partial
from statistics import fmean

import pytest

from bitta import testing
from bitta.bench.experiment import Experiment
from bitta.bench.locks import alone
from bitta.bench.runner import Stopped, run
from bitta.bench.toml import read_toml
from bitta.bench.tunings import Tuning
from bitta.cli.main import main
from bitta.errors import BittaError
from bitta.statefile import load_state
from small_experiment import without_times, write_experiment

# 30 samples in batches of 8: 4 an epoch, 12 in all.
TWELVE = {"epochs": 3, "n_samples": 30, "batch_size": 8, "lr": 0.1, "momentum": 0.9}


@pytest.fixture
def tuned(tmp_path):
    """Run a small experiment with [enhanced]; the batches that it was told of, and their losses."""
    table = read_toml(write_experiment(tmp_path))
    table |= {"method": {"name": "bn_stats"}, "feedback": {"n_queries": 0}, "enhanced": TWELVE}

    def run_it(out, *, stop_after=None, options=None, **tables):
        told = []
        experiment = Experiment.of(table | tables, name="trial")
        options = {
            "on_tuning": lambda done, _, loss: told.append((done, loss)),
            "should_stop": lambda: bool(told) and told[-1][0] == stop_after,
        } | (options or {})
        run(experiment, out=tmp_path / out, resume=True, **options)
        return told

    return run_it


@pytest.fixture
def kept(tmp_path):
    """What lies in the folder of a run's tunings."""
    return lambda out: sorted((tmp_path / out / "tuned").iterdir())


@pytest.fixture
def result(tmp_path):
    """The result of a run, without times."""
    return lambda out, name="trial": without_times(tmp_path / out / f"{name}-seed0.json")


def test_stopped_within_an_epoch_at_its_end_and_in_the_last_it_goes_on_to_the_same(
    tuned, result, kept
):
    for stop in (3, 8, 10):
        with pytest.raises(Stopped, match="stopped after batch 0 of 14"):
            tuned("parts", stop_after=stop)
    assert [done for done, _ in tuned("parts")] == [11, 12]
    whole = tuned("whole")
    assert [done for done, _ in whole] == list(range(1, 13))
    assert result("parts") == result("whole")
    assert result("whole")["extra"]["enhanced"]["loss"] == fmean(loss for _, loss in whole[-4:])
    assert len(kept("parts")) == 1  # no locks, no drafts


def test_seconds_are_those_of_all_lives(tuned, kept):
    with pytest.raises(Stopped):
        tuned("parts", stop_after=3)
    [file] = kept("parts")
    spent = load_state(file)["seconds"]
    assert Tuning(file).seconds > spent > 0


def test_a_kill_costs_what_was_done_since_the_last_writing(tuned, result, monkeypatch):
    def dies(told, done, *_):
        told.append(done)
        if done == 5:
            monkeypatch.setattr(Tuning, "write", lambda *_: None)  # as if there were no time
            raise KeyboardInterrupt

    told = []
    with pytest.raises(KeyboardInterrupt):
        tuned("parts", options={"checkpoint_seconds": 0, "on_tuning": partial(dies, told)})
    monkeypatch.undo()
    assert [done for done, _ in tuned("parts")] == list(range(5, 13))
    tuned("whole")
    assert result("parts") == result("whole")


@pytest.mark.parametrize(("seconds", "written"), [(0, 13), (600, 1)])
def test_it_is_written_when_it_is_due_and_at_its_end(tuned, monkeypatch, seconds, written):
    times = []
    monkeypatch.setattr("bitta.bench.tunings.save_state", lambda *_: times.append(1))
    tuned("out", options={"checkpoint_seconds": seconds})
    assert len(times) == written


def test_methods_that_begin_with_the_same_model_share_it(tuned, result, monkeypatch):
    tuned("all")
    sar = {"method": {"name": "sar"}, "name": "sar"}
    with monkeypatch.context() as patched:
        patched.setattr("bitta.bench.enhanced._drawn", lambda *_: pytest.fail("drawn again"))
        assert tuned("all", **sar) == []
    assert len(tuned("alone", **sar)) == 12
    assert result("all", "sar") == result("alone", "sar")


@pytest.mark.parametrize(
    "changed",
    [
        {"feedback": {"n_queries": 2}},
        {"feedback": {"n_queries": 0, "delay": 3, "answer_every": 2}},
        {"forgetting": {"n_samples": 0}},
    ],
)
def test_what_does_not_bear_on_it_makes_no_other(tuned, changed):
    tuned("out")
    assert tuned("out", name="second", **changed) == []


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"seed": 1}, {}),
        ({"enhanced": TWELVE | {"lr": 0.2}}, {}),
        ({"enhanced": TWELVE | {"n_samples": 29}}, {}),
        ({"feedback": {"n_queries": 0, "flip": 0.5}}, {}),
        ({"feedback": {"n_queries": 0, "labels": "full"}}, {}),
        ({}, {"precision": "bfloat16"}),
    ],
)
def test_what_bears_on_it_makes_another(tuned, kept, changed, options):
    tuned("out")
    assert tuned("out", name="second", options=options, **changed)
    assert len(kept("out")) == 2


@pytest.mark.parametrize("part", ["code", "torch"])
def test_other_code_and_another_torch_make_another(tuned, monkeypatch, part):
    tuned("out")
    if part == "code":
        monkeypatch.setattr("bitta.results.code_hash", lambda: "other")
    else:
        monkeypatch.setattr("torch.__version__", "0.1")
    assert tuned("out", name="second")


def test_a_model_that_is_frozen_elsewhere_begins_another(tuned, result, monkeypatch):
    original = testing.toy_classifier

    def frozen(*, first):
        model = original()
        parameters = list(model.parameters())
        for parameter in parameters[:first]:
            parameter.requires_grad_(False)
        return model

    monkeypatch.setattr(testing, "toy_classifier", partial(frozen, first=2))
    tuned("out")
    monkeypatch.setattr(testing, "toy_classifier", partial(frozen, first=4))
    assert tuned("out", name="second")
    tuned("alone", name="second")
    assert result("out", "second") == result("alone", "second")


def test_a_run_waits_for_the_one_that_fine_tunes(tuned, kept):
    tuned("out")
    [file] = kept("out")
    waited = []
    with alone(file, wait=pytest.fail), pytest.raises(Stopped):
        tuned(
            "out", name="second",
            options={"on_wait": partial(waited.append, 1), "should_stop": lambda: len(waited) == 3},
        )  # fmt: skip
    assert len(waited) == 3


def test_a_damaged_file_is_named_with_what_to_do(tuned, kept):
    tuned("out")
    [file] = kept("out")
    file.write_bytes(b"half a file")
    with pytest.raises(BittaError, match=rf"{file.name}.*Delete that file, and it is fine-tuned"):
        tuned("out", name="second")


def test_a_disk_that_is_full_costs_the_file_and_not_the_run(tuned, result, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    tuned("whole")
    monkeypatch.setattr("bitta.bench.tunings.save_state", full)
    with pytest.warns(UserWarning, match=r"\(No space left on device\): fine-tuning goes on"):
        tuned("out", options={"checkpoint_seconds": 0})
    assert result("out") == result("whole")
    with pytest.warns(UserWarning, match="not kept"), pytest.raises(Stopped):
        tuned("stopped", stop_after=3)


def test_a_folder_that_cannot_be_one_is_refused_before_the_work(tuned, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tuned").write_text("a file")
    with pytest.raises(BittaError, match="tuned' cannot be written to"):
        tuned("out")


def test_two_processes_of_a_sweep_fine_tune_once(tmp_path, capsys):
    path = write_experiment(tmp_path)
    sweep = '[enhanced]\nepochs = 40\n[sweep]\nseeds = [0]\n"method.name" = ["tent", "sar"]\n'
    path.write_text(path.read_text().replace("restore = 0.05\n", "") + sweep)
    command = ["sweep", str(path), "--jobs"]
    assert main([*command, "2", "--out", str(tmp_path / "two")]) == 0
    assert main([*command, "1", "--out", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.count("2 runs: 2 done, 0 failed") == 2
    for name in ("trial-tent-seed0.json", "trial-sar-seed0.json"):
        assert without_times(tmp_path / "two" / name) == without_times(tmp_path / "one" / name)
    assert len(list((tmp_path / "two" / "tuned").iterdir())) == 1
