"""Which predictions are worth a question, and how many may be asked."""

from collections.abc import Mapping

from bitta.errors import unknown
from bitta.selection.budget import Budget
from bitta.selection.candidates import Candidates, Selector
from bitta.selection.deterministic import confidence, energy, entropy, last
from bitta.selection.mc_confidence import mc_confidence
from bitta.selection.random import random

SELECTORS: Mapping[str, Selector] = {
    "mc_confidence": mc_confidence,
    "entropy": entropy,
    "confidence": confidence,
    "energy": energy,
    "random": random,
    "last": last,
}


def selector_named(name: str) -> Selector:
    """Look a selector up; an unknown name gets the nearest known one."""
    if name not in SELECTORS:
        raise unknown("selection", name, SELECTORS)
    return SELECTORS[name]


__all__ = ["SELECTORS", "Budget", "Candidates", "Selector", "selector_named"]
