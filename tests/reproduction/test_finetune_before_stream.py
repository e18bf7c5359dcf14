"""Tests of fine-tuning on samples with answers before the stream begins."""

from contextlib import closing
from functools import partial
from math import log
from statistics import fmean

import pytest
import torch
from torch import nn

from bitta import Simulated, testing
from bitta.bench.before_stream import PreparationProgress
from bitta.bench.experiment import Experiment, read_toml
from bitta.bench.runner import RunStopped
from bitta.errors import BittaError
from bitta.feedback import SimulatedLabels
from bitta.nn import WrappedModel
from bitta.streams import Arrangement, Domain, Stream
from reproduction.finetune_before_stream import FinetuneBeforeStream, draw_samples, finetune
from small_experiment import run_experiment, without_times, write_experiment

FACTORY = {"factory": "reproduction.finetune_before_stream:FinetuneBeforeStream"}
# 30 samples in batches of 8: 4 per epoch, 12 in all.
TWELVE = {"epochs": 3, "n_samples": 30, "batch_size": 8, "lr": 0.1, "momentum": 0.9} | FACTORY


def changed(tmp_path, *, before_stream=None, **tables):
    """Return a small experiment with a changed table [before_stream]."""
    table = read_toml(write_experiment(tmp_path))
    table |= {"method": {"name": "bn_stats"}, "feedback": {"n_queries": 0}} | tables
    if before_stream is not None:
        table["before_stream"] = FACTORY | before_stream
    return Experiment.from_table(table, name="trial")


def linear():
    """Return a linear model that predicts class 0 for (1, 0) and class 1 for (0, 1), of three."""
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    return model


def finetune_model(model, stream, source, *, n_samples, seed=0, **settings):
    """Draw samples, ask and fine-tune. Return the values for the result."""
    config = FinetuneBeforeStream(**FACTORY, **({"epochs": 1, "lr": 1.0} | settings))
    with closing(WrappedModel(model)) as wrapped:
        samples = draw_samples(wrapped, stream, source, n_samples, config.batch_size, seed)
        return finetune(wrapped, samples, config, PreparationProgress(), lambda *_: None, seed)


def finetune_linear(source, *, inputs, **settings):
    model = linear()
    stream = Stream([Domain("d", inputs, torch.zeros(len(inputs)).long())])
    values = finetune_model(model, stream, source, n_samples=len(inputs), **settings)
    return model.weight.detach(), values


E = torch.e


def test_update_on_a_correct_sample_equals_hand_computation():
    """p = (e, 1, 1) / (e + 2); the gradient of -log p_0 is (p - onehot) x, x = (1, 0)."""
    weight, values = finetune_linear(Simulated([0]), inputs=torch.tensor([[1.0, 0.0]]))
    assert weight[:, 0].tolist() == pytest.approx(
        [1 + 1 - E / (E + 2), -1 / (E + 2), -1 / (E + 2)], abs=1e-6
    )
    assert weight[:, 1].tolist() == [0, 1, 0]
    assert (values["n_answered"], values["n_correct"]) == (1, 1)
    assert values["loss"] == pytest.approx(log((E + 2) / E), abs=1e-6)


def test_update_on_an_incorrect_sample_equals_hand_computation():
    """-log(1 - p_0): the gradient is p_0 for class 0 and p_k - 1/2 for the others (here equal)."""
    weight, values = finetune_linear(Simulated([1]), inputs=torch.tensor([[1.0, 0.0]]))
    p, q = E / (E + 2), 1 / (E + 2)
    assert weight[:, 0].tolist() == pytest.approx([1 - p, 0.5 - q, 0.5 - q], abs=1e-6)
    assert values["n_correct"] == 0
    assert values["loss"] == pytest.approx(-log(1 - p), abs=1e-6)


def test_full_label_is_learned_with_cross_entropy():
    """Class 2 is named where 0 was predicted: cross-entropy on 2."""
    inputs = torch.tensor([[1.0, 0.0]])
    weight, values = finetune_linear(SimulatedLabels([2], 3), inputs=inputs)
    p, q = E / (E + 2), 1 / (E + 2)
    assert weight[:, 0].tolist() == pytest.approx([1 - p, -q, 1 - q], abs=1e-6)
    assert values["n_correct"] == 1


