"""Fixtures of the report's tests."""

import pytest

from bitta.report.comparison import compare
from made_results import made_run, made_section


@pytest.fixture
def comparison(tmp_path):
    """Fog and snow: source 40 80, TENT* 10 90 and 20 90 (a collapse), BiTTA 60 80 and 80 90."""
    runs = [
        made_run("source", "source", [4, 8]),
        made_run("tent-feedback", "tent", [1, 9]),
        made_run("tent-feedback", "tent", [2, 9], seed=1),
        made_run("bitta", "bitta", [6, 8]),
        made_run("bitta", "bitta", [8, 9], seed=1),
    ]
    return compare(made_section(tmp_path, runs))
