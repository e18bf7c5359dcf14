"""Tests of the output of bitta run."""

import re

from bitta.bench.run_files import file_lock
from bitta.cli.main import main
from bitta.metrics import Reliability
from bitta.report.tables import agreement_line, collapse_line, summary_rows
from bitta.results import RunResult, StepRecord
from small_experiment import write_experiment


def result(**changes):
    steps = [StepRecord("fog", 10, 6, 3, 2, 1, {}, 0.5, **changes)]
    return RunResult({"name": "x"}, "protocol", {}, steps, Reliability(), 0, 0, 0, "hash")


def test_brier_column_exists_if_it_was_measured():
    rows = summary_rows({"new": result(brier=4.0), "old": result()})
    place = rows[0].index("Brier")
    assert [row[place] for row in rows[1:]] == ["0.400", "-"]
    assert "Brier" not in summary_rows({"old": result()})[0]


def test_agreement_is_described_in_one_line():
    """8 of 10 agree, 6 of these and none of the others are right."""
    measured = result(n_measured=10, n_agreeing=8, n_agreeing_correct=6)
    assert agreement_line(measured) == (
        "policy and served label agree on 80.0 %; accuracy 75.0 % if they agree, "
        "0.0 % if they differ"
    )
    assert agreement_line(result()) == ""
    everywhere = result(n_measured=10, n_agreeing=10, n_agreeing_correct=6)
    assert "100.0 %; accuracy 60.0 % if they agree" in agreement_line(everywhere)
    assert "differ" not in agreement_line(everywhere)


def test_healthy_run_gives_no_warning():
    assert collapse_line(result()) == ""


def ran(path, tmp_path, capsys, *changes):
    command = ["run", str(path), "--out", str(tmp_path)]
    for change in changes:
        command += ["--set", change]
    assert main(command) == 0
    return capsys.readouterr().out


def test_run_prints_brier_and_agreement(tmp_path, capsys):
    out = ran(write_experiment(tmp_path), tmp_path, capsys)
    assert re.search(r"ECE +Brier +questions", out)
    line = r"\npolicy and served label agree on [\d.]+ %; accuracy [\d.]+ % if they agree, "
    assert re.search(line, out)


def test_model_that_serves_one_class_gives_a_collapse_warning(tmp_path, capsys):
    out = ran(
        write_experiment(tmp_path),
        tmp_path,
        capsys,
        "model.factory=small_experiment:one_class_classifier",
        'method={name="source"}',
        "feedback.n_queries=0",
    )
    assert "\nthis run looks collapsed in day, night: the labels served there are nearly" in out
    assert "policy:" not in out


def test_model_with_nan_outputs_gives_a_warning_with_the_batch(tmp_path, capsys):
    out = ran(
        write_experiment(tmp_path),
        tmp_path,
        capsys,
        "model.factory=small_experiment:broken_classifier",
        'method={name="source"}',
        "feedback.n_queries=0",
    )
    message = r"\nbatch 1 of \d+ is the first whose predictions are all NaN: .* smaller method"
    assert re.search(message, out)
    assert "looks collapsed" not in out


def test_run_prints_preparation_before_the_stream(tmp_path, capsys):
    preparation = 'before_stream={factory="small_experiment:AddNoise", n_batches=2}'
    out = ran(write_experiment(tmp_path), tmp_path, capsys, preparation)
    assert re.search(r"before the stream\s+batch 2/2  loss [\d.]+\n", out)
    assert re.search(r"\nbefore the stream: n_batches 2, in [\d.]+ s, once for all runs", out)


def test_run_prints_clean_accuracy(tmp_path, capsys):
    path = tmp_path / "trial.toml"
    path.write_text(
        '[stream]\nkind = "corruptions"\ncorruptions = "fog"\nn_samples = 8\n'
        '[model]\nweights = "embedded:cifar10-resnet8"\n[method]\nname = "source"\n'
        "[forgetting]\nn_samples = 20\n"
    )
    out = ran(path, tmp_path, capsys)
    assert re.search(r"\n.* 20 clean images: ([\d.]+) % before .*, \1 % after .*\n", out)


def test_second_process_for_the_same_result_is_refused(tmp_path, capsys):
    def give_up():
        raise AssertionError("the lock was free")

    path = write_experiment(tmp_path)
    with file_lock(tmp_path / f"{path.stem}-seed0.json", on_wait=give_up):
        assert main(["run", str(path), "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "another process is writing" in told
    assert "--out" in told
    assert not list(tmp_path.glob("*-seed0.json"))
