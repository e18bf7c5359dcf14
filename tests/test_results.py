"""Tests of result files."""

import json
from dataclasses import replace

import pytest
import torch

from bitta.errors import InputError
from bitta.metrics import Agreement, Reliability
from bitta.results import RunResult, StepRecord, describe_environment
from bitta.version import NUMERICS_VERSION


def step(domain="fog", n_correct=5, losses=None, **changes):
    return StepRecord(domain, 10, n_correct, 3, 2, 1, losses or {}, 0.5, **changes)


def result(steps, **changes):
    return RunResult(
        {"name": "x"}, "protocol", {}, steps, Reliability(), 0, 0, 0, "hash", **changes
    )


STEPS = [
    step(losses={"a": 1.5}, brier=4.0, n_measured=10, n_agreeing=6, n_agreeing_correct=4),
    step(losses={"a": None, "b": 0.25}, brier=6.0),
    step("snow", n_correct=1, brier=2.0, n_measured=10, n_agreeing=5, n_agreeing_correct=1,
         confidence=7.5, policy_confidence=6.25),
    step("fog", losses={"b": -1.0}),
]  # fmt: skip


def test_saved_result_is_read_back_unchanged(tmp_path):
    policy = Reliability().add(torch.tensor([0.7, 0.9]), torch.tensor([True, False]))
    spreads = {"fog": {"served": 0.5, "true": 1.0}}
    saved = result(STEPS, spreads=spreads, extra={"price": 1.0}, policy_reliability=policy)
    saved.save(tmp_path / "r.json")
    assert RunResult.load(tmp_path / "r.json") == saved
    summary = json.loads((tmp_path / "r.json").read_text())["summary"]
    assert summary["policy_ece"] == pytest.approx(100 * (0.3 + 0.9) / 2)
    nothing_learned = result([step(), step()])
    nothing_learned.save(tmp_path / "s.json")
    assert RunResult.load(tmp_path / "s.json") == nothing_learned


def test_nan_predictions_have_no_calibration_error(tmp_path):
    """NaN confidences count as 0, and all their samples as wrong, so the calibration error is 0."""
    sure = Reliability().add(torch.tensor([0.7, 0.9]), torch.tensor([True, False]))
    kept = result([step(confidence=7.5), step(confidence=4.0)], policy_reliability=sure)
    lost = replace(kept, steps=[step(confidence=7.5), step(confidence=0.0, n_correct=0)])
    assert (kept.first_nan_batch, lost.first_nan_batch) == (None, 2)
    assert kept.ece is not None
    assert kept.policy_ece is not None
    lost.save(tmp_path / "r.json")
    summary = json.loads((tmp_path / "r.json").read_text())["summary"]
    assert (summary["ece"], summary["policy_ece"]) == (None, None)


def test_steps_are_stored_as_columns_of_one_line_each(tmp_path):
    result(STEPS).save(tmp_path / "r.json")
    lines = [line.strip().rstrip(",") for line in (tmp_path / "r.json").read_text().splitlines()]
    assert '"domain": [["fog",2],["snow",1],["fog",1]]' in lines
    assert '"n_correct": [5,5,1,5]' in lines
    assert '"a": [1.5,"nan",null,null]' in lines
    assert '"b": [null,0.25,null,-1.0]' in lines
    assert '"brier": [4.0,6.0,2.0,null]' in lines
    assert '"confidence": [null,null,7.5,null]' in lines
    assert '"policy_confidence": [null,null,6.25,null]' in lines


def test_file_without_confidence_is_read(tmp_path):
    result(STEPS).save(tmp_path / "r.json")
    table = json.loads((tmp_path / "r.json").read_text())
    del table["steps"]["confidence"], table["steps"]["policy_confidence"]
    (tmp_path / "r.json").write_text(json.dumps(table))
    read = RunResult.load(tmp_path / "r.json")
    assert {(each.confidence, each.policy_confidence) for each in read.steps} == {(None, None)}
    assert [each.n_correct for each in read.steps] == [5, 5, 1, 5]


def test_file_of_another_format_is_refused(tmp_path):
    result(STEPS).save(tmp_path / "r.json")
    table = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps(table | {"format": 1}))
    with pytest.raises(InputError, match="is a result of format 1"):
        RunResult.load(tmp_path / "r.json")


def test_brier_and_agreement_use_measured_steps_only():
    """Brier (4 + 6 + 2) / 30; agreeing 11 of 20, 5 of them right; 1 of the other 9 is right."""
    assert result(STEPS).brier == pytest.approx(0.4)
    assert result(STEPS).agreement == Agreement(20, 11, 5, 6)
    assert result([step()]).brier is None
    assert result([step()]).agreement.rate is None


def test_collapse_is_found_alone_and_against_the_source():
    run = result(STEPS, spreads={"fog": {"served": 0.29, "true": 1.0}})
    assert run.looks_collapsed == ["fog"]
    source = result([step("fog", n_correct=10), step("snow", n_correct=3)])
    assert run.collapsed(source) == ["snow"]  # 10 % against 30 %; fog has 50 % against 100 %


def test_unmeasured_run_is_not_reported_as_sound(tmp_path):
    result(STEPS).save(tmp_path / "r.json")
    summary = json.loads((tmp_path / "r.json").read_text())["summary"]
    assert summary["looks_collapsed"] is None
    assert summary["brier"] == pytest.approx(0.4)
    assert summary["agreement"] == pytest.approx(55)


def test_code_version_is_the_numerics_version_or_the_hash_of_older_results():
    assert replace(result(STEPS), environment={"numerics_version": 3}).code_version == "v3"
    assert replace(result(STEPS), environment={"code": "0" * 64}).code_version == "0" * 64
    assert replace(result(STEPS), environment={}).code_version == ""


def test_environment_holds_the_numerics_version_and_no_hash_of_the_source():
    found = describe_environment(torch.device("cpu"), "weights")
    assert found["numerics_version"] == NUMERICS_VERSION
    assert "code" not in found
