"""Test that NUMERICS_VERSION is raised when the numbers of a run change.

    python tests/test_numerics_version.py [METHOD ...]

stores the numbers of a new method, or of all methods after NUMERICS_VERSION was raised. Names of
methods replace their stored numbers. Use this only if no results of these methods are published.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bitta.bench.experiment import Experiment, ModelConfig
from bitta.bench.make_source_statistics import SourceImagesConfig, make_statistics
from bitta.bench.runner import RunOptions, run
from bitta.methods import METHODS
from bitta.version import NUMERICS_VERSION

FILE = Path(__file__).parent / "golden" / "numerics.json"
WEIGHTS = "embedded:cifar10-resnet8"
SETTINGS = {
    "cotta": {"n_augmentations": 8},  # for speed
    # Images that complete F in the second batch, and a weight that makes its penalty matter.
    "eata": {"fisher_samples": 16, "fisher_weight": 30.0},
    # Few clusters, because rounding decides which sample of a cluster of two is the central one.
    "simatta": {"clusters": 4, "starts": 20, "steps": 3, "low_entropy": 0.5},
}
"""Settings with which every term appears in a short stream, and rounding hardly matters."""
TOLERANCE = 5e-3
"""Relative tolerance. Rounding differs between machines; a changed formula changes more."""


def write_statistics(path):
    """Write the source statistics that some methods need. Return the setting that names them."""
    images = SourceImagesConfig(data="embedded:cifar10", n=256, fisher_samples=0)
    make_statistics(ModelConfig(weights=WEIGHTS), images, out=path)
    return {"source_statistics": str(path)}


def measure(method, folder):
    """Run a method on a short stream. Return its losses and confidence."""
    settings = dict(SETTINGS.get(method, {}))
    if "source statistics" in METHODS[method].needs:
        settings |= write_statistics(folder / "statistics.safetensors")
    table = {
        "stream": {
            "kind": "corruptions", "corruptions": "fog,contrast", "n_samples": 32, "batch_size": 16
        },
        "model": {"weights": WEIGHTS},
        "method": {"name": method, **settings},
        "feedback": {"n_queries": 3},
    }  # fmt: skip
    experiment = Experiment.from_table(table, name="numerics")
    result = run(experiment, RunOptions(out=folder, eager=True, precision="float32"))
    return {
        "confidence": [step.confidence for step in result.steps],
        "losses": [dict(step.losses) for step in result.steps],
    }


@pytest.mark.parametrize("method", METHODS)
def test_numbers_change_only_with_the_numerics_version(method, tmp_path):
    stored = json.loads(FILE.read_text())
    advice = "raise NUMERICS_VERSION in bitta/version.py, then run this file to store the numbers"
    assert stored["numerics_version"] == NUMERICS_VERSION, advice
    assert method in stored["methods"], "run this file to store the numbers of a new method"
    found, expected = measure(method, tmp_path), stored["methods"][method]
    assert found["confidence"] == pytest.approx(expected["confidence"], rel=TOLERANCE), advice
    for step, expected_step in zip(found["losses"], expected["losses"], strict=True):
        assert step == pytest.approx(expected_step, rel=TOLERANCE, abs=1e-5), advice


def write(replaced) -> None:
    """Store the numbers of all methods. Numbers of this version stay, except the replaced ones."""
    stored = json.loads(FILE.read_text())
    methods = stored["methods"] if stored["numerics_version"] == NUMERICS_VERSION else {}
    methods = {name: methods[name] for name in methods if name not in replaced}
    for method in METHODS.keys() - methods.keys():
        with TemporaryDirectory() as folder:
            methods[method] = measure(method, Path(folder))
    table = {
        "numerics_version": NUMERICS_VERSION,
        "methods": {method: methods[method] for method in METHODS},
    }
    FILE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    write(sys.argv[1:])
