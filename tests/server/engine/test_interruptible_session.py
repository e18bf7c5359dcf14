"""Requests inside a step or a question: answered, and as if they had come just before it."""

from itertools import count

import pytest
import torch
from torch import nn

from bitta.methods import METHODS
from bitta.server.engine.learner import Learner
from bitta.server.engine.learning import WorkTimer
from bitta.server.engine.replay import Replay
from bitta.server.engine.request_queue import InferenceRequest, RequestQueue, WorkerTask
from bitta.server.store import Store
from bitta.testing import toy_classifier
from small_engine import WINDOW, answer, images, running, serve, serve_settings

FREE = sorted(name for name, kind in METHODS.items() if not kind.needs)


def learner(method="bitta", **settings):
    return Learner(toy_classifier(), serve_settings(method=method, settings=settings))


def batch(number, n=WINDOW):
    return torch.from_numpy(images(number, n))


class InterruptRequests:
    """Come one at a time, whenever there is a turn."""

    def __init__(self, learner, max_requests=100):
        self.learner, self.max_requests = learner, max_requests
        self.served = []
        self.n_calls = 0

    def __call__(self):
        self.n_calls += 1
        if self.learner.n_interrupt_samples and len(self.served) < self.max_requests:
            number = 100 + len(self.served)
            self.served.append((number, self.learner.serve_in_interrupt(batch(number, 1))))


def same(one, other):
    return torch.equal(one.probs, other.probs) and torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("method", FREE)
def test_what_is_served_within_a_step_is_as_if_served_before_it(method):
    interrupted, plain = learner(method), learner(method)
    requests = InterruptRequests(interrupted)
    for each in (interrupted, plain):
        each.serve(batch(0))
    interrupted.learn([], interrupt=requests)
    for number, prediction in requests.served:
        assert same(plain.serve(batch(number, 1)), prediction)
    plain.learn([])
    assert interrupted.weights_hash == plain.weights_hash
    rest = WINDOW - len(requests.served)
    one, other = interrupted.serve(batch(1, rest)), plain.serve(batch(1, rest))
    assert same(one, other)
    assert [q.position for q in one.queries] == [q.position for q in other.queries]
    interrupted.learn([])
    plain.learn([])
    assert interrupted.weights_hash == plain.weights_hash


@pytest.mark.parametrize("method", FREE)
def test_what_is_served_while_questions_are_chosen_is_as_if_served_after_the_window(method):
    interrupted, plain = learner(method), learner(method)
    requests = InterruptRequests(interrupted, max_requests=4)
    asked = interrupted.serve(batch(0), interrupt=requests)
    assert same(asked, plain.serve(batch(0)))
    for number, prediction in requests.served:
        assert same(plain.serve(batch(number, 1)), prediction)
    interrupted.learn([])
    plain.learn([])
    assert interrupted.weights_hash == plain.weights_hash
    assert interrupted.n_session_samples == plain.n_session_samples == WINDOW + len(requests.served)


@pytest.mark.parametrize("observes", ["before_serving", "before_asking", "after_asking"])
def test_a_question_names_the_sample_it_is_about_whenever_statistics_move(observes):
    interrupted, plain = learner(observes=observes), learner(observes=observes)
    requests, window = InterruptRequests(interrupted, max_requests=2), batch(0)
    queries = interrupted.serve(window, interrupt=requests).queries
    assert all(torch.equal(window[query.position], query.input) for query in queries)
    plain.serve(window)
    for number, prediction in requests.served:
        assert same(plain.serve(batch(number, 1)), prediction)


def test_nobody_is_served_inside_a_model_that_normalises_by_what_is_served():
    """It would be normalised otherwise than before the step, and one sample not at all."""
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 8 * 8, 8),
        nn.BatchNorm1d(8, track_running_stats=False),
        nn.ReLU(),
        nn.Linear(8, 5),
    )
    interrupted = Learner(model, serve_settings(settings={}))
    assert interrupted.source_label(batch(0)[0]) is None
    requests = InterruptRequests(interrupted)
    interrupted.serve(batch(0), interrupt=requests)
    interrupted.learn([], interrupt=requests)
    assert requests.served == []


def test_bitta_serves_inside_its_steps_until_the_window_would_be_full():
    interrupted = learner(epochs=1)
    requests = InterruptRequests(interrupted)
    interrupted.serve(batch(0))
    interrupted.learn([], interrupt=requests)
    assert len(requests.served) == WINDOW - 1
    assert interrupted.n_windows == 1
    assert requests.n_calls > WINDOW


