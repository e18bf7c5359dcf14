"""Tests of scripts/count_passes.py and of the stored counts of passes."""

import json
import runpy
from importlib.resources import files
from pathlib import Path

import pytest

from bitta.methods import METHODS

TABLE = json.loads((files("bitta") / "assets" / "passes.json").read_text())["passes"]


def test_every_method_has_counts():
    assert list(TABLE) == list(METHODS)


@pytest.mark.full
def test_stored_counts_are_those_of_the_script():
    script = Path(__file__).parents[2] / "scripts" / "count_passes.py"
    count_passes = runpy.run_path(str(script))["count_passes"]
    assert vars(count_passes("source")) == TABLE["source"]


def test_counts_of_tent_and_bitta_equal_hand_computation():
    """TENT: serve 1, learn 1; with 3 questions of 64: 4 policy passes, 61 alone, 189 together.

    BiTTA, N 4, E 3: serve 1, observe 1, and per epoch (4 + 1) passes of 64, or of 189 after 4
    policy passes.
    """
    tent, bitta = TABLE["tent"], TABLE["bitta"]
    assert (tent["forwards"], tent["backwards"]) == (2, 1)
    assert tent["forwards_asked"] == 1 + 4 + (61 + 189) / 64
    assert tent["backwards_asked"] == (61 + 189) / 64
    assert (bitta["forwards"], bitta["backwards"]) == (1 + 1 + 15, 12)
    assert bitta["forwards_asked"] == 1 + 1 + 4 + 15 * 189 / 64
    assert bitta["backwards_asked"] == 12 * 189 / 64
