"""What the demo's page claims is what was measured."""

import json
import runpy
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("httpx", reason="the extra 'client' is not installed")

from bitta.cli.serve_demo import DEMOS

ROOT = Path(__file__).parents[2]
FILES = {"digits": "demo.json", "corruptions": "demo-corruptions.json"}


@pytest.fixture(params=list(FILES))
def stream(request):
    return request.param


@pytest.fixture
def table(stream):
    return json.loads((ROOT / "results" / "serving" / FILES[stream]).read_text())


def test_they_are_of_the_settings_and_the_seeds_of_the_demo(stream, table):
    assert table["settings"]["method"] == DEMOS[stream]["settings"]
    assert table["settings"]["seeds"] == [0, 1, 2]
    for kind, answers in (("with", 3), ("without", 0)):
        runs = table["runs"][kind]
        assert [run["seed"] for run in runs] == [0, 1, 2]
        assert {len(run["accuracy"]) for run in runs} == {table["settings"]["claim"]["windows"]}
        assert all(run["answers"] == answers * len(run["accuracy"]) for run in runs)


def test_the_server_never_rolled_back(table):
    versions = {run["version"] for runs in table["runs"].values() for run in runs}
    assert versions == {f"1.{table['settings']['claim']['windows']}"}


def test_answers_are_worth_20_points_of_digits_and_cost_1_point_of_weather_at_most(stream, table):
    last, least = {"digits": (20, 20.0), "corruptions": (84, -1.0)}[stream]
    for answered, alone in zip(table["runs"]["with"], table["runs"]["without"], strict=True):
        assert len(answered["accuracy"]) <= 100
        gain = mean(answered["accuracy"][-last:]) - mean(alone["accuracy"][-last:])
        assert gain >= least


def test_the_page_shows_what_the_results_hold(table):
    page = (ROOT / "docs" / "serving.md").read_text()
    lines = runpy.run_path(str(ROOT / "scripts" / "serve_demo.py"))["lines"]
    assert "\n".join(lines(table)) in page
