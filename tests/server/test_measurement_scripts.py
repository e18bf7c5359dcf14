"""Tests that the scripts that measure the server refuse results that contradict their claims."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("httpx", reason="the extra 'client' is not installed")

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    return lambda name: runpy.run_path(str(SCRIPTS / name))


class TwoConditions:
    """Camera with two conditions, two windows each."""

    def condition(self, index):
        return "dry" if index < 128 else "wet"


def _runs(demo, *accuracies):
    return [demo["Run"](seed, 0, "1.4", {}, 0, values) for seed, values in enumerate(accuracies)]


def test_one_bad_condition_is_refused_if_all_windows_together_are_good(script, capsys):
    demo = script("serve_demo.py")
    runs = {
        "with": _runs(demo, [60.0, 60.0, 40.0, 40.0], [60.0, 60.0, 46.0, 46.0]),
        "without": _runs(demo, [50.0, 50.0, 44.0, 44.0], [50.0, 50.0, 45.0, 45.0]),
    }
    dry, wet = demo["conditions"](TwoConditions(), 4, runs)
    assert (dry["gain"], dry["error"], wet["gain"]) == (10.0, 0.0, -1.5)
    # The differences are -4, -4, 1 and 1: the root of 25 / 3, divided by the root of 4.
    assert wet["error"] == pytest.approx(1.4434, abs=1e-4)
    claim = demo["Claim"](windows=4, over=4, least=-1.0, least_per_condition=-1.0)
    assert not demo["conditions_hold"]([dry, wet], claim)
    assert "-1.5 points" in capsys.readouterr().out
    assert demo["conditions_hold"]([dry, {**wet, "gain": -1.0}], claim)


def test_claim_without_a_limit_per_condition_accepts_any(script):
    demo = script("serve_demo.py")
    claim = demo["Claim"](windows=4, over=4, least=-1.0)
    assert demo["conditions_hold"]([{"condition": "wet", "gain": -30.0, "error": 1.0}], claim)


@pytest.mark.parametrize(
    ("kept_per_period", "most_by", "wrong"),
    [
        (0.0, 1.0, []),
        (0.7, 1.04, []),
        (1.0, 1.0, ["memory grows by 5.0 MiB in 10 minutes"]),
        (0.0, 1.06, ["the peak of the memory rises from 1500 to 1590 MiB"]),
    ],
)
def test_soak_finds_growing_memory_and_peaks(script, kept_per_period, most_by, wrong):
    """15 periods of two minutes: 5 fill caches, then the last 5 are compared with 5 before."""
    memory = script("soak_memory.py")
    periods = [[480 + kept_per_period * n, 1500 * (most_by if n >= 10 else 1)] for n in range(15)]
    assert memory["growth_problems"](memory["summarise_periods"](periods)) == wrong


@pytest.mark.parametrize(("grown", "holds"), [(1.2, True), (6.0, False)])
def test_soak_of_few_minutes_allows_the_usual_scatter(script, grown, holds):
    memory = script("soak_memory.py")
    summary = memory["summarise_periods"]([[481.0, 1700.0], [481.0 + grown, 1700.0]])
    assert (memory["growth_problems"](summary) == []) == holds
