"""Contract suite on every method, preset and norm family."""

import pytest

from bitta.methods import METHODS
from bitta.testing import CHECKS, CHECKS_WITH_ANSWERS, NORMS, Subject, needed_settings

CASES = [
    pytest.param(
        method, preset, norm, marks=[] if norm == "batch" and not preset else [pytest.mark.full]
    )
    for method, kind in METHODS.items()
    for preset in (None, *kind.Config.presets)
    for norm in NORMS
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("method", "preset", "norm"), CASES)
def test_contract(method, preset, norm, check, tmp_path):
    needed = needed_settings(method, norm, tmp_path)
    check(Subject(method, norm, settings={**needed, **({"preset": preset} if preset else {})}))


@pytest.mark.full
@pytest.mark.parametrize(
    "check",
    [check for check in CHECKS if check not in CHECKS_WITH_ANSWERS],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_contract_without_questions(method, norm, check, tmp_path):
    check(Subject(method, norm, n_queries=0, settings=needed_settings(method, norm, tmp_path)))


@pytest.mark.full
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 0.0},
        {"beta": 0.0},
        {"restore": 0.5},
        {"dropout": 0.0},
        {"passes": 1},
        {"correct_memory": 1, "incorrect_memory": 1},
        {"policy": "augmentation"},
        {"policy": "ensemble"},
        {"policy": "softmax"},
        {"agreement": "threshold", "threshold": 0.3},
        {"stream_memory": 4},
    ],
    ids=str,
)
def test_contract_holds_for_every_part_of_bitta(settings, check):
    check(Subject("bitta", "batch", settings=settings))


@pytest.mark.full
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("mecta", ["gated", "fixed"])
@pytest.mark.parametrize("method", ["tent", "eta", "eata", "bitta"])
def test_contract_holds_with_mecta(method, mecta, check):
    check(Subject(method, "batch", settings={"mecta": mecta}))