def test_between_two_steps_others_are_served_by_the_weights_after_the_first():
    interrupted, plain = learner(epochs=2), learner(epochs=2)
    requests = InterruptRequests(interrupted, max_requests=1)
    between = []
    for each in (interrupted, plain):
        each.serve(batch(0))
    requests.max_requests = 0

    def now():
        between.append(interrupted.serve(batch(7, 1)))
        requests.max_requests = 1

    interrupted.learn([], between_updates=now, interrupt=requests)
    ((number, late),) = requests.served

    def then():
        assert same(plain.serve(batch(7, 1)), between[0])
        assert same(plain.serve(batch(number, 1)), late)

    plain.learn([], between_updates=then)
    assert interrupted.weights_hash == plain.weights_hash


def test_the_answer_is_known_before_the_questions_are_chosen():
    interrupted, told = learner(), []
    requests = InterruptRequests(interrupted)
    interrupted.serve(
        batch(0),
        on_prediction=lambda prediction: told.append((len(prediction.labels), requests.n_calls)),
        interrupt=requests,
    )
    assert told == [(WINDOW, 0)]
    assert requests.n_calls > 0
    interrupted.serve(
        batch(1, 1), on_prediction=lambda prediction: told.append(len(prediction.labels))
    )
    assert told[1:] == [1]


def test_nobody_is_served_while_weights_are_not_what_they_were():
    interrupted = learner()
    model = interrupted._session.model
    rooms = []

    def meddle():
        if not rooms:
            rooms.append(interrupted.n_interrupt_samples)
            with torch.no_grad():
                next(model.parameters()).add_(0.0)
            rooms.append(interrupted.n_interrupt_samples)

    interrupted.serve(batch(0))
    interrupted.learn([], interrupt=meddle)
    assert rooms == [WINDOW - 1, 0]


def test_a_failing_turn_leaves_no_hooks_behind():
    interrupted = learner()
    interrupted.serve(batch(0))

    def fail():
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        interrupted.learn([], interrupt=fail)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_log_with_requests_inside_steps_gives_the_same_weights_when_lived_again(tmp_path):
    folder, visits = tmp_path / "data", []
    with running(folder, snapshot_steps=1) as (engine, store):
        worker, turns = engine._worker, count()
        within = worker._serve_in_interrupt

        def with_visitors():
            if worker.learner.n_interrupt_samples and next(turns) % 7 == 0:
                visits.append(engine.predict(images(200 + len(visits), 1), request_id="visit"))
            within()

        worker._serve_in_interrupt = with_visitors
        for number in range(4):
            served = serve(engine, number)
            answer(store, served.prediction_ids[number], correct=number % 2 == 0)
            while engine.status().n_steps <= number:
                engine.ping().result(20)
            engine.snapshot().result(20)
        names = [one.result(20).prediction_ids[0] for one in visits]
    with Store.open(None, folder) as store:
        assert {"before a step", "inside its epochs"} == {when(store, name) for name in names}
        (tmp_path / "again").mkdir()
        lived = Learner(toy_classifier(), serve_settings())
        replayed = Replay(lived, store, folder=tmp_path / "again").run()
        assert replayed.differing == ()
        assert replayed.n_compared >= 5
        assert replayed.weights_hash == max(store.snapshots(), key=lambda one: one.seq).weights_hash


def when(store, name):
    (event,) = [e for e in store.events(kinds=["served"]) if name in e.body["prediction_ids"]]
    return "before a step" if event.body["during"] is None else "inside its epochs"


def request(n=1, shape=(3, 8, 8)):
    return InferenceRequest(torch.zeros(n, *shape), "r")


def test_requests_that_have_waited_for_others_are_given_out_as_far_as_there_is_room():
    queue = RequestQueue(max_batch=64, max_wait_seconds=0.0, capacity=100)
    for n in (2, 3, 4):
        queue.put(request(n))
    assert [len(one.inputs) for one in queue.next_due_batch(max_samples=5)] == [2, 3]
    assert queue.n_waiting == 4
    assert queue.next_due_batch(max_samples=3) == []
    queue.put_task(WorkerTask(lambda: None))
    assert [len(one.inputs) for one in queue.next_due_batch(max_samples=4)] == [4]


def test_a_stopwatch_leaves_rests_out_once():
    """0 to 10 with a rest from 2 to 7, another inside it from 3 to 4: 5 seconds of work."""
    times = iter((0.0, 2.0, 7.0, 10.0))
    timer = WorkTimer(lambda: next(times))
    with timer.paused(), timer.paused():
        pass
    assert timer.seconds == 5.0
