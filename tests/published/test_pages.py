"""Tests that the pages with stored results agree with the result files."""

import importlib
import json
import runpy
import subprocess
import sys

import pytest

from bitta.bench.experiment import Experiment
from bitta.bench.sweep_grid import read_jobs
from bitta.cli.demo import _build_experiments
from bitta.corruptions import CORRUPTIONS
from bitta.report import summary_rows, text_table
from bitta.results import RunResult
from reproduction.paths import EXPERIMENTS, RESULTS, ROOT

DOCS = ROOT / "docs"
SPEED = RESULTS / "speed"
PERFORMANCE_PAGE = (DOCS / "explanation" / "performance.md").read_text()
SERVER_PAGE = (DOCS / "explanation" / "server-measurements.md").read_text()
WEIGHTS_TRAINED_ELSEWHERE = (
    "tiny-imagenet-resnet18.safetensors",
    "imagenet-resnet18.safetensors",
    "domainnet126-real-resnet18.safetensors",
    "owttt-cifar10.safetensors",
    "owttt-cifar100.safetensors",
    "cifar10-vit.safetensors",
)


RUN_WHEN_THE_METHOD_IS_FINISHED = {"generalisation"}
"""The suite must not be used to choose settings, so it is run once, at the end."""


def read_json(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    "writer", ["write_comparison", "write_page", "write_readme_table", "write_self_tuning_page"]
)
def test_generated_page_agrees_with_the_results(writer):
    done = subprocess.run(
        [sys.executable, "-m", f"reproduction.{writer}", "--check"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_of_experiments_that_can_run_here_has_results():
    folders = {
        folder.name
        for folder in EXPERIMENTS.iterdir()
        if any(
            job.experiment.model.weights not in WEIGHTS_TRAINED_ELSEWHERE
            for job in read_jobs([folder])
        )
    }
    missing = {name for name in folders if not list((RESULTS / name).glob("*-seed*.json"))}
    assert missing == RUN_WHEN_THE_METHOD_IS_FINISHED


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_data_page_shows_the_check_of_the_corruptions(name):
    row = read_json(RESULTS / "corruptions" / "cifar10-severity5.json")["corruptions"][name]
    line = f"| {name} | {row['accuracy']:.2f} | {row['upstream']:.1f} |"
    assert line in (DOCS / "how-to" / "data.md").read_text()


# bitta demo.

DEMOS = [(demo, seed) for demo in ("digits", "corruptions") for seed in range(3)]


def demo_results(demo, seed):
    labels = {"Source": "source", "BN-Stats": "bn_stats", "TENT": "tent", "BiTTA": "bitta"}
    folder = RESULTS / "demo" / demo
    return {
        label: RunResult.load(folder / f"{name}-seed{seed}.json") for label, name in labels.items()
    }


@pytest.mark.parametrize(("demo", "seed"), DEMOS)
def test_demo_page_shows_the_results(demo, seed):
    table = text_table(summary_rows(demo_results(demo, seed)))
    assert table in (DOCS / "tutorial" / "demo.md").read_text()


@pytest.mark.parametrize(("demo", "seed"), DEMOS)
def test_demo_results_have_the_packaged_settings(demo, seed):
    for label, experiment in _build_experiments(demo, seed).items():
        recorded = demo_results(demo, seed)[label].experiment
        tables = {name: recorded[name] for name in ("stream", "model", "method", "feedback")}
        stored = Experiment.from_table(tables, name="demo").as_table()  # with new keys' defaults
        assert {name: stored[name] for name in tables} == {
            name: experiment.as_table()[name] for name in tables
        }


# Speed.


@pytest.mark.parametrize(
    "name", ["bfloat16", "tf32", "low", "eager-tf32", "eager-float32", "large"]
)
def test_performance_page_shows_the_measurements(name):
    for row in read_json(SPEED / name / "speed.json")["measurements"]:
        assert f"| {row['ms']:.1f} | {row['peak_memory'] / 1e6:,.0f} |" in PERFORMANCE_PAGE


def test_performance_page_shows_the_parts_and_the_profile():
    for name, part in read_json(SPEED / "parts.json")["measured"].items():
        assert f"| {name} | {part['ms']:.1f} | {part['peak_mb']:,.0f} |" in PERFORMANCE_PAGE
    for kind, ms in read_json(SPEED / "profile.json")["milliseconds_by_kind"].items():
        assert f"| {kind} | {ms:.1f} |" in PERFORMANCE_PAGE


def test_performance_page_shows_the_time_of_a_stream():
    result = RunResult.load(SPEED / "stream-bfloat16-seed0.json")
    assert f"| {result.extra['seconds']['total']:.1f} |" in PERFORMANCE_PAGE


def test_performance_page_shows_the_accuracy_of_both_paths_on_the_same_stream():
    results = {
        "plain, float32, TF32 off": RunResult.load(SPEED / "stream-float32-plain-seed0.json"),
        "fast, float32, TF32 off": RunResult.load(SPEED / "stream-float32-fast-seed0.json"),
        "fast, bfloat16": RunResult.load(RESULTS / "cifar10-c" / "bitta-seed0.json"),
    }
    for path, result in results.items():
        assert f"| {path} | {result.accuracy:.2f} |" in PERFORMANCE_PAGE
    for key in ("stream", "source_weights"):
        assert len({result.environment[key] for result in results.values()}) == 1


# Serving.


@pytest.fixture
def script(monkeypatch):
    pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
    pytest.importorskip("httpx", reason="the extra 'client' is not installed")
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return lambda name: runpy.run_path(str(ROOT / "scripts" / name))


@pytest.mark.parametrize(
    ("stream", "file"), [("digits", "demo.json"), ("corruptions", "demo-corruptions.json")]
)
def test_server_page_shows_the_demo_results_of_the_packaged_settings(script, stream, file):
    demos = importlib.import_module("bitta.cli.serve").DEMOS  # needs the extra 'serve'
    table = read_json(RESULTS / "serving" / file)
    assert table["settings"]["method"] == demos[stream]["settings"]
    assert "\n".join(script("serve_demo.py")["lines"](table)) in SERVER_PAGE


def test_server_page_shows_the_load_test(script):
    load = read_json(RESULTS / "serving" / "load.json")
    assert "\n".join(script("load_server.py")["lines"](load)) in SERVER_PAGE


def test_server_page_shows_the_restart_times(script):
    restart = read_json(RESULTS / "serving" / "restart.json")
    assert script("time_restart.py")["line"](restart) in " ".join(SERVER_PAGE.split())


def test_server_page_shows_the_soak_test(script):
    soak = read_json(RESULTS / "serving" / "soak.json")
    for line in script("soak.py")["lines"](soak):
        assert line in " ".join(SERVER_PAGE.split())
