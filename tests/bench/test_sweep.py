"""Sweeps: expanded, estimated, skipped, killed, crashed, stopped."""

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

from bitta.bench.board import Board, Row
from bitta.bench.expand import Job, read_jobs
from bitta.bench.experiment import Experiment
from bitta.bench.locks import alone
from bitta.bench.runner import Stopped, run
from bitta.bench.standing import Standing, check_origin
from bitta.bench.sweep import check_standing
from bitta.bench.worker import Manner, order
from bitta.cli.main import main
from bitta.errors import InputError, SettingError, UnreadableFileError
from bitta.results import RunResult, code_hash
from bitta.statefile import load_state
from small_experiment import without_times, write_experiment

EXPERIMENTS = sorted((Path(__file__).parents[2] / "reproduction" / "experiments").rglob("*.toml"))
SHORT = '[stream]\nkind = "digits"\n[model]\nweights = "w"\n[method]\nname = "{method}"\n'


def written(folder, name="trial", method="bitta", sweep=""):
    path = folder / f"{name}.toml"
    path.write_text(SHORT.format(method=method) + sweep)
    return path


def labels(*paths, **options):
    return [job.label for job in read_jobs(paths, **options)]


# Expansion


def test_runs_are_all_combinations_in_the_order_of_the_table(tmp_path):
    path = written(
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
def test_names_say_what_varies_and_are_names_of_files(tmp_path, sweep, names):
    path = written(tmp_path, name="x", sweep=f"[sweep]\n{sweep}\n")
    if names is None:
        with pytest.raises(SettingError, match=r"x\.toml: unknown setting 'decoupled'"):
            read_jobs([path])
        return
    assert [job.experiment.name for job in read_jobs([path])] == names


def test_folders_are_searched_in_order_and_nothing_is_run_twice(tmp_path):
    (tmp_path / "b").mkdir()
    first = written(tmp_path / "b", "second")
    written(tmp_path, "first", method="tent")
    assert labels(tmp_path) == ["second-seed0", "first-seed0"]  # b/second.toml, first.toml
    assert labels(tmp_path / "first.toml", tmp_path) == ["first-seed0", "second-seed0"]
    assert labels(first, first) == ["second-seed0"]


def test_the_command_line_chooses_seeds_settings_and_names(tmp_path):
    written(tmp_path, "a", sweep="[sweep]\nseeds = [5]\n")
    written(tmp_path, "b", method="tent")
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
        ('"method.lr" = []', "[sweep] method.lr is []; allowed: a list of one or more"),
        ('"method.lr" = 1', "[sweep] method.lr is 1; allowed: a list"),
        ('"method.lr" = [[1]]', "[sweep] method.lr has [1]; allowed: numbers"),
        ('"method.lr" = [1]\nmethod.lr = [2]', "[sweep] has method.lr twice"),
        ("seeds = [0.5]", "[sweep] seeds is 0.5; allowed: a whole number"),
        ("seeds = [1, 1]", "two runs would be called 'trial-seed1'"),
        ('"method.lr" = [1.0, 1.0]', "two runs would be called 'trial-lr1.0-seed0'"),
        ('"model.weights" = ["a/b", "a,b"]', "two runs would be called 'trial-weights-a_b-seed0'"),
        ('"feedback.n_queries" = [1]\n"feedback.record" = ["a.log"]\nseeds = [0, 1]',
         "would both write feedback.record 'a.log'"),
        (f'"model.weights" = ["{"x" * 200}"]', "is too long for a file"),
    ],
)  # fmt: skip
def test_a_sweep_that_cannot_be_meant_is_refused(tmp_path, sweep, message):
    written(tmp_path, sweep=f"[sweep]\n{sweep}\n")
    with pytest.raises(SettingError) as error:
        read_jobs([tmp_path])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_two_files_of_one_name_are_refused_with_both(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder)
    with pytest.raises(SettingError, match=r"'trial-seed0' \(.*a/trial.toml and .*b/trial.toml\)"):
        read_jobs([tmp_path])


def test_what_leaves_nothing_to_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no TOML file in"):
        read_jobs([tmp_path])
    with pytest.raises(InputError, match="there is no file"):
        read_jobs([tmp_path / "none.toml"])
    written(tmp_path)
    with pytest.raises(InputError, match=r"--only 'tent\*' leaves none of the runs; there are: tr"):
        read_jobs([tmp_path], only="tent*")
    path = written(tmp_path, sweep='[sweep]\n"method.lr" = [1]\n')
    with pytest.raises(SettingError, match=r"but \[sweep\] varies method.lr; leave one out"):
        read_jobs([path], overrides=["method.lr=2"])


