"""Fine-tuning on judged samples before the stream begins."""

from contextlib import closing
from math import log

import pytest
import torch
from torch import nn

from bitta import Simulated
from bitta.bench.enhanced import EnhancedConfig, fine_tune
from bitta.bench.experiment import Experiment
from bitta.bench.runner import run
from bitta.bench.toml import read_toml
from bitta.errors import BittaError
from bitta.feedback import SimulatedLabels
from bitta.nn import WrappedModel
from bitta.streams import Arrangement, Domain, Stream
from small_experiment import write_experiment


def changed(tmp_path, **tables):
    table = read_toml(write_experiment(tmp_path))
    table |= {"method": {"name": "bn_stats"}, "feedback": {"n_queries": 0}}
    return Experiment.of(table | tables, name="trial")


def linear():
    """Two inputs, three classes; serves class 0 for (1, 0) and class 1 for (0, 1)."""
    model = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    return model


def tuned(source, *, inputs, **settings):
    model = linear()
    stream = Stream([Domain("d", inputs, torch.zeros(len(inputs)).long())])
    config = EnhancedConfig(**{"epochs": 1, "lr": 1.0} | settings)
    with closing(WrappedModel(model)) as wrapped:
        told = fine_tune(wrapped, stream, source, config, n_samples=len(inputs), seed=0)
    return model.weight.detach(), told


E = torch.e


def test_a_step_on_a_sample_found_correct_by_hand():
    """p = (e, 1, 1) / (e + 2); the gradient of -log p_0 is (p - onehot) x, x = (1, 0)."""
    weight, told = tuned(Simulated([0]), inputs=torch.tensor([[1.0, 0.0]]))
    assert weight[:, 0].tolist() == pytest.approx(
        [1 + 1 - E / (E + 2), -1 / (E + 2), -1 / (E + 2)], abs=1e-6
    )
    assert weight[:, 1].tolist() == [0, 1, 0]
    assert (told["n_answered"], told["n_correct"]) == (1, 1)
    assert told["loss"] == pytest.approx(log((E + 2) / E), abs=1e-6)


def test_a_step_on_a_sample_found_incorrect_by_hand():
    """-log(1 - p_0): the gradient is p_0 for class 0 and p_k - 1/2 for the others (here equal)."""
    weight, told = tuned(Simulated([1]), inputs=torch.tensor([[1.0, 0.0]]))
    p, q = E / (E + 2), 1 / (E + 2)
    assert weight[:, 0].tolist() == pytest.approx([1 - p, 0.5 - q, 0.5 - q], abs=1e-6)
    assert told["n_correct"] == 0
    assert told["loss"] == pytest.approx(-log(1 - p), abs=1e-6)


def test_a_class_that_was_named_is_learned_as_such():
    """Class 2 is named where 0 was served: cross-entropy on 2."""
    weight, told = tuned(SimulatedLabels([2], 3), inputs=torch.tensor([[1.0, 0.0]]))
    p, q = E / (E + 2), 1 / (E + 2)
    assert weight[:, 0].tolist() == pytest.approx([1 - p, -q, 1 - q], abs=1e-6)
    assert told["n_correct"] == 1


def test_both_terms_are_means_of_their_own_samples():
    """Two correct and one incorrect in one batch: CE + complementary, not weighed by number."""
    inputs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    _, told = tuned(Simulated([0, 0, 1]), inputs=inputs)
    assert told["loss"] == pytest.approx(log((E + 2) / E) - log(1 - E / (E + 2)), abs=1e-5)


def test_running_statistics_stay_and_so_does_what_is_frozen(tmp_path):
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stream = Stream([Domain("d", torch.rand(8, 2), torch.arange(8) % 3)])
    with closing(WrappedModel(model)) as wrapped:
        config = EnhancedConfig(epochs=2)
        fine_tune(wrapped, stream, Simulated(stream.truth), config, n_samples=8, seed=0)
    same = {name for name, value in model.state_dict().items() if torch.equal(value, before[name])}
    assert same == {
        "0.weight", "0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"
    }  # fmt: skip
    assert [p.requires_grad for p in model.parameters()] == [False] * 2 + [True] * 4


