"""Tests of the command bitta sweep."""

import re

import pytest

from bitta.bench.sweep import RunStatus, SweepProgress
from bitta.bench.sweep_grid import read_jobs
from bitta.cli.main import main
from bitta.cli.progress import PlainSweepDisplay, RichSweepDisplay, sweep_status
from bitta.cli.sweep import _print_summary
from small_experiment import write_experiment


@pytest.fixture
def path(tmp_path):
    path = write_experiment(tmp_path)
    path.write_text(path.read_text() + "[sweep]\nseeds = [0, 1, 2]\n")
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "method.lrr=1"], "unknown setting 'lrr'"),
        (["--set", "sweep.method.lr=[]"], "[sweep] method.lr is []"),
        (["--set", "sweeep.seeds=[1]"], "unknown key 'sweeep'; did you mean"),
        (["--seeds", "0,x"], "--seeds is '0,x'; allowed: whole numbers, separated by commas"),
        (["--seeds", "1,1"], "two runs would be called 'trial-seed1'"),
        (["--jobs", "0"], "--jobs is 0; allowed: 1 or more"),
        (["--only", "tent*"], "--only 'tent*' matches none of the runs"),
        (["--device", "gpu"], "device is 'gpu'; allowed: cpu, cuda"),
    ],
)
def test_invalid_option_prints_one_sentence_before_any_run(path, capsys, options, message):
    out = path.parent / "out"
    assert main(["sweep", str(path), "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_run_refuses_a_file_with_a_sweep(path, capsys):
    assert main(["run", str(path)]) == 2
    assert capsys.readouterr().err == (
        'bitta run: [sweep] makes many runs of one file; use "bitta sweep" for it.\n'
    )


@pytest.fixture
def progress(path):
    """Three runs: one is done, one starts, one is still to come."""
    runs = [RunStatus(job, path.with_suffix(".log")) for job in read_jobs([path])]
    runs[0].state = "found"
    runs[1].begin()
    return SweepProgress(runs, n_workers=1)


def test_status_line_shows_the_state_of_a_sweep(progress):
    assert sweep_status(progress) == "3 runs: 1 done, 1 running (trial-seed1 starting)"
    running = progress.runs[1]
    running.record("waiting", 0, 0, now=0.0)
    assert "(trial-seed1 waiting for another process)" in sweep_status(progress)
    running.record("batch", 1, 100, now=10.0)
    assert sweep_status(progress) == "3 runs: 1 done, 1 running (trial-seed1 batch 1/100)"
    running.record("batch", 41, 100, now=50.0)
    assert sweep_status(progress) == (
        "3 runs: 1 done, 1 running (trial-seed1 batch 41/100); about 3 min left"  # 59 s + 100 s
    )
    progress.runs[2].state = "failed"
    assert sweep_status(progress) == (
        "3 runs: 1 done, 1 running (trial-seed1 batch 41/100), 1 failed; about 59 s left"
    )


def test_line_is_printed_every_few_seconds_and_after_a_failure(progress, capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("bitta.cli.progress.monotonic", lambda: now[0])
    view = PlainSweepDisplay()
    for now[0] in (101, 104.9, 105, 106, 109.9):
        view.show(progress)
    assert capsys.readouterr().out.count("\n") == 1
    progress.runs[1].state = "failed"
    view.show(progress)
    view.show(progress)
    assert capsys.readouterr().out == "3 runs: 1 done, 0 running, 1 failed\n"


def test_summary_names_failed_runs_and_their_logs(progress, capsys, tmp_path):
    progress.runs[1].state, progress.runs[1].error = "failed", "RuntimeError: no"
    assert _print_summary(progress, tmp_path, 100) == 130
    out, error = capsys.readouterr()
    assert out.startswith(
        f"3 runs: 1 done (1 before), 1 failed, 1 left; 2 min; results: {tmp_path}"
    )
    assert f"\ntrial-seed1 failed: RuntimeError: no  log: {tmp_path / 'trial.log'}\n" in out
    assert error == "stopped; run the same command again to continue.\n"
    progress.runs[2].state = "done"
    assert _print_summary(progress, tmp_path, 100) == 1
    progress.runs[1].state = "done"
    assert _print_summary(progress, tmp_path, 100) == 0


def test_bars_appear_and_disappear_with_the_runs(progress):
    pytest.importorskip("rich")
    view = RichSweepDisplay()
    progress.runs[1].record("batch", 41, 100, now=0.0)
    view.show(progress)
    assert [task.description for task in view._bars.tasks] == ["runs", "trial-seed1"]
    assert [task.completed for task in view._bars.tasks] == [1, 41]
    progress.runs[1].state = "failed"
    view.show(progress)
    (bar,) = view._bars.tasks
    assert (bar.completed, bar.total, bar.fields["note"]) == (2, 3, "1 failed")


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    told = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {"--jobs", "--seeds", "--set", "--only", "--out", "--device", "--eager"} <= told
    assert {"--precision", "--checkpoint-seconds", "--rerun", "--keep"} <= told
