"""Tests of sweeps: jobs, remaining time, existing files, crashes, kills and stops."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from bitta.bench.experiment import Experiment
from bitta.bench.run_files import ExistingRun, check_origin, file_lock
from bitta.bench.runner import RunOptions, RunStopped
from bitta.bench.sweep import RunStatus, SweepProgress, check_existing_runs
from bitta.bench.sweep_grid import Job, read_jobs
from bitta.bench.sweep_worker import SweepOptions, format_job
from bitta.cli.main import main
from bitta.errors import InputError, SettingError, UnreadableFileError
from bitta.results import RunResult
from bitta.statefile import load_state
from bitta.version import NUMERICS_VERSION
from small_experiment import run_experiment, without_times, write_experiment

EXPERIMENTS = sorted((Path(__file__).parents[2] / "reproduction" / "experiments").rglob("*.toml"))
SHORT = '[stream]\nkind = "digits"\n[model]\nweights = "w"\n[method]\nname = "{method}"\n'


def write_short(folder, name="trial", method="bitta", sweep=""):
    path = folder / f"{name}.toml"
    path.write_text(SHORT.format(method=method) + sweep)
    return path


def sweep_options(out, **given):
    return SweepOptions(run=RunOptions(out=Path(out)), **given)


def labels(*paths, **options):
    return [job.label for job in read_jobs(paths, **options)]


# Jobs


def test_jobs_are_all_combinations_in_the_order_of_the_table(tmp_path):
    path = write_short(
        tmp_path,
        sweep='[sweep]\nseeds = [1, 0]\n"method.lr" = [1e-4, 3e-4]\n"feedback.n_queries" = [3]\n',
    )
    assert labels(path) == [
        "trial-lr0.0001-n_queries3-seed1",
        "trial-lr0.0001-n_queries3-seed0",
        "trial-lr0.0003-n_queries3-seed1",
        "trial-lr0.0003-n_queries3-seed0",
    ]
    last = read_jobs([path])[-1].experiment
    assert (last.name, last.seed) == ("trial-lr0.0003-n_queries3", 0)
    assert (last.settings.lr, last.feedback.n_queries) == (3e-4, 3)


@pytest.mark.parametrize(
    ("sweep", "names"),
    [
        ('"method.name" = ["tent", "source"]', ["x-tent", "x-source"]),
        ('"stream.order" = ["mixed"]', ["x-order-mixed"]),
        ("stream.n_samples = [8]\nforgetting.n_samples = [9]",
         ["x-stream.n_samples8-forgetting.n_samples9"]),
        ('"stream.sequence" = ["red, green"]', ["x-sequence-red_green"]),
        ('"model.weights" = ["a/b.safetensors"]', ["x-weights-a_b.safetensors"]),
        ("method.decoupled = [true]", None),
    ],
)  # fmt: skip
def test_names_of_runs_hold_varied_settings_and_fit_files(tmp_path, sweep, names):
    path = write_short(tmp_path, name="x", sweep=f"[sweep]\n{sweep}\n")
    if names is None:
        with pytest.raises(SettingError, match=r"x\.toml: unknown setting 'decoupled'"):
            read_jobs([path])
        return
    assert [job.experiment.name for job in read_jobs([path])] == names


def test_folders_are_searched_in_order_and_no_file_is_read_twice(tmp_path):
    (tmp_path / "b").mkdir()
    first = write_short(tmp_path / "b", "second")
    write_short(tmp_path, "first", method="tent")
    assert labels(tmp_path) == ["second-seed0", "first-seed0"]  # b/second.toml, first.toml
    assert labels(tmp_path / "first.toml", tmp_path) == ["first-seed0", "second-seed0"]
    assert labels(first, first) == ["second-seed0"]


def test_seeds_settings_and_names_can_be_overridden(tmp_path):
    write_short(tmp_path, "a", sweep="[sweep]\nseeds = [5]\n")
    write_short(tmp_path, "b", method="tent")
    assert labels(tmp_path) == ["a-seed5", "b-seed0"]
    assert labels(tmp_path, seeds=[1, 2]) == ["a-seed1", "a-seed2", "b-seed1", "b-seed2"]
    assert labels(tmp_path, only="b") == ["b-seed0"]
    assert labels(tmp_path, only="*-seed5") == ["a-seed5"]
    changed = read_jobs([tmp_path], overrides=["method.lr=0.5", "sweep.feedback.flip=[0, 0.5]"])
    assert [job.experiment.feedback.flip for job in changed] == [0, 0.5, 0, 0.5]
    assert {job.experiment.settings.lr for job in changed} == {0.5}


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ('"method.lrr" = [1]', "unknown setting 'lrr' of method 'bitta'"),
        ('"metod.lr" = [1]', "unknown key 'metod.lr' of [sweep]"),
        ("seed = [1]", "unknown key 'seed' of [sweep]; did you mean 'seeds'?"),
        ('name = ["a"]', "unknown key 'name' of [sweep]"),
        ('"method.lr" = []', "[sweep] method.lr is []; allowed: a list"),
        ('"method.lr" = 1', "[sweep] method.lr is 1; allowed: a list"),
        ('"method.lr" = [[1]]', "[sweep] method.lr has [1]; allowed: numbers"),
        ('"method.lr" = [1]\nmethod.lr = [2]', "[sweep] has method.lr twice"),
        ("seeds = [0.5]", "[sweep] seeds is 0.5; allowed: a whole number"),
        ("seeds = [1, 1]", "'trial-seed1'"),
        ('"method.lr" = [1.0, 1.0]', "'trial-lr1.0-seed0'"),
        ('"model.weights" = ["a/b", "a,b"]', "'trial-weights-a_b-seed0'"),
        ('"feedback.n_queries" = [1]\n"feedback.record" = ["a.log"]\nseeds = [0, 1]',
         "feedback.record 'a.log'"),
        (f'"model.weights" = ["{"x" * 200}"]', "is too long"),
    ],
)  # fmt: skip
def test_invalid_sweep_table_is_refused(tmp_path, sweep, message):
    write_short(tmp_path, sweep=f"[sweep]\n{sweep}\n")
    with pytest.raises(SettingError) as error:
        read_jobs([tmp_path])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_two_files_with_one_name_are_refused_and_both_named(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_short(tmp_path / folder)
    with pytest.raises(SettingError, match=r"'trial-seed0' \(.*a/trial.toml and .*b/trial.toml\)"):
        read_jobs([tmp_path])


def test_empty_selection_of_runs_is_refused(tmp_path):
    with pytest.raises(InputError, match="no TOML file"):
        read_jobs([tmp_path])
    with pytest.raises(InputError, match=r"none\.toml"):
        read_jobs([tmp_path / "none.toml"])
    write_short(tmp_path)
    with pytest.raises(InputError, match=r"--only 'tent\*' .*: trial"):
        read_jobs([tmp_path], only="tent*")
    path = write_short(tmp_path, sweep='[sweep]\n"method.lr" = [1]\n')
    with pytest.raises(SettingError, match=r"\[sweep\] .*method\.lr"):
        read_jobs([path], overrides=["method.lr=2"])


@pytest.mark.full
def test_every_experiment_in_the_repository_equals_its_job_line():
    for path in EXPERIMENTS:
        for job in read_jobs([path]):
            line = json.loads(format_job(job.experiment, sweep_options("out")))["experiment"]
            assert Experiment.from_table(line, name="") == job.experiment


# Remaining time


def statuses(folder, *methods):
    for method in methods:
        write_short(folder, method, method=method)
    files = [folder / f"{method}.toml" for method in methods]
    return [RunStatus(job, folder / "log") for job in read_jobs(files)]


def test_remaining_time_uses_the_speed_of_each_method(tmp_path):
    """tent: 1 s per batch, 6 left; bitta: 3 s, 8 left; source, unknown: the mean, 2 s, 10 left."""
    tent, bitta, source = statuses(tmp_path, "tent", "bitta", "source")
    progress = SweepProgress([tent, bitta, source], n_workers=2)
    for run in (tent, bitta):
        run.begin()
    tent.record("batch", 1, 10, now=0.0)
    assert progress.seconds_left is None  # one report has no speed
    bitta.record("preparing", 1, 150, now=0.0)
    bitta.record("preparing", 9, 150, now=1.0)
    assert progress.seconds_left is None  # the speed of a preparation does not count
    tent.record("batch", 4, 10, now=3.0)
    bitta.record("batch", 1, 10, now=10.0)
    bitta.record("batch", 2, 10, now=13.0)
    assert progress.seconds_left == pytest.approx((6 + 24 + 20) / 2)
    tent.state = source.state = "done"
    assert progress.seconds_left == pytest.approx(24)  # one run cannot be shared
    bitta.state = "failed"
    assert progress.seconds_left is None


# Locks


def test_file_lock_is_exclusive_and_leaves_no_file(tmp_path):
    calls = []

    def give_up():
        calls.append(1)
        if len(calls) == 2:
            raise TimeoutError

    with file_lock(tmp_path / "x.json", on_wait=give_up):
        assert not calls
        with pytest.raises(TimeoutError), file_lock(tmp_path / "x.json", on_wait=give_up):
            pass
        with file_lock(tmp_path / "y.json", on_wait=give_up):
            pass
    assert not list(tmp_path.iterdir())
    with file_lock(tmp_path / "x.json", on_wait=give_up):
        assert len(calls) == 2


# Existing files


def test_result_carries_numerics_version_and_identity(tmp_path):
    table = Experiment.read(write_experiment(tmp_path, n=16)).as_table()
    one = run_experiment(Experiment.from_table(table, name=""), out=tmp_path / "a").environment
    again = run_experiment(Experiment.from_table(table, name=""), out=tmp_path / "b").environment
    other = run_experiment(
        Experiment.from_table(table | {"seed": 1}, name=""), out=tmp_path / "c"
    ).environment
    assert one["numerics_version"] == other["numerics_version"] == NUMERICS_VERSION
    assert "code" not in one
    assert one["identity"] == again["identity"] != other["identity"]
    assert len(one["identity"]) == 64


def make_outdated(result, *, with_hash=False):
    table = json.loads(result.read_text())
    environment = table["environment"]
    environment["numerics_version"] -= 1
    if with_hash:  # as in results from before the numerics version
        del environment["numerics_version"]
        environment["code"] = "0" * 64
    result.write_text(json.dumps(table))


@pytest.mark.parametrize("with_hash", [False, True])
def test_outdated_results_are_neither_accepted_nor_replaced_without_option(tmp_path, with_hash):
    experiment = Experiment.read(write_experiment(tmp_path))
    jobs = [Job(experiment, tmp_path)]
    run_experiment(experiment, out=tmp_path)
    check_existing_runs(jobs, sweep_options(tmp_path))
    make_outdated(tmp_path / "trial-seed0.json", with_hash=with_hash)
    with pytest.raises(InputError, match=r"'trial-seed0' .*numerics version.*--rerun .*--keep"):
        check_existing_runs(jobs, sweep_options(tmp_path))
    check_existing_runs(jobs, sweep_options(tmp_path, outdated="keep"))
    check_existing_runs(jobs, sweep_options(tmp_path, outdated="rerun"))


def test_checkpoint_of_another_numerics_version_is_refused(tmp_path, monkeypatch):
    experiment = Experiment.read(write_experiment(tmp_path))
    with monkeypatch.context() as older:
        older.setattr("bitta.results.NUMERICS_VERSION", NUMERICS_VERSION - 1)
        with pytest.raises(RunStopped):
            run_experiment(experiment, out=tmp_path, should_stop=lambda: True)
    assert ExistingRun.find(experiment, tmp_path).is_outdated
    with monkeypatch.context() as older:
        older.setattr("bitta.bench.run_files.NUMERICS_VERSION", NUMERICS_VERSION - 1)
        assert not ExistingRun.find(experiment, tmp_path).is_outdated
    with pytest.raises(InputError, match="another numerics_version"):
        run_experiment(experiment, out=tmp_path, resume=True)


def test_files_with_other_settings_are_refused(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    other = Experiment.from_table(experiment.as_table() | {"method": {"name": "tent"}}, name="")
    with pytest.raises(RunStopped):
        run_experiment(experiment, out=tmp_path, should_stop=lambda: True)
    with pytest.raises(InputError, match="checkpoint with other settings"):
        check_existing_runs([Job(other, tmp_path)], sweep_options(tmp_path))
    run_experiment(experiment, out=tmp_path)
    with pytest.raises(InputError, match="result with other settings"):
        check_existing_runs([Job(other, tmp_path)], sweep_options(tmp_path, outdated="rerun"))


def test_setting_missing_in_older_result_has_its_default(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path, n=16))
    result = run_experiment(experiment, out=tmp_path)
    method = dict(result.experiment["method"])
    del method["stream_memory"]
    older = replace(result, experiment={**result.experiment, "method": method})
    older.save(tmp_path / "trial-seed0.json")
    assert ExistingRun.find(experiment, tmp_path).result == older
    assert run_experiment(experiment, out=tmp_path, resume=True) == older
    changed = experiment.as_table() | {"method": {**method, "stream_memory": 4}}
    with pytest.raises(InputError, match="result with other settings"):
        ExistingRun.find(Experiment.from_table(changed, name=""), tmp_path)


@pytest.mark.parametrize("content", ["", '{"format": 2, "summary": ', "[]", '{"format": 2}'])
def test_unreadable_result_error_names_the_file_to_delete(tmp_path, content):
    experiment = Experiment.read(write_experiment(tmp_path))
    path = tmp_path / "trial-seed0.json"
    path.write_text(content)
    for act in (
        lambda: run_experiment(experiment, out=tmp_path),
        lambda: ExistingRun.find(experiment, tmp_path),
    ):
        with pytest.raises(UnreadableFileError) as error:
            act()
        assert repr(str(path)) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"no tensors at all", save({"x": torch.zeros(1)})])
def test_unreadable_checkpoint_error_names_the_file_to_delete(tmp_path, content):
    experiment = Experiment.read(write_experiment(tmp_path))
    path = tmp_path / "trial-seed0.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError) as error:
        ExistingRun.find(experiment, tmp_path)
    assert repr(str(path)) in str(error.value)
    with pytest.raises(UnreadableFileError, match=path.name):
        run_experiment(experiment, out=tmp_path, resume=True)


def test_result_with_another_format_is_refused(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    (tmp_path / "trial-seed0.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match="format 1"):
        check_existing_runs([Job(experiment, tmp_path)], sweep_options(tmp_path))


def test_result_with_other_data_or_weights_is_refused(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path, n=16))
    result = run_experiment(experiment, out=tmp_path)
    known = {}
    check_origin(experiment, result, tmp_path, known)
    (origin,) = known.values()
    others = {"stream": "another stream", "source_weights": "other source weights"}
    assert origin == {part: result.environment[part] for part in others}
    for part in origin:
        other = replace(result, environment=result.environment | {part: "other"})
        with pytest.raises(InputError, match=others[part]):
            check_origin(experiment, other, tmp_path, known)
    write_experiment(tmp_path, n=24)
    with pytest.raises(InputError, match="another stream"):
        check_origin(experiment, result, tmp_path, {})


# Processes

MODELS = """
import os, signal
from pathlib import Path
from bitta.testing import toy_classifier

