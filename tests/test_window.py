"""Tests of SampleWindow and of sessions with a window."""

import pytest
import torch

from bitta import Session, Simulated
from bitta.memory import SampleWindow
from bitta.nn import batch_norms, named_tensors
from bitta.seeding import generator
from bitta.testing import toy_classifier
from bitta.types import Prediction

METHODS = ["source", "bn_stats", "tent", "bitta"]


def images(n, seed=0):
    return torch.rand(n, 3, 8, 8, generator=generator(seed, "window"))


def session(method="bitta", **settings):
    return Session(toy_classifier(), method, n_queries=2, seed=3, **settings)


def serve(running, inputs, size):
    return [running.step(part)[0] for part in inputs.split(size)]


def test_window_keeps_the_newest_samples_and_completes_after_size_new_ones():
    window, served = SampleWindow(3), Prediction.from_logits(torch.eye(5)[:1])
    for number in range(4):
        inputs = torch.full((1, 2), float(number))
        assert window.is_completed_by(1) == (number == 2)
        newest = list(range(max(0, number - 2), number + 1))
        assert window.with_recent(inputs)[:, 0].tolist() == newest
        complete = window.add(inputs, served)
        assert (complete is not None) == (number == 2)
        if complete is not None:
            assert complete.inputs[:, 0].tolist() == [0, 1, 2]
            assert complete.prediction.labels.tolist() == [0, 0, 0]
    assert window.n_new == 1


def test_window_of_size_zero_is_completed_by_every_request_and_stores_nothing():
    window, inputs = SampleWindow(0), torch.zeros(2, 3)
    served = Prediction.from_logits(torch.eye(5)[:2])
    for _ in range(2):
        assert window.with_recent(inputs) is inputs
        complete = window.add(inputs, served)
        assert complete.inputs is inputs
        assert complete.prediction is served
    assert window.state_dict() == {"size": 0, "n_new": 0, "inputs": None, "probs": None}


def test_request_that_exceeds_the_window_is_not_split():
    window, served = SampleWindow(4), Prediction.from_logits(torch.eye(5)[:3])
    window.add(torch.zeros(3, 2), served)
    assert window.is_completed_by(3)
    assert len(window.with_recent(torch.ones(3, 2))) == 6
    assert len(window.add(torch.ones(3, 2), served).inputs) == 6


@pytest.mark.parametrize(
    ("method", "preset"),
    [(m, None) for m in METHODS] + [("bitta", "reference"), ("bitta", "paper")],
)
def test_window_of_the_batch_size_gives_the_same_results_as_no_window(method, preset):
    stream = images(32)
    truth = torch.arange(32) % 5
    runs = []
    for window in (0, 8):
        with session(method, preset=preset, window=window, feedback=Simulated(truth)) as running:
            served = serve(running, stream, 8)
            runs.append((served, named_tensors(running.model)))
    for one, two in zip(runs[0][0], runs[1][0], strict=True):
        assert torch.equal(one.probs, two.probs)
        assert [q.position for q in one.queries] == [q.position for q in two.queries]
    assert all(torch.equal(t, runs[1][1][name]) for name, t in runs[0][1].items())


def test_batch_statistics_are_those_of_the_newest_samples():
    stream = images(12)
    with session("bn_stats", window=8) as running:
        served = serve(running, stream, 1)
        whole = running.adapter.predict(stream[4:])
    assert torch.allclose(served[-1].probs, whole.probs[-1:], atol=1e-6)


def test_running_statistics_are_restored_until_the_window_is_complete():
    stream = images(8) + 2.0
    with session("bitta", window=8, bn_momentum=0.5) as running:
        source = named_tensors(running.model)
        served = serve(running, stream[:7], 1)
        moved = named_tensors(running.model)
        assert all(torch.equal(moved[name], source[name]) for name in source)
        plain = running.adapter.predict(stream[6:7])
        assert not torch.allclose(served[-1].probs, plain.probs, atol=1e-4)
        running.adapter.observe(stream[:7])
        follows = running.adapter.predict(stream[6:7])
        assert torch.allclose(served[-1].probs, follows.probs, atol=1e-6)


