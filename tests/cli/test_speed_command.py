"""Tests of the command bitta speed."""

import json
import subprocess
import sys

import pytest
import torch

from bitta.bench.speed import SpeedResult
from bitta.cli import speed
from bitta.cli.main import main
from bitta.speed_records import SpeedMeasurement

SMALL = ["--model", "resnet8", "--size", "16", "--batch", "4", "--capacity", "4",
         "--batches", "2", "--warm-up", "1"]  # fmt: skip


def measured(case, ms, *, failure=""):
    return SpeedMeasurement(case=case, ms=ms, ms_p25=ms, ms_p75=ms, failure=failure)


@pytest.mark.full
def test_command_prints_a_table_and_writes_all_files(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["speed", *SMALL, "--methods", "source,bitta", "--out", out]) == 0
    shown = capsys.readouterr().out
    assert "model resnet8, classes 10, px 16, batch 4, N 4" in shown
    assert f"result: {out}/speed.json" in shown
    result = SpeedResult.load(f"{out}/speed.json")
    assert [m.case.method for m in result.measurements] == ["source", "bitta"]
    assert result.matmul.keys() == {"float32"}
    assert result.settings["capacity"] == result.settings["batch"] == 4
    assert {"torch", "device", "threads"} <= result.environment.keys()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "speed.json", "speed.md", "speed.png",
    }  # fmt: skip


def test_other_cases_are_measured_after_one_that_does_not_fit(tmp_path, capsys, monkeypatch):
    def measure_speed(case, *_, **__):
        full = case.memory > 128
        return measured(case, 1.0 + case.memory, failure="does not fit" if full else "")

    monkeypatch.setattr(speed, "measure_speed", measure_speed)
    assert main(["speed", "--grid", "memory", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("does not fit  ") == 3
    assert "time of bitta grows like memory^0.99 from 64 to 128" in shown


def test_measurements_before_ctrl_c_are_kept(tmp_path, capsys, monkeypatch):
    def measure_speed(case, *_, **__):
        if case.method == "tent":
            raise KeyboardInterrupt
        return measured(case, 1.0)

    monkeypatch.setattr(speed, "measure_speed", measure_speed)
    assert main(["speed", "--out", str(tmp_path)]) == 130
    shown = capsys.readouterr()
    assert "stopped after 2 of 4 cases" in shown.err
    assert "bn_stats" in shown.out
    assert len(json.loads((tmp_path / "speed.json").read_text())["measurements"]) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--grid", "bacth"], "unknown grid 'bacth'; did you mean 'batch'?"),
        (["--methods", "tnet"], "did you mean 'tent'"),
        (["--device", "abacus"], "device is 'abacus'"),
        (["--batches", "0"], "batches is 0"),
        (["--threads", "0"], "threads is 0"),
        (["--grid", "all", "--passes", "2"], "--passes is given, but grid 'passes' varies it"),
    ],
)
def test_invalid_input_prints_one_sentence(tmp_path, capsys, given, message):
    assert main(["speed", *given, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_lists_the_grids(capsys):
    with pytest.raises(SystemExit):
        main(["speed", "--help"])
    shown = capsys.readouterr().out
    assert "batch          images per batch: 1, 16, 64, 256" in shown


BARE = """
import sys
for name in ("matplotlib", "rich"):
    sys.modules[name] = None
from bitta.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
def test_missing_matplotlib_prints_how_to_install_it(tmp_path):
    command = ["speed", *SMALL, "--methods", "source", "--threads", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", BARE, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'no plot: plots need matplotlib; install it with pip install "bitta[report]".' in (
        done.stdout
    )
    assert (tmp_path / "speed.md").exists()
    assert SpeedResult.load(tmp_path / "speed.json").environment["threads"] == 1


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device here; run on a machine with a GPU"
)
def test_gpu_is_measured_on_its_fast_path(tmp_path):
    assert main(["speed", *SMALL, "--device", "cuda", "--out", str(tmp_path)]) == 0
    measured = SpeedResult.load(tmp_path / "speed.json").measurements
    assert all("channels_last" in m.execution and m.peak_memory for m in measured)
