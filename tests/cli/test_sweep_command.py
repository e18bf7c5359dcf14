"""`bitta sweep` as its users meet it: refusals, the line that tells how far it is, the end."""

import re

import pytest

from bitta.bench.board import Board, Row
from bitta.bench.expand import read_jobs
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
        (["--only", "tent*"], "--only 'tent*' leaves none of the runs"),
        (["--device", "gpu"], "device is 'gpu'; allowed: cpu, cuda"),
    ],
)
def test_what_cannot_be_meant_gets_one_sentence_before_anything_runs(
    path, capsys, options, message
):
    out = path.parent / "out"
    assert main(["sweep", str(path), "--out", str(out), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_one_run_of_a_file_with_a_sweep_is_refused(path, capsys):
    assert main(["run", str(path)]) == 2
    assert capsys.readouterr().err == (
        'bitta run: [sweep] makes many runs of one file; use "bitta sweep" for it.\n'
    )


@pytest.fixture
def board(path):
    """Three runs of 100 batches: one is done, one at batch 41 after 10 s, one to come."""
    rows = [Row(job, path.with_suffix(".log")) for job in read_jobs([path])]
    rows[0].state = "found"
    rows[1].begin()
    return Board(rows, jobs=1)


def test_one_line_tells_how_far_a_sweep_is(board):
    assert sweep_status(board) == "3 runs: 1 done, 1 running (trial-seed1 starting)"
    at_work = board.rows[1]
    at_work.hear("waits", 0, 0, now=0.0)
    assert "(trial-seed1 waiting for another process)" in sweep_status(board)
    at_work.hear("batch", 1, 100, now=10.0)
    assert sweep_status(board) == "3 runs: 1 done, 1 running (trial-seed1 batch 1/100)"
    at_work.hear("batch", 41, 100, now=50.0)
    assert sweep_status(board) == (
        "3 runs: 1 done, 1 running (trial-seed1 batch 41/100); about 3 min left"  # 59 s + 100 s
    )
    board.rows[2].state = "failed"
    assert sweep_status(board) == (
        "3 runs: 1 done, 1 running (trial-seed1 batch 41/100), 1 failed; about 59 s left"
    )


def test_a_line_comes_every_few_seconds_and_with_each_failure(board, capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("bitta.cli.progress.monotonic", lambda: now[0])
    view = PlainSweepDisplay()
    for now[0] in (101, 104.9, 105, 106, 109.9):
        view.show(board)
    assert capsys.readouterr().out.count("\n") == 1
    board.rows[1].state = "failed"
    view.show(board)
    view.show(board)
    assert capsys.readouterr().out == "3 runs: 1 done, 0 running, 1 failed\n"


def test_the_end_names_what_failed_and_where_its_log_is(board, capsys, tmp_path):
    board.rows[1].state, board.rows[1].error = "failed", "RuntimeError: no"
    assert _print_summary(board, tmp_path, 100) == 130
    out, error = capsys.readouterr()
    assert out.startswith(
        f"3 runs: 1 done (1 before), 1 failed, 1 left; 2 min; results: {tmp_path}"
    )
    assert f"\ntrial-seed1 failed: RuntimeError: no  log: {tmp_path / 'trial.log'}\n" in out
    assert error == "stopped; run the same command again to continue.\n"
    board.rows[2].state = "done"
    assert _print_summary(board, tmp_path, 100) == 1
    board.rows[1].state = "done"
    assert _print_summary(board, tmp_path, 100) == 0


def test_bars_come_and_go_with_the_runs(board):
    pytest.importorskip("rich")
    view = RichSweepDisplay()
    board.rows[1].hear("batch", 41, 100, now=0.0)
    view.show(board)
    assert [task.description for task in view._bars.tasks] == ["runs", "trial-seed1"]
    assert [task.completed for task in view._bars.tasks] == [1, 41]
    board.rows[1].state = "failed"
    view.show(board)
    (bar,) = view._bars.tasks
    assert (bar.completed, bar.total, bar.fields["note"]) == (2, 3, "1 failed")


def test_the_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    told = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {"--jobs", "--seeds", "--set", "--only", "--out", "--device", "--eager"} <= told
    assert {"--precision", "--checkpoint-seconds", "--rerun", "--keep"} <= told
