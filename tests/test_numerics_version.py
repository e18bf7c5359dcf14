"""Test that NUMERICS_VERSION is raised when the numbers of a run change.

    python tests/test_numerics_version.py

writes the file again, after NUMERICS_VERSION was raised.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bitta.bench.experiment import Experiment
from bitta.bench.runner import RunOptions, run
from bitta.version import NUMERICS_VERSION

FILE = Path(__file__).parent / "golden" / "numerics.json"
METHODS = ("bn_stats", "tent", "sar", "sotta", "bitta")
TOLERANCE = 1e-3
"""Relative tolerance. Rounding differs between machines; a changed formula changes more."""


def measure(method):
    """Run a method on a short stream. Return its losses and confidence."""
    table = {
        "stream": {
            "kind": "corruptions", "corruptions": "fog,contrast", "n_samples": 32, "batch_size": 16
        },
        "model": {"weights": "embedded:cifar10-resnet8"},
        "method": {"name": method},
        "feedback": {"n_queries": 3},
    }  # fmt: skip
    experiment = Experiment.from_table(table, name="numerics")
    with TemporaryDirectory() as folder:
        options = RunOptions(out=Path(folder), eager=True, precision="float32")
        result = run(experiment, options)
    return {
        "confidence": [step.confidence for step in result.steps],
        "losses": [dict(step.losses) for step in result.steps],
    }


@pytest.mark.parametrize("method", METHODS)
def test_numbers_change_only_with_the_numerics_version(method):
    stored = json.loads(FILE.read_text())
    advice = "raise NUMERICS_VERSION in bitta/version.py, then run this file to store the numbers"
    assert stored["numerics_version"] == NUMERICS_VERSION, advice
    found, expected = measure(method), stored["methods"][method]
    assert found["confidence"] == pytest.approx(expected["confidence"], rel=TOLERANCE), advice
    for step, expected_step in zip(found["losses"], expected["losses"], strict=True):
        assert step == pytest.approx(expected_step, rel=TOLERANCE, abs=1e-5), advice


def write() -> None:
    """Store the numbers of all methods."""
    table = {
        "numerics_version": NUMERICS_VERSION,
        "methods": {method: measure(method) for method in METHODS},
    }
    FILE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    write()
