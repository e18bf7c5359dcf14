"""What methods cost, counted."""

import json
from importlib.resources import files

from bitta.bench.passes import count_passes
from bitta.methods import METHODS

TABLE = json.loads((files("bitta") / "assets" / "passes.json").read_text())["passes"]


def test_every_method_was_counted():
    assert list(TABLE) == list(METHODS)


def test_what_is_listed_is_what_is_counted():
    assert vars(count_passes("source")) == TABLE["source"]


def test_tent_and_bitta_cost_what_can_be_worked_out():
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