def raises():
    raise RuntimeError("no such luck\\nat all")

def dies_once():
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return toy_classifier()
"""


@pytest.mark.full
def test_crash_stops_no_other_run_and_finished_runs_are_skipped(tmp_path, monkeypatch, capsys):
    """Two seeds succeed. Other runs have a model that raises, missing data, or a killed worker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("models_of_mine.py").write_text(MODELS)
    sound = write_experiment(tmp_path).read_text()
    Path("trial.toml").unlink()
    for name, text in {
        "1-raises": sound.replace("bitta.testing:toy_classifier", "models_of_mine:raises"),
        "2-missing": sound.replace("data.npz", "none.npz"),
        "3-dies": sound.replace("bitta.testing:toy_classifier", "models_of_mine:dies_once"),
        "4-sound": sound + "[sweep]\nseeds = [0, 1]\n",
    }.items():
        Path(f"{name}.toml").write_text(text)
    assert main(["sweep", ".", "--out", "out"]) == 1
    out = capsys.readouterr().out
    assert "\n5 runs: 3 done, 2 failed; " in out
    [raised] = [line for line in out.splitlines() if line.startswith("1-raises-seed0 failed")]
    assert "RuntimeError: no such luck" in raised
    assert "out/1-raises-seed0.log" in raised
    assert "\n2-missing-seed0 failed" in out
    log = Path("out/1-raises-seed0.log").read_text()
    assert log.count("Traceback") == 2  # tried twice
    assert Path("out/2-missing-seed0.log").read_text().count("none.npz") == 1
    finished = sorted(Path("out").glob("*.json"))
    assert [path.stem for path in finished] == ["3-dies-seed0", "4-sound-seed0", "4-sound-seed1"]
    assert sorted(path.suffix for path in Path("out").iterdir()) == [".json"] * 3 + [".log"] * 5
    times = [path.stat().st_mtime_ns for path in finished]
    assert main(["sweep", ".", "--out", "out", "--only", "4*"]) == 0
    assert "2 runs: 2 done (2 before), 0 failed" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in finished] == times