def test_both_terms_are_means_over_their_own_samples():
    """Two correct and one incorrect in one batch: CE + complementary, not weighted by number."""
    inputs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    _, values = finetune_linear(Simulated([0, 0, 1]), inputs=inputs)
    assert values["loss"] == pytest.approx(log((E + 2) / E) - log(1 - E / (E + 2)), abs=1e-5)


def test_running_statistics_and_frozen_parameters_stay():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stream = Stream([Domain("d", torch.rand(8, 2), torch.arange(8) % 3)])
    finetune_model(model, stream, Simulated(stream.truth), n_samples=8, epochs=2, lr=1e-3)
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert same == {
        "0.weight", "0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip
    assert [p.requires_grad for p in model.parameters()] == [False] * 2 + [True] * 4


def test_samples_are_drawn_from_the_whole_stream_with_their_own_labels():
    """Domain a has inputs (1, 0) and truth 0, b has (0, 1) and truth 1: all labels are right."""
    a = Domain("a", torch.tensor([[1.0, 0.0]] * 30), torch.zeros(30).long())
    b = Domain("b", torch.tensor([[0.0, 1.0]] * 10), torch.ones(10).long())
    asked = []

    class Watching(Simulated):
        def ask(self, queries):
            asked[:] = queries
            super().ask(queries)

    for order in ("continual", "mixed"):
        stream = Stream([a, b], arrangement=Arrangement(order=order))
        source = Watching(stream.truth)
        values = finetune_model(linear(), stream, source, n_samples=20, seed=1, lr=1e-3)
        assert values["n_correct"] == values["n_samples"] == 20
        assert len({query.position for query in asked}) == 20
        assert {query.shown_label for query in asked} == {0, 1}


def test_run_is_fine_tuned_first_and_records_it(tmp_path):
    """14 batches with BiTTA's 3 questions: 42 samples, 5 epochs of 3 batches of 16."""
    batches = []
    settings = {"epochs": 5, "batch_size": 16, "lr": 0.1}
    result = run_experiment(
        changed(tmp_path, before_stream=settings),
        out=tmp_path,
        on_preparation=lambda done, total, _: batches.append((done, total)),
    )
    assert batches == [(done, 15) for done in range(1, 16)]
    values = result.extra["before_stream"]
    assert values["n_samples"] == 42
    assert 0 < values["n_correct"] < 42
    assert result.total("n_asked") == 0
    plain = run_experiment(changed(tmp_path), out=tmp_path / "plain")
    assert plain.final_weights != result.final_weights
    assert plain.environment["source_weights"] == result.environment["source_weights"]


@pytest.mark.parametrize(
    ("feedback", "n_samples"),
    [
        ({"n_queries": 2}, 28),
        ({"n_queries": 2, "every": 2}, 14),
        ({"n_queries": 2, "total": 5}, 5),
        ({"total": 0}, 42),
        ({"n_queries": 2, "labels": "full", "equal": "bits"}, 12),
    ],
)
def test_number_of_samples_equals_questions_of_the_run(tmp_path, feedback, n_samples):
    experiment = changed(tmp_path, before_stream={"epochs": 1}, feedback=feedback)
    result = run_experiment(experiment, out=tmp_path)
    assert result.extra["before_stream"]["n_samples"] == n_samples


def test_run_without_questions_needs_a_number_of_samples(tmp_path):
    table = read_toml(write_experiment(tmp_path)) | {"before_stream": FACTORY | {"epochs": 1}}
    table["stream"] |= {"batch_size": 1, "window": 101}
    with pytest.raises(BittaError, match=r"before its first question; give before_stream"):
        run_experiment(Experiment.from_table(table, name="trial"), out=tmp_path)


def test_diverged_loss_is_recorded_as_none(tmp_path):
    experiment = changed(tmp_path, before_stream={"epochs": 3, "lr": 1e38})
    assert run_experiment(experiment, out=tmp_path).extra["before_stream"]["loss"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_samples": -2}, "n_samples is -2"),
        ({"n_samples": 0}, "n_samples is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lr": 0}, r"lr is 0\.0"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"batch": 1}, r"unknown setting 'batch' of \[before_stream\]"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, given, message):
    with pytest.raises(BittaError, match=message):
        changed(tmp_path, before_stream=given)