def test_every_experiment_of_the_repository_survives_the_way_to_a_worker():
    for path in EXPERIMENTS:
        for job in read_jobs([path]):
            told = json.loads(order(job.experiment, Manner(out="out")))["experiment"]
            assert Experiment.of(told, name="") == job.experiment


# Estimate


def rows(folder, *methods):
    for method in methods:
        written(folder, method, method=method)
    files = [folder / f"{method}.toml" for method in methods]
    return [Row(job, folder / "log") for job in read_jobs(files)]


def test_the_estimate_comes_from_the_pace_of_each_method(tmp_path):
    """tent: 1 s per batch, 6 left; bitta: 3 s, 8 left; source, unknown: the mean, 2 s, 10 left."""
    tent, bitta, source = rows(tmp_path, "tent", "bitta", "source")
    board = Board([tent, bitta, source], jobs=2)
    for row in (tent, bitta):
        row.begin()
    tent.hear("batch", 1, 10, now=0.0)
    assert board.seconds_left is None  # one report has no pace
    bitta.hear("enhanced", 1, 150, now=0.0)
    bitta.hear("enhanced", 9, 150, now=1.0)
    assert board.seconds_left is None  # nor has what comes before the stream
    tent.hear("batch", 4, 10, now=3.0)
    bitta.hear("batch", 1, 10, now=10.0)
    bitta.hear("batch", 2, 10, now=13.0)
    assert board.seconds_left == pytest.approx((6 + 24 + 20) / 2)
    tent.state = source.state = "done"
    assert board.seconds_left == pytest.approx(24)  # one run cannot be shared
    bitta.state = "failed"
    assert board.seconds_left is None


# Locks


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path):
    tries = []

    def give_up():
        tries.append(1)
        if len(tries) == 2:
            raise TimeoutError

    with alone(tmp_path / "x.json", wait=give_up):
        assert not tries
        with pytest.raises(TimeoutError), alone(tmp_path / "x.json", wait=give_up):
            pass
        with alone(tmp_path / "y.json", wait=give_up):
            pass
    assert not list(tmp_path.iterdir())
    with alone(tmp_path / "x.json", wait=give_up):
        assert len(tries) == 2


# What is there already


def test_a_result_carries_hashes_of_code_and_identity(tmp_path):
    table = Experiment.read(write_experiment(tmp_path, n=16)).as_table()
    one = run(Experiment.of(table, name=""), out=tmp_path / "a").environment
    again = run(Experiment.of(table, name=""), out=tmp_path / "b").environment
    other = run(Experiment.of(table | {"seed": 1}, name=""), out=tmp_path / "c").environment
    assert one["code"] == other["code"] == code_hash()
    assert one["identity"] == again["identity"] != other["identity"]
    assert len(one["code"]) == len(one["identity"]) == 64


def made_by_other_code(result):
    table = json.loads(result.read_text())
    table["environment"]["code"] = "0" * 64
    result.write_text(json.dumps(table))


