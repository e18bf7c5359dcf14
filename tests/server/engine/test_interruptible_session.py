"""Tests of requests that are served during a learning step or the choice of questions."""

from itertools import count

import pytest
import torch
from torch import nn

from bitta.methods import METHODS
from bitta.server.engine.learner import Learner
from bitta.server.engine.learning_step import WorkTimer
from bitta.server.engine.offline_replay import Replay
from bitta.server.engine.request_queue import InferenceRequest, RequestQueue, WorkerTask
from bitta.server.store import Store
from bitta.testing import toy_classifier
from small_engine import WINDOW, answer, images, running, serve, serve_settings

# The server refuses self_tuning.
METHOD_NAMES = sorted(
    name for name, kind in METHODS.items() if not kind.needs and name != "self_tuning"
)


def learner(method="bitta", **settings):
    return Learner(toy_classifier(), serve_settings(method=method, settings=settings))


def batch(number, n=WINDOW):
    return torch.from_numpy(images(number, n))


class InterruptRequests:
    """Interrupt that serves one sample at a time."""

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


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_serving_during_step_equals_serving_before_it(method):
    interrupted, plain = learner(method), learner(method)
    requests = InterruptRequests(interrupted)
    for session in (interrupted, plain):
        session.serve(batch(0))
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


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_serving_during_questions_equals_serving_after_window(method):
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
def test_questions_name_their_samples_for_every_order_of_observing(observes):
    interrupted, plain = learner(observes=observes), learner(observes=observes)
    requests, window = InterruptRequests(interrupted, max_requests=2), batch(0)
    queries = interrupted.serve(window, interrupt=requests).queries
    assert all(torch.equal(window[query.position], query.input) for query in queries)
    plain.serve(window)
    for number, prediction in requests.served:
        assert same(plain.serve(batch(number, 1)), prediction)


def test_model_without_running_statistics_is_not_interrupted():
    """It normalises by the batch, so an interrupt would change its predictions."""
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


def test_step_serves_until_window_is_almost_complete():
    interrupted = learner(epochs=1)
    requests = InterruptRequests(interrupted)
    interrupted.serve(batch(0))
    interrupted.learn([], interrupt=requests)
    assert len(requests.served) == WINDOW - 1
    assert interrupted.n_windows == 1
    assert requests.n_calls > WINDOW


def test_interrupt_after_first_update_serves_with_updated_weights():
    interrupted, plain = learner(epochs=2), learner(epochs=2)
    requests = InterruptRequests(interrupted, max_requests=1)
    between = []
    for session in (interrupted, plain):
        session.serve(batch(0))
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


def test_prediction_is_reported_before_questions_are_chosen():
    interrupted, reported = learner(), []
    requests = InterruptRequests(interrupted)
    interrupted.serve(
        batch(0),
        on_prediction=lambda prediction: reported.append(
            (len(prediction.labels), requests.n_calls)
        ),
        interrupt=requests,
    )
    assert reported == [(WINDOW, 0)]
    assert requests.n_calls > 0
    interrupted.serve(
        batch(1, 1), on_prediction=lambda prediction: reported.append(len(prediction.labels))
    )
    assert reported[1:] == [1]


def test_changed_weights_prevent_serving_in_interrupt():
    interrupted = learner()
    model = interrupted._session.model
    n_servable = []

    def change_weights():
        if not n_servable:
            n_servable.append(interrupted.n_interrupt_samples)
            with torch.no_grad():
                next(model.parameters()).add_(0.0)
            n_servable.append(interrupted.n_interrupt_samples)

    interrupted.serve(batch(0))
    interrupted.learn([], interrupt=change_weights)
    assert n_servable == [WINDOW - 1, 0]


def test_failing_interrupt_leaves_no_hooks():
    interrupted = learner()
    interrupted.serve(batch(0))

    def fail():
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        interrupted.learn([], interrupt=fail)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_replay_of_requests_during_steps_gives_same_weights(tmp_path):
    folder, extra_requests = tmp_path / "data", []
    with running(folder, snapshot_steps=1) as (engine, store):
        worker, n_calls = engine._worker, count()
        serve_in_interrupt = worker._serve_in_interrupt

        def request_then_serve():
            if worker.learner.n_interrupt_samples and next(n_calls) % 7 == 0:
                extra_requests.append(
                    engine.predict(images(200 + len(extra_requests), 1), request_id="extra")
                )
            serve_in_interrupt()

        worker._serve_in_interrupt = request_then_serve
        for number in range(4):
            served = serve(engine, number)
            answer(store, served.prediction_ids[number], correct=number % 2 == 0)
            while engine.status().n_learning_steps <= number:
                engine.ping().result(20)
            engine.snapshot().result(20)
        names = [future.result(20).prediction_ids[0] for future in extra_requests]
    with Store.open(None, folder) as store:
        assert {"before a step", "between updates"} == {when(store, name) for name in names}
        (tmp_path / "again").mkdir()
        learner = Learner(toy_classifier(), serve_settings())
        replayed = Replay(learner, store, folder=tmp_path / "again").run()
        assert replayed.differing == ()
        assert replayed.n_compared >= 5
        assert (
            replayed.weights_hash
            == max(store.snapshots(), key=lambda snapshot: snapshot.seq).weights_hash
        )


def when(store, name):
    (event,) = [e for e in store.events(kinds=["served"]) if name in e.body["prediction_ids"]]
    return "before a step" if event.body["during"] is None else "between updates"


def request(n=1, shape=(3, 8, 8)):
    return InferenceRequest(torch.zeros(n, *shape), "r")


def test_due_batch_has_at_most_max_samples():
    queue = RequestQueue(max_batch=64, max_wait_seconds=0.0, capacity=100)
    for n in (2, 3, 4):
        queue.put(request(n))
    assert [len(one.inputs) for one in queue.next_due_batch(max_samples=5)] == [2, 3]
    assert queue.n_waiting == 4
    assert queue.next_due_batch(max_samples=3) == []
    queue.put_task(WorkerTask(lambda: None))
    assert [len(one.inputs) for one in queue.next_due_batch(max_samples=4)] == [4]


def test_work_timer_leaves_pauses_out_once():
    """0 to 10 with a pause from 2 to 7 and a nested one: 5 seconds of work."""
    times = iter((0.0, 2.0, 7.0, 10.0))
    timer = WorkTimer(lambda: next(times))
    with timer.paused(), timer.paused():
        pass
    assert timer.seconds == 5.0