@pytest.mark.full
def test_unreadable_files_fail_only_their_own_runs(tmp_path, capsys):
    path = write_experiment(tmp_path)
    damaged = [tmp_path / "trial-seed0.json", tmp_path / "trial-seed1.safetensors"]
    for file in damaged:
        file.write_bytes(b"{")
    command = ["sweep", str(path), "--seeds", "0,1,2", "--out", str(tmp_path)]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "\n3 runs: 1 done, 2 failed; " in f"\n{out}"
    for file in damaged:
        assert f"{file.stem} failed: {str(file)!r} " in out
        assert file.read_bytes() == b"{"
        file.unlink()
    assert main(command) == 0
    assert "3 runs: 3 done (1 before), 0 failed; " in capsys.readouterr().out


@pytest.mark.full
def test_outdated_results_are_kept_or_replaced_by_option(tmp_path, capsys):
    path = write_experiment(tmp_path)
    result = tmp_path / "trial-seed0.json"
    whole = run_experiment(Experiment.read(path), out=tmp_path)
    make_outdated(result)
    before = result.read_bytes()
    command = ["sweep", str(path), "--out", str(tmp_path)]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "--rerun" in error
    assert error.count("\n") == 1
    assert main([*command, "--keep"]) == 0
    assert result.read_bytes() == before
    assert "1 run: 1 done (1 before), 0 failed" in capsys.readouterr().out
    assert main([*command, "--rerun"]) == 0
    again = RunResult.load(result)
    assert again.environment["numerics_version"] == NUMERICS_VERSION
    assert again.final_weights == whole.final_weights