def test_results_of_other_code_are_neither_taken_nor_replaced_unasked(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    jobs = [Job(experiment, tmp_path)]
    run(experiment, out=tmp_path)
    check_standing(jobs, Manner(out=str(tmp_path)))
    made_by_other_code(tmp_path / "trial-seed0.json")
    with pytest.raises(InputError, match=r"'trial-seed0' .* by other code .*--rerun .*--keep"):
        check_standing(jobs, Manner(out=str(tmp_path)))
    check_standing(jobs, Manner(out=str(tmp_path), stale="keep"))
    check_standing(jobs, Manner(out=str(tmp_path), stale="rerun"))


def test_a_checkpoint_of_other_code_is_not_gone_on_with(tmp_path, monkeypatch):
    experiment = Experiment.read(write_experiment(tmp_path))
    with monkeypatch.context() as older:
        older.setattr("bitta.results.code_hash", lambda: "older")
        with pytest.raises(Stopped):
            run(experiment, out=tmp_path, should_stop=lambda: True)
    assert Standing.of(experiment, tmp_path, code=code_hash()).stale
    assert not Standing.of(experiment, tmp_path, code="older").stale
    with pytest.raises(InputError, match="written with another code; run with the same"):
        run(experiment, out=tmp_path, resume=True)


def test_files_of_other_settings_are_refused(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    other = Experiment.of(experiment.as_table() | {"method": {"name": "tent"}}, name="")
    with pytest.raises(Stopped):
        run(experiment, out=tmp_path, should_stop=lambda: True)
    with pytest.raises(InputError, match="is the checkpoint of other settings; delete it"):
        check_standing([Job(other, tmp_path)], Manner(out=str(tmp_path)))
    run(experiment, out=tmp_path)
    with pytest.raises(InputError, match="is the result of other settings; delete it"):
        check_standing([Job(other, tmp_path)], Manner(out=str(tmp_path), stale="rerun"))


def test_a_setting_that_is_new_since_is_at_its_default(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path, n=16))
    result = run(experiment, out=tmp_path)
    method = dict(result.experiment["method"])
    del method["stream_memory"]
    older = replace(result, experiment={**result.experiment, "method": method})
    older.save(tmp_path / "trial-seed0.json")
    assert Standing.of(experiment, tmp_path, code=code_hash()).result == older
    assert run(experiment, out=tmp_path, resume=True) == older
    changed = experiment.as_table() | {"method": {**method, "stream_memory": 4}}
    with pytest.raises(InputError, match="is the result of other settings"):
        Standing.of(Experiment.of(changed, name=""), tmp_path, code=code_hash())


@pytest.mark.parametrize("content", ["", '{"format": 2, "summary": ', "[]", '{"format": 2}'])
def test_a_result_that_cannot_be_read_says_which_file_to_delete(tmp_path, content):
    experiment = Experiment.read(write_experiment(tmp_path))
    path = tmp_path / "trial-seed0.json"
    path.write_text(content)
    for act in (lambda: run(experiment, out=tmp_path), lambda: standing(experiment, tmp_path)):
        with pytest.raises(UnreadableFileError) as error:
            act()
        assert str(error.value).startswith(f"{str(path)!r} is not a ")
        assert str(error.value).endswith(". Delete that file, and the run is made again.")


@pytest.mark.parametrize("content", [b"", b"no tensors at all", save({"x": torch.zeros(1)})])
def test_a_checkpoint_that_cannot_be_read_says_which_file_to_delete(tmp_path, content):
    experiment = Experiment.read(write_experiment(tmp_path))
    path = tmp_path / "trial-seed0.safetensors"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError) as error:
        standing(experiment, tmp_path)
    assert repr(str(path)) in str(error.value)
    assert str(error.value).endswith(" Delete that file, and the run starts over.")
    with pytest.raises(UnreadableFileError, match="Delete that file"):
        run(experiment, out=tmp_path, resume=True)


def standing(experiment, out):
    return Standing.of(experiment, out, code=code_hash())


def test_a_result_of_another_format_is_of_other_code_and_not_damaged(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path))
    (tmp_path / "trial-seed0.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match="is a result of format"):
        check_standing([Job(experiment, tmp_path)], Manner(out=str(tmp_path)))


def test_a_result_of_other_data_or_weights_is_refused(tmp_path):
    experiment = Experiment.read(write_experiment(tmp_path, n=16))
    result = run(experiment, out=tmp_path)
    known = {}
    check_origin(experiment, result, tmp_path, known)
    (origin,) = known.values()
    assert origin == {part: result.environment[part] for part in ("stream", "source_weights")}
    for part in origin:
        other = replace(result, environment=result.environment | {part: "other"})
        with pytest.raises(InputError, match=f"the result of other {part.replace('_', ' ')}; del"):
            check_origin(experiment, other, tmp_path, known)
    write_experiment(tmp_path, n=24)
    with pytest.raises(InputError, match="the result of other stream"):
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


def test_a_crash_stops_no_other_run_and_what_is_finished_is_skipped(tmp_path, monkeypatch, capsys):
    """Seeds 0 and 1 of a sound run; a model that raises; data that is not there; a death."""
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
    assert (
        "\n1-raises-seed0 failed: RuntimeError: no such luck  log: out/1-raises-seed0.log\n" in out
    )
    assert "\n2-missing-seed0 failed: there is no file" in out
    log = Path("out/1-raises-seed0.log").read_text()
    assert log.count("Traceback") == 2  # tried twice
    assert Path("out/2-missing-seed0.log").read_text().count("there is no file") == 1
    finished = sorted(Path("out").glob("*.json"))
    assert [path.stem for path in finished] == ["3-dies-seed0", "4-sound-seed0", "4-sound-seed1"]
    assert sorted(path.suffix for path in Path("out").iterdir()) == [".json"] * 3 + [".log"] * 5
    times = [path.stat().st_mtime_ns for path in finished]
    assert main(["sweep", ".", "--out", "out", "--only", "4*"]) == 0
    assert "2 runs: 2 done (2 before), 0 failed" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in finished] == times


def test_files_that_cannot_be_read_fail_their_runs_and_no_other(tmp_path, capsys):
    path = write_experiment(tmp_path)
    damaged = [tmp_path / "trial-seed0.json", tmp_path / "trial-seed1.safetensors"]
    for file in damaged:
        file.write_bytes(b"{")
    command = ["sweep", str(path), "--seeds", "0,1,2", "--out", str(tmp_path)]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "\n3 runs: 1 done, 2 failed; " in f"\n{out}"
    for file in damaged:
        assert f"{file.stem} failed: {str(file)!r} is not a readable " in out
        assert file.read_bytes() == b"{"
        file.unlink()
    assert out.count(" Delete that file, and the run ") == 2
    assert main(command) == 0
    assert "3 runs: 3 done (1 before), 0 failed; " in capsys.readouterr().out