@pytest.mark.parametrize("key", ["record", "replay"])
def test_logs_of_answers_are_refused(tmp_path, key):
    with pytest.raises(BittaError, match="a log of answers does not hold"):
        changed(tmp_path, before_stream={}, feedback={key: "log.jsonl"})


@pytest.fixture
def run_twelve(tmp_path):
    """Run an experiment with 12 batches of fine-tuning. Return their numbers and losses."""

    def run(out, *, stop_after=None, options=None, **tables):
        reported = []
        experiment = changed(tmp_path, **({"before_stream": TWELVE} | tables))
        defaults = {
            "on_preparation": lambda done, _, loss: reported.append((done, loss)),
            "should_stop": lambda: bool(reported) and reported[-1][0] == stop_after,
        }
        run_experiment(experiment, out=tmp_path / out, resume=True, **(defaults | (options or {})))
        return reported

    return run


@pytest.fixture
def result(tmp_path):
    """Return the result of a run, without times."""
    return lambda out, name="trial": without_times(tmp_path / out / f"{name}-seed0.json")


def test_stop_within_or_after_an_epoch_continues_to_the_same_result(run_twelve, result):
    for stop in (3, 8, 10):
        with pytest.raises(RunStopped, match="stopped after batch 0 of 14"):
            run_twelve("parts", stop_after=stop)
    assert [done for done, _ in run_twelve("parts")] == [11, 12]
    whole = run_twelve("whole")
    assert [done for done, _ in whole] == list(range(1, 13))
    assert result("parts") == result("whole")
    mean_loss = result("whole")["extra"]["before_stream"]["loss"]
    assert mean_loss == fmean(loss for _, loss in whole[-4:])


def test_kill_loses_only_batches_after_the_last_save(run_twelve, result, monkeypatch):
    def kill(reported, done, *_):
        reported.append(done)
        if done == 5:
            monkeypatch.setattr(PreparationProgress, "save", lambda *_: None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_twelve("parts", options={"checkpoint_seconds": 0, "on_preparation": partial(kill, [])})
    monkeypatch.undo()
    assert [done for done, _ in run_twelve("parts")] == list(range(5, 13))
    run_twelve("whole")
    assert result("parts") == result("whole")


def test_methods_share_the_fine_tuned_model(run_twelve, result, monkeypatch):
    run_twelve("all")
    sar = {"method": {"name": "sar"}, "name": "sar"}
    with monkeypatch.context() as patched:
        patched.setattr(FinetuneBeforeStream, "prepare", lambda *_: pytest.fail("tuned again"))
        assert run_twelve("all", **sar) == []
    assert len(run_twelve("alone", **sar)) == 12
    assert result("all", "sar") == result("alone", "sar")


@pytest.mark.parametrize(
    ("tables", "is_shared"),
    [
        ({"feedback": {"n_queries": 2}}, True),
        ({"feedback": {"n_queries": 0, "delay": 3, "answer_every": 2}}, True),
        ({"before_stream": TWELVE | {"n_samples": 29}}, False),
        ({"feedback": {"n_queries": 0, "flip": 0.5}}, False),
        ({"feedback": {"n_queries": 0, "labels": "full"}}, False),
    ],
)
def test_only_settings_that_change_the_model_make_another(run_twelve, tables, is_shared):
    run_twelve("out")
    assert (run_twelve("out", name="second", **tables) == []) == is_shared


def test_model_with_other_frozen_parameters_is_fine_tuned_again(run_twelve, result, monkeypatch):
    original = testing.toy_classifier

    def frozen(*, n_frozen):
        model = original()
        for parameter in list(model.parameters())[:n_frozen]:
            parameter.requires_grad_(False)
        return model

    monkeypatch.setattr(testing, "toy_classifier", partial(frozen, n_frozen=2))
    run_twelve("out")
    monkeypatch.setattr(testing, "toy_classifier", partial(frozen, n_frozen=4))
    assert run_twelve("out", name="second")
    run_twelve("alone", name="second")
    assert result("out", "second") == result("alone", "second")
