"""Tests of reproduction/share_runs.py, which copies runs to experiments with equal settings."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from bitta.bench.experiment import Experiment
from bitta.bench.run_files import ExistingRun
from bitta.results import RunResult
from bitta.version import NUMERICS_VERSION
from small_experiment import run_experiment, write_experiment

SCRIPT = Path(__file__).parents[2] / "reproduction" / "share_runs.py"


@pytest.fixture
def share():
    return runpy.run_path(str(SCRIPT))["share"]


@pytest.fixture
def folders(tmp_path):
    """Experiments a, b and runtime with equal settings, and c with another seed. a has a result."""
    table = Experiment.read(write_experiment(tmp_path, n=16)).as_table()
    text = (tmp_path / "trial.toml").read_text()
    for folder, name, seed in (("a", "here", 0), ("b", "there", 0), ("c", "other", 1),
                               ("runtime", "timed", 0)):  # fmt: skip
        path = tmp_path / "experiments" / folder / f"{name}.toml"
        path.parent.mkdir(parents=True)
        path.write_text(f'name = "{name}"\nseed = {seed}\n{text}')
    here = Experiment.from_table(table | {"name": "here"}, name="")
    first = run_experiment(here, out=tmp_path / "results" / "a")
    # A result outside of the folders of experiments is not shared.
    (tmp_path / "results" / "speed").mkdir()
    replace(first, protocol="").save(tmp_path / "results" / "speed" / "here-seed0.json")
    return tmp_path / "experiments", tmp_path / "results"


def test_result_is_copied_and_missing_runs_are_listed(folders, share):
    missing = list(share(*folders))
    assert [(folder, job.label) for folder, job in missing] == [
        ("c", "other-seed1"),
        ("runtime", "timed-seed0"),
    ]
    experiments, results = folders
    given = Experiment.read(experiments / "b" / "there.toml")
    existing = ExistingRun.find(given, results / "b")
    assert existing.result is not None
    assert not existing.is_outdated
    first = RunResult.load(results / "a" / "here-seed0.json")
    same = replace(existing.result, experiment=first.experiment, environment=first.environment)
    assert same == first
    assert existing.result.environment["identity"] != first.environment["identity"]


def test_result_from_before_a_setting_existed_is_shared(folders, share):
    path = folders[1] / "a" / "here-seed0.json"
    first = RunResult.load(path)
    del first.experiment["method"]["stream_memory"]
    first.save(path)
    assert [job.label for _, job in share(*folders)] == ["other-seed1", "timed-seed0"]


def test_result_with_another_numerics_version_is_not_shared(folders, share):
    missing = [job.label for _, job in share(*folders, NUMERICS_VERSION - 1)]
    assert missing == ["there-seed0", "other-seed1", "timed-seed0"]