def test_results_of_other_code_are_kept_or_replaced_as_told(tmp_path, capsys):
    path = write_experiment(tmp_path)
    result = tmp_path / "trial-seed0.json"
    whole = run(Experiment.read(path), out=tmp_path)
    made_by_other_code(result)
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
    assert again.environment["code"] == code_hash()
    assert again.final_weights == whole.final_weights


def started(path, out, *options):
    command = [sys.executable, "-m", "bitta.cli.main", "sweep", str(path), "--out", str(out)]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def until(holds, life=None, seconds=300):
    end = time.monotonic() + seconds
    while not holds():
        assert life is None or life.poll() is None, "it ended before its time"
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def at_work(out):
    """The log of the first run says which path it takes right before the first batch."""
    return lambda: any("path:" in log.read_text() for log in out.glob("*.log"))


def test_ctrl_c_saves_every_run_and_the_same_command_goes_on(tmp_path):
    path = write_experiment(tmp_path, n=4000)
    life = started(path, tmp_path, "--checkpoint-seconds", "1000")
    until(at_work(tmp_path), life)
    life.send_signal(signal.SIGINT)
    _, error = life.communicate(timeout=120)
    assert life.returncode == 130
    assert "run the same command again" in error
    assert load_state(tmp_path / "trial-seed0.safetensors")["identity"]["code"] == code_hash()
    assert not (tmp_path / "trial-seed0.json").exists()


def test_a_run_whose_sweep_was_killed_saves_itself_and_ends(tmp_path):
    """No checkpoint would be due for a quarter of an hour."""
    path = write_experiment(tmp_path, n=4000)
    life = started(path, tmp_path, "--checkpoint-seconds", "1000")
    until(at_work(tmp_path), life)
    life.kill()
    life.communicate()
    with alone(tmp_path / "trial-seed0.json", wait=lambda: None):
        assert (tmp_path / "trial-seed0.safetensors").exists()
        assert "stopped after batch" in (tmp_path / "trial-seed0.log").read_text()


def test_five_kills_of_a_sweep_of_twelve_change_nothing_but_times(tmp_path, monkeypatch, forker):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # with one job or two
    path = write_experiment(tmp_path)
    path.write_text(path.read_text().replace("restore", "epochs = 1\nrestore"))
    varied = 'seeds = [0, 1, 2]\n"method.lr" = [1e-4, 1e-3]\n"feedback.n_queries" = [1, 3]\n'
    path.write_text(f"{path.read_text()}[sweep]\n{varied}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["sweep", str(path), "--out", str(whole)]) == 0
    chance, killed = random.Random(7), 0
    command = ["sweep", str(path), "--out", str(parts), "--checkpoint-seconds", "0.1", "--jobs"]
    for kill in range(5):
        seen = stamps(parts)
        life = forker.start([*command, "2" if kill == 4 else "1"], tmp_path / "log")
        until(lambda seen=seen: stamps(parts) != seen, life)
        until(lambda kill=kill: len(list(parts.glob("*.json"))) >= 2 * kill, life)
        time.sleep(chance.uniform(0, 0.2))
        assert life.poll() is None, "the sweep ended before it could be killed"
        workers = children(life.pid) if kill % 2 else []
        life.send_signal(signal.SIGKILL)
        for worker in workers:
            with suppress(ProcessLookupError):  # has seen that its sweep is gone
                os.kill(worker, signal.SIGKILL)
                killed += 1
        life.wait()
    assert killed
    assert len(list(parts.glob("*.json"))) < 12
    assert main(["sweep", str(path), "--out", str(parts)]) == 0
    results = sorted(file.name for file in whole.glob("*.json"))
    assert results == sorted(file.name for file in parts.glob("*.json"))
    assert len(results) == 12
    assert not list(parts.glob("*.safetensors"))
    for name in results:
        assert without_times(whole / name) == without_times(parts / name)


def children(parent):
    """Processes that this one has begun, and theirs."""
    listed = ""
    with suppress(FileNotFoundError, ProcessLookupError):  # has ended meanwhile
        listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [pid for child in map(int, listed.split()) for pid in (child, *children(child))]


def stamps(folder):
    """What has been saved, and when."""
    found = {}
    for kind in ("*.json", "*.safetensors"):
        for file in folder.glob(kind):
            with suppress(FileNotFoundError):  # finished meanwhile
                found[file.name] = file.stat().st_mtime_ns
    return found
