"""What docs/how-to/serve.md says of speed and endurance is what was measured, and is enough."""

import json
import runpy
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("httpx", reason="the extra 'client' is not installed")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "serve.md").read_text()
PROSE = " ".join(PAGE.split())


def measured(name):
    return json.loads((ROOT / "results" / "serving" / name).read_text())


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return lambda name: runpy.run_path(str(ROOT / "scripts" / name))


def test_the_page_shows_what_the_server_keeps_of_a_bare_endpoints_speed(script):
    """.7 while it does not learn, .4 while it does, whether or not anybody answers."""
    load = measured("load.json")
    assert load["holds"]
    assert load["ratio"]["off"] >= 0.7
    assert load["ratio"]["unanswered"] >= 0.4
    assert load["ratio"]["answered"] >= 0.4
    answered = load["measured"]["answered"]
    assert answered["asked"] >= answered["steps"] - 1 > 0
    assert answered["answers_learned"] >= 2 * answered["steps"]
    assert "\n".join(script("load_server.py")["lines"](load)) in PAGE


def test_a_killed_server_is_back_within_three_seconds_on_a_quiet_machine(script):
    restart = measured("restart.json")
    assert len(restart["seconds"]) == 10
    assert max(restart["seconds"]) < 3
    assert script("time_restart.py")["line"](restart) in PROSE


def test_after_200_kills_nothing_is_lost_and_every_restart_is_within_three_seconds():
    soak = measured("soak.json")
    assert soak["settings"]["kills"] == 100
    ready = []
    for name in ("kills_sqlite", "kills_postgresql"):
        part = soak["parts"][name]
        assert part["acknowledged"] == part["stored"] > 100
        ready += part["seconds_to_ready"]["all"]
    assert len(ready) == 200
    assert max(ready) < 3


def test_no_broken_picture_is_answered_with_a_500_and_memory_stays():
    soak = measured("soak.json")
    assert soak["holds"]
    parts = soak["parts"]
    assert parts["pictures"]["pictures"] == 10_000
    assert set(parts["pictures"]["statuses"]) == {"200", "400", "413"}
    watched = parts["memory"]
    assert watched["minutes"] == 30
    assert watched["refused"] == []
    least, most = watched["least_mib"], watched["most_mib"]
    assert len(least["each"]) == len(most["each"]) == 15
    assert least["slope_per_10_minutes"] <= 4
    assert most["median_of_last_half"] <= 1.05 * most["median_of_first_half"]


@pytest.mark.parametrize(
    ("kept_per_spell", "most_by", "wrong"),
    [
        (0.0, 1.0, []),
        (0.7, 1.04, []),
        (1.0, 1.0, ["memory grows by 5.0 MiB in 10 minutes"]),
        (0.0, 1.06, ["it takes 1590 MiB at most, before 1500"]),
    ],
)
def test_the_soak_finds_memory_that_is_kept_and_memory_that_is_taken(
    script, kept_per_spell, most_by, wrong
):
    """15 spells of two minutes; 5 fill caches, and then 5 are held against 5."""
    watch = script("soak_memory.py")
    spells = [[480 + kept_per_spell * n, 1500 * (most_by if n >= 10 else 1)] for n in range(15)]
    assert watch["grown"](watch["summed"](spells)) == wrong


def test_the_page_tells_what_the_soak_showed(script):
    soak = measured("soak.json")
    for line in script("soak.py")["lines"](soak):
        assert line in PROSE
