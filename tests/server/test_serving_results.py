"""What docs/serving.md says of speed and endurance is what was measured, and is enough."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs" / "serving.md").read_text().split())


def measured(name):
    return json.loads((ROOT / "results" / "serving" / name).read_text())


def share(value):
    return f"{value:.2f}".removeprefix("0")


def test_the_server_keeps_enough_of_a_bare_endpoints_speed():
    """.7 while it does not learn, .4 while it does."""
    load = measured("load.json")
    assert load["ratio_off"] >= 0.7
    assert load["ratio_on"] >= 0.4
    assert f"{share(load['ratio_off'])} of its requests per second" in PAGE
    assert f"{share(load['ratio_on'])} while it learns" in PAGE
    one = measured("load-one-thread.json")
    assert f"{share(one['ratio_off'])} and {share(one['ratio_on'])} (`load-one" in PAGE


def test_a_killed_server_is_back_within_three_seconds_on_a_quiet_machine():
    restart = measured("restart.json")
    assert len(restart["seconds"]) == 10
    assert max(restart["seconds"]) < 3
    said = f"{restart['median']:.1f} seconds (median of ten, the longest {restart['longest']:.1f})"
    assert said in PAGE


def test_the_page_tells_what_the_soak_showed_slow_restarts_included():
    parts = measured("soak.json")["parts"]
    assert [part["wrong"] for part in parts.values()] == [[], [], [], []]
    kills = [parts[name] for name in ("kills_sqlite", "kills_postgresql")]
    assert all(part["acknowledged"] == part["stored"] for part in kills)
    assert f"of {sum(part['acknowledged'] for part in kills):,} answers" in PAGE
    ready = [seconds for part in kills for seconds in part["seconds_to_ready"]["all"]]
    slow = sum(seconds >= 3 for seconds in ready)
    assert f"{slow} of {len(ready)} restarts took three seconds or more" in PAGE
    assert "joined by hand" in PAGE
    assert parts["pictures"]["pictures"] == 10_000
    assert "500" not in parts["pictures"]["statuses"]
    assert parts["memory"]["minutes"] == 30
    slope = parts["memory"]["resident_mib"]["slope_per_10_minutes"]
    assert f"memory rose by {slope:.1f} MB in ten minutes" in PAGE