def test_samples_are_drawn_from_all_of_the_stream_with_their_own_labels():
    """Domain a has inputs (1, 0) and truth 0, b has (0, 1) and truth 1: all served labels hold."""
    a = Domain("a", torch.tensor([[1.0, 0.0]] * 30), torch.zeros(30).long())
    b = Domain("b", torch.tensor([[0.0, 1.0]] * 10), torch.ones(10).long())
    asked = []

    class Watching(Simulated):
        def ask(self, queries):
            asked[:] = queries
            super().ask(queries)

    for order in ("continual", "mixed"):
        stream = Stream([a, b], arrangement=Arrangement(order=order))
        with closing(WrappedModel(linear())) as wrapped:
            told = fine_tune(
                wrapped, stream, Watching(stream.truth), EnhancedConfig(epochs=1), n_samples=20,
                seed=1,
            )  # fmt: skip
        assert told["n_correct"] == told["n_samples"] == 20
        assert len({query.position for query in asked}) == 20
        assert {query.label for query in asked} == {0, 1}


def test_a_run_is_fine_tuned_first_and_says_so(tmp_path):
    """14 batches at BiTTA's 3 questions: 42 samples, 5 epochs of 3 steps of 16."""
    seen = []
    experiment = changed(tmp_path, enhanced={"epochs": 5, "batch_size": 16, "lr": 0.1})
    result = run(experiment, out=tmp_path, on_tuning=lambda *told: seen.append(told[:2]))
    assert seen == [(done, 15) for done in range(1, 16)]
    assert result.extra["enhanced"]["n_samples"] == 42
    assert 0 < result.extra["enhanced"]["n_correct"] < 42
    assert result.total("n_asked") == 0
    plain = run(changed(tmp_path), out=tmp_path / "plain")
    assert "enhanced" not in plain.extra
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
def test_as_many_samples_as_questions_would_be_asked(tmp_path, feedback, n_samples):
    experiment = changed(tmp_path, enhanced={"epochs": 1}, feedback=feedback)
    assert run(experiment, out=tmp_path).extra["enhanced"]["n_samples"] == n_samples


def test_a_run_that_ends_before_its_first_question_wants_a_number(tmp_path):
    table = read_toml(write_experiment(tmp_path)) | {"enhanced": {"epochs": 1}}
    table["stream"] |= {"batch_size": 1, "window": 101}
    with pytest.raises(BittaError, match=r"before its first question; give enhanced\.n_samples"):
        run(Experiment.of(table, name="trial"), out=tmp_path)


def test_what_a_method_refuses_it_refuses_before_the_work(tmp_path):
    tuned = []
    experiment = changed(
        tmp_path, method={"name": "bn_stats", "sites": ["nowhere"]}, enhanced={"epochs": 1}
    )
    with pytest.raises(BittaError, match="nowhere"):
        run(experiment, out=tmp_path, on_tuning=lambda *_: tuned.append(1))
    assert not tuned
    with pytest.raises(BittaError, match="owttt needs statistics of the very weights"):
        changed(tmp_path, method={"name": "owttt", "source_statistics": "x"}, enhanced={})


def test_tuning_that_falls_apart_leaves_a_result_that_says_so(tmp_path):
    experiment = changed(tmp_path, enhanced={"epochs": 3, "lr": 1e38})
    assert run(experiment, out=tmp_path).extra["enhanced"]["loss"] is None


def test_sections_say_how_much(tmp_path):
    assert changed(tmp_path).enhanced.n_samples == 0
    assert changed(tmp_path, enhanced={}).enhanced.n_samples == -1
    assert changed(tmp_path, enhanced={"n_samples": 7}).enhanced.n_samples == 7
    for given, message in (
        ({"n_samples": -2}, "n_samples is -2"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lr": 0}, r"lr is 0\.0"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"batch": 1}, r"unknown setting 'batch' of \[enhanced\]"),
    ):
        with pytest.raises(BittaError, match=message):
            changed(tmp_path, enhanced=given)
