"""scripts/share_runs.py: a run that several experiments have in common."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from bitta.bench.experiment import Experiment
from bitta.bench.runner import run
from bitta.bench.standing import Standing
from bitta.results import RunResult, code_hash
from small_experiment import write_experiment

SCRIPT = Path(__file__).parents[1] / "scripts" / "share_runs.py"


@pytest.fixture
def share():
    return runpy.run_path(str(SCRIPT))["share"]


@pytest.fixture
def folders(tmp_path):
    """Experiments a and b of one run, c of another, and the times of the first; a was run."""
    table = Experiment.read(write_experiment(tmp_path, n=16)).as_table()
    text = (tmp_path / "trial.toml").read_text()
    for folder, name, seed in (("a", "here", 0), ("b", "there", 0), ("c", "other", 1),
                               ("runtime", "timed", 0)):  # fmt: skip
        path = tmp_path / "experiments" / folder / f"{name}.toml"
        path.parent.mkdir(parents=True)
        path.write_text(f'name = "{name}"\nseed = {seed}\n{text}')
    here = Experiment.of(table | {"name": "here"}, name="")
    first = run(here, out=tmp_path / "results" / "a")
    # The same settings, run in some other way for some other purpose.
    (tmp_path / "results" / "speed").mkdir()
    replace(first, protocol="").save(tmp_path / "results" / "speed" / "here-seed0.json")
    return tmp_path / "experiments", tmp_path / "results"


def test_a_run_is_given_to_whoever_has_it_and_the_rest_is_told(folders, share):
    left = list(share(*folders, code_hash()))
    assert [(folder, job.label) for folder, job in left] == [
        ("c", "other-seed1"),
        ("runtime", "timed-seed0"),
    ]
    experiments, results = folders
    given = Experiment.read(experiments / "b" / "there.toml")
    standing = Standing.of(given, results / "b", code=code_hash())
    assert standing.result is not None
    assert not standing.stale
    first = RunResult.load(results / "a" / "here-seed0.json")
    same = replace(standing.result, experiment=first.experiment, environment=first.environment)
    assert same == first
    assert standing.result.environment["identity"] != first.environment["identity"]


def test_a_run_from_before_a_setting_existed_is_shared(folders, share):
    path = folders[1] / "a" / "here-seed0.json"
    first = RunResult.load(path)
    del first.experiment["method"]["stream_memory"]
    first.save(path)
    assert [job.label for _, job in share(*folders, code_hash())] == ["other-seed1", "timed-seed0"]


def test_runs_of_other_code_are_not_shared(folders, share):
    left = [job.label for _, job in share(*folders, "0" * 64)]
    assert left == ["there-seed0", "other-seed1", "timed-seed0"]
