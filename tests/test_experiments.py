"""Every experiment in the repository can be read, and says what it is."""

from pathlib import Path

import pytest

from bitta.bench.experiment import Experiment
from bitta.methods import METHODS
from bitta.unsupervised import UnsupervisedAdapter

FOLDER = Path(__file__).parents[1] / "experiments"
FILES = sorted(FOLDER.rglob("*.toml"))
ROWS = {path.stem for path in (FOLDER / "cifar10-c").glob("*.toml")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_experiment_can_be_read_and_begins_with_what_it_is(path):
    assert Experiment.read(path).name == path.stem
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_its_rows(method):
    kind = METHODS[method]
    wanted = {method} if method != "simatta" else {"simatta-feedback", "simatta-labels"}
    if issubclass(kind, UnsupervisedAdapter):
        wanted |= {f"{method}-feedback"}
        if "reference" in kind.Config.presets:
            wanted |= {f"{method}-reference"}
    assert wanted <= ROWS


def test_rows_of_one_table_differ_in_method_and_feedback_alone():
    tables = [Experiment.read(FOLDER / "cifar10-c" / f"{row}.toml").as_table() for row in ROWS]
    assert all(table["stream"] == tables[0]["stream"] for table in tables)
    assert all(table["model"] == tables[0]["model"] for table in tables)