def test_query_holds_the_label_served_at_its_position():
    stream = images(24)
    with session("tent", window=8) as running:
        served = serve(running, stream, 1)
        labels = [int(prediction.labels) for prediction in served]
        asked = [query for prediction in served for query in prediction.queries]
    assert len(asked) == 6
    for query in asked:
        assert query.shown_label == labels[query.position]
        assert torch.equal(query.input, stream[query.position])
        assert query.index == query.position % 8


def test_answers_are_collected_and_learned_once_per_window():
    truth = torch.arange(24) % 5
    with session("bitta", window=8, feedback=Simulated(truth, delay=1)) as running:
        counts = [len(running.step(part)[1]) for part in images(24).split(1)]
        assert running.adapter.version == 3
    # Answers are one window late: those of the first window arrive with the second.
    assert [(index, count) for index, count in enumerate(counts) if count] == [(15, 2), (23, 2)]


def test_late_answers_to_a_fully_queried_window_come_with_the_next_one():
    truth = torch.arange(16) % 5
    with Session(
        toy_classifier(), n_queries=4, window=4, feedback=Simulated(truth, delay=1)
    ) as running:
        counts = [len(running.step(part)[1]) for part in images(16).split(1)]
    assert [(index, count) for index, count in enumerate(counts) if count] == [
        (7, 4), (11, 4), (15, 4)
    ]  # fmt: skip


def test_learn_may_be_called_after_later_requests():
    with session("bitta", window=4) as running:
        for part in images(6).split(1):
            running.predict(part)
        assert running.learn().terms
        assert running.adapter.version == 1
        assert not running.learn().terms


def test_reset_empties_the_window():
    stream = images(6)
    with session("bn_stats", window=8) as running:
        serve(running, stream[:5], 1)
        running.reset()
        alone = running.predict(stream[5:])
    with session("bn_stats", window=8) as fresh:
        assert torch.equal(fresh.predict(stream[5:]).probs, alone.probs)


def test_caller_may_reuse_the_memory_of_its_inputs():
    buffer, stream = torch.empty(1, 3, 8, 8), images(4)
    with session("bn_stats", window=4) as reused, session("bn_stats", window=4) as plain:
        for part in stream.split(1):
            buffer.copy_(part)
            assert torch.equal(reused.predict(buffer).probs, plain.predict(part).probs)


def test_without_observe_every_request_statistics_move_once_per_window():
    """A request is served with the statistics of the last complete window."""
    served = Session(toy_classifier(), n_queries=1, window=4, observe_every_request=False)
    alone = Session(toy_classifier(), "source")
    for number in range(3):
        one = images(1, seed=number)
        assert torch.equal(served.predict(one).probs, alone.predict(one).probs)
    running = [norm.running_mean.clone() for norm in batch_norms(served.model)]
    full = served.predict(images(1, seed=3))
    assert not torch.equal(full.probs, alone.predict(images(1, seed=3)).probs)
    assert any(
        not torch.equal(before, norm.running_mean)
        for before, norm in zip(running, batch_norms(served.model), strict=True)
    )


def test_batch_statistics_use_recent_samples_without_observe_every_request(tmp_path):
    every_request, every_window = (
        Session(toy_classifier(), "bn_stats", window=4, observe_every_request=choice)
        for choice in (True, False)
    )
    for number in range(6):
        one = images(1, seed=number)
        assert torch.equal(every_request.predict(one).probs, every_window.predict(one).probs)


def test_observe_every_request_is_saved(tmp_path):
    served = Session(toy_classifier(), window=4, observe_every_request=False)
    served.predict(images(1, seed=0))
    served.save(tmp_path / "s")
    again = Session.load(tmp_path / "s", toy_classifier())
    for number in range(1, 4):
        one = images(1, seed=number)
        assert torch.equal(served.predict(one).probs, again.predict(one).probs)
