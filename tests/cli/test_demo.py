"""Tests of the command bitta demo."""

import subprocess
import sys
from importlib.resources import as_file, files

import pytest

from bitta.cli.demo import _build_experiments
from bitta.cli.main import main
from bitta.results import RunResult

BARE = """
import sys
for name in ("matplotlib", "rich"):
    sys.modules[name] = None
from bitta.cli.main import main
sys.exit(main(["demo", "--out", sys.argv[1]]))
"""


@pytest.mark.full
def test_demo_shows_bitta_ahead_of_the_baselines(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (
        'no plot: plots need matplotlib; install it with pip install "bitta[report]".'
        in done.stdout
    )
    accuracy = {
        path.name.removesuffix("-seed0.json"): RunResult.load(path).accuracy
        for path in (tmp_path / "digits").glob("*.json")
    }
    assert accuracy.keys() == {"source", "bn_stats", "tent", "bitta"}
    best_other = max(value for name, value in accuracy.items() if name != "bitta")
    assert accuracy["bitta"] >= best_other + 20


def test_all_methods_of_a_demo_use_the_same_stream():
    for name in ("digits", "corruptions"):
        experiments = list(_build_experiments(name, seed=4).values())
        assert len({(e.stream, e.model, e.seed) for e in experiments}) == 1
        assert [e.feedback.n_queries for e in experiments] == [0, 0, 0, 3]


def test_corruptions_demo_runs_on_some_of_its_images(tmp_path):
    with as_file(files("bitta") / "assets" / "demo-corruptions.toml") as path:
        command = ["run", str(path), "--out", str(tmp_path), "--set", "stream.n_samples=100"]
        assert main(command) == 0
    result = RunResult.load(tmp_path / "demo-corruptions-seed0.json")
    assert [step.n for step in result.steps] == [64, 36] * 5
    assert all(accuracy > 30 for accuracy in result.accuracy_by_domain.values())
