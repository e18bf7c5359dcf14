"""What a run leaves behind, as a file."""

import json

import pytest

from bitta.errors import InputError
from bitta.metrics import Agreement, Reliability
from bitta.results import RunResult, StepRecord


def step(domain="fog", n_correct=5, losses=None, **changes):
    return StepRecord(domain, 10, n_correct, 3, 2, 1, losses or {}, 0.5, **changes)


def result(steps, **changes):
    return RunResult(
        {"name": "x"}, "protocol", {}, steps, Reliability(), 0, 0, 0, "hash", **changes
    )


STEPS = [
    step(losses={"a": 1.5}, brier=4.0, n_measured=10, n_agreeing=6, n_agreeing_correct=4),
    step(losses={"a": None, "b": 0.25}, brier=6.0),
    step("snow", n_correct=1, brier=2.0, n_measured=10, n_agreeing=5, n_agreeing_correct=1),
    step("fog", losses={"b": -1.0}),
]


def test_what_is_saved_is_what_is_read(tmp_path):
    saved = result(STEPS, spreads={"fog": {"served": 0.5, "true": 1.0}}, extra={"price": 1.0})
    saved.save(tmp_path / "r.json")
    assert RunResult.load(tmp_path / "r.json") == saved
    nothing_learned = result([step(), step()])
    nothing_learned.save(tmp_path / "s.json")
    assert RunResult.load(tmp_path / "s.json") == nothing_learned


def test_steps_are_columns_a_line_each(tmp_path):
    result(STEPS).save(tmp_path / "r.json")
    lines = [line.strip().rstrip(",") for line in (tmp_path / "r.json").read_text().splitlines()]
    assert '"domain": [["fog",2],["snow",1],["fog",1]]' in lines
    assert '"n_correct": [5,5,1,5]' in lines
    assert '"a": [1.5,"nan",null,null]' in lines
    assert '"b": [null,0.25,null,-1.0]' in lines
    assert '"brier": [4.0,6.0,2.0,null]' in lines


def test_a_file_of_another_version_is_refused(tmp_path):
    result(STEPS).save(tmp_path / "r.json")
    table = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps(table | {"format": 1}))
    with pytest.raises(InputError, match="is not a result of this version"):
        RunResult.load(tmp_path / "r.json")


def test_brier_and_agreement_over_what_was_measured():
    """Brier (4 + 6 + 2) / 30; agreeing 11 of 20, 5 of them right; 1 of the other 9 is right."""
    assert result(STEPS).brier == pytest.approx(0.4)
    assert result(STEPS).agreement == Agreement(20, 11, 5, 6)
    assert result([step()]).brier is None
    assert result([step()]).agreement.rate is None


def test_collapse_alone_and_against_the_source():
    run = result(STEPS, spreads={"fog": {"served": 0.29, "true": 1.0}})
    assert run.looks_collapsed == ["fog"]
    source = result([step("fog", n_correct=10), step("snow", n_correct=3)])
    assert run.collapsed(source) == ["snow"]  # 10 % against 30 %; fog has 50 % against 100 %


def test_what_was_not_measured_is_not_called_sound(tmp_path):
    result(STEPS).save(tmp_path / "r.json")
    summary = json.loads((tmp_path / "r.json").read_text())["summary"]
    assert summary["looks_collapsed"] is None
    assert summary["brier"] == pytest.approx(0.4)
    assert summary["agreement"] == pytest.approx(55)
