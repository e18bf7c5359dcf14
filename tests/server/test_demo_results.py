"""What the demo's page claims is what was measured."""

import json
import runpy
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("httpx", reason="the extra 'client' is not installed")

from bitta.cli.serve import DEMOS

ROOT = Path(__file__).parents[2]
FILES = {"digits": "demo.json", "corruptions": "demo-corruptions.json"}


@pytest.fixture(params=list(FILES))
def stream(request):
    return request.param


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "serve_demo.py"))


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


@pytest.mark.parametrize("stream", ["corruptions"])
def test_in_no_spell_of_the_weather_answers_cost_more_than_1_point_over_all_seeds(stream, table):
    assert [row["windows"] for row in table["spells"]] == [[n, n + 12] for n in range(0, 84, 12)]
    runs = table["runs"]
    for row in table["spells"]:
        of = slice(*row["windows"])
        points = {kind: mean(mean(one["accuracy"][of]) for one in runs[kind]) for kind in runs}
        assert row["gain"] == pytest.approx(points["with"] - points["without"])
        assert row["gain"] >= -1.0


def test_the_page_shows_what_the_results_hold(script, table):
    page = (ROOT / "docs" / "how-to" / "serve.md").read_text()
    assert "\n".join(script["lines"](table)) in page


class TwoSpells:
    """Two windows of each."""

    def spell(self, place):
        return "dry" if place < 128 else "wet"


def _runs(script, *accuracies):
    return [script["Run"](seed, 0, "1.4", {}, 0, of) for seed, of in enumerate(accuracies)]


def test_one_bad_spell_is_refused_though_all_windows_together_are_good(script, capsys):
    runs = {
        "with": _runs(script, [60.0, 60.0, 40.0, 40.0], [60.0, 60.0, 46.0, 46.0]),
        "without": _runs(script, [50.0, 50.0, 44.0, 44.0], [50.0, 50.0, 45.0, 45.0]),
    }
    dry, wet = script["spells"](TwoSpells(), 4, runs)
    assert (dry["gain"], dry["error"], wet["gain"]) == (10.0, 0.0, -1.5)
    # Of -4, -4, 1 and 1: the root of 25 / 3, by the root of 4.
    assert wet["error"] == pytest.approx(1.4434, abs=1e-4)
    claim = script["Claim"](windows=4, over=4, least=-1.0, in_spell=-1.0)
    assert not script["spells_hold"]([dry, wet], claim)
    assert "gain in wet, the worst spell, over all seeds: -1.5 points" in capsys.readouterr().out
    assert script["spells_hold"]([dry, {**wet, "gain": -1.0}], claim)


def test_a_claim_without_spells_looks_at_none(script):
    claim = script["Claim"](windows=4, over=4, least=-1.0)
    assert script["spells_hold"]([{"spell": "wet", "gain": -30.0, "error": 1.0}], claim)