def start_sweep(path, out, *options):
    command = [sys.executable, "-m", "bitta.cli.main", "sweep", str(path), "--out", str(out)]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def wait_until(condition, process=None, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, "the process ended too early"
        assert time.monotonic() < end, "the condition took too long"
        time.sleep(0.01)


def has_started(out):
    """Return a condition: a log names the execution path, just before the first batch."""
    return lambda: any("path:" in log.read_text() for log in out.glob("*.log"))


@pytest.mark.full
def test_ctrl_c_saves_every_run(tmp_path):
    path = write_experiment(tmp_path, n=4000)
    process = start_sweep(path, tmp_path, "--checkpoint-seconds", "1000")
    wait_until(has_started(tmp_path), process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "same command" in error
    assert (
        load_state(tmp_path / "trial-seed0.safetensors")["identity"]["numerics_version"]
        == NUMERICS_VERSION
    )
    assert not (tmp_path / "trial-seed0.json").exists()


@pytest.mark.full
def test_worker_saves_its_run_and_ends_if_the_sweep_is_killed(tmp_path):
    """The next regular checkpoint is a quarter of an hour away."""
    path = write_experiment(tmp_path, n=4000)
    process = start_sweep(path, tmp_path, "--checkpoint-seconds", "1000")
    wait_until(has_started(tmp_path), process)
    process.kill()
    process.communicate()
    with file_lock(tmp_path / "trial-seed0.json", on_wait=lambda: None):
        assert (tmp_path / "trial-seed0.safetensors").exists()
        assert "stopped after batch" in (tmp_path / "trial-seed0.log").read_text()


@pytest.mark.full
def test_results_are_the_same_after_five_kills_of_a_sweep(tmp_path, monkeypatch, forker):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # with one job or two
    path = write_experiment(tmp_path)
    path.write_text(path.read_text().replace("restore", "epochs = 1\nrestore"))
    varied = 'seeds = [0, 1, 2]\n"method.lr" = [1e-4, 1e-3]\n"feedback.n_queries" = [1, 3]\n'
    path.write_text(f"{path.read_text()}[sweep]\n{varied}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["sweep", str(path), "--out", str(whole)]) == 0
    generator, n_killed = random.Random(7), 0
    command = ["sweep", str(path), "--out", str(parts), "--checkpoint-seconds", "0.1", "--jobs"]
    for kill in range(5):
        seen = modification_times(parts)
        process = forker.start([*command, "2" if kill == 4 else "1"], tmp_path / "log")
        wait_until(lambda seen=seen: modification_times(parts) != seen, process)
        wait_until(lambda kill=kill: len(list(parts.glob("*.json"))) >= 2 * kill, process)
        time.sleep(generator.uniform(0, 0.2))
        assert process.poll() is None, "the sweep ended before it could be killed"
        workers = children(process.pid) if kill % 2 else []
        process.send_signal(signal.SIGKILL)
        for worker in workers:
            with suppress(ProcessLookupError):  # the worker has noticed that its sweep has ended
                os.kill(worker, signal.SIGKILL)
                n_killed += 1
        process.wait()
    assert n_killed
    assert len(list(parts.glob("*.json"))) < 12
    assert main(["sweep", str(path), "--out", str(parts)]) == 0
    results = sorted(file.name for file in whole.glob("*.json"))
    assert results == sorted(file.name for file in parts.glob("*.json"))
    assert len(results) == 12
    assert not list(parts.glob("*.safetensors"))
    for name in results:
        assert without_times(whole / name) == without_times(parts / name)


def children(parent):
    """Return the child processes and their children."""
    listed = ""
    with suppress(FileNotFoundError, ProcessLookupError):  # has ended meanwhile
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [pid for child in map(int, listed.split()) for pid in (child, *children(child))]


def modification_times(folder):
    """Return when each file was saved."""
    found = {}
    for kind in ("*.json", "*.safetensors"):
        for file in folder.glob(kind):
            with suppress(FileNotFoundError):  # finished meanwhile
                found[file.name] = file.stat().st_mtime_ns
    return found
