"""Requests inside a step or a question: answered, and as if they had come just before it."""

from itertools import count

import pytest
import torch
from torch import nn

from bitta.methods import METHODS
from bitta.server.engine.inbox import Inbox, Order, Request
from bitta.server.engine.learner import Learner, LearnerConfig
from bitta.server.engine.lessons import Stopwatch
from bitta.server.engine.replay import Replay
from bitta.server.store import Store
from bitta.testing import toy_classifier
from small_engine import WINDOW, answer, config, images, running, serve

FREE = sorted(name for name, kind in METHODS.items() if not kind.needs)


def learner(method="bitta", **settings):
    config = LearnerConfig(
        method=method, window=WINDOW, n_queries=3, audits=1, settings=tuple(settings.items())
    )
    return Learner(toy_classifier(), config)


def batch(number, n=WINDOW):
    return torch.from_numpy(images(number, n))


class Visitors:
    """Come one at a time, whenever there is a turn."""

    def __init__(self, learner, most=100):
        self.learner, self.most = learner, most
        self.served = []
        self.turns = 0

    def __call__(self):
        self.turns += 1
        if self.learner.room and len(self.served) < self.most:
            number = 100 + len(self.served)
            self.served.append((number, self.learner.serve_within(batch(number, 1))))


def same(one, other):
    return torch.equal(one.probs, other.probs) and torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("method", FREE)
def test_what_is_served_within_a_step_is_as_if_served_before_it(method):
    attentive, plain = learner(method), learner(method)
    visitors = Visitors(attentive)
    for each in (attentive, plain):
        each.serve(batch(0))
    attentive.learn([], turn=visitors)
    for number, prediction in visitors.served:
        assert same(plain.serve(batch(number, 1)), prediction)
    plain.learn([])
    assert attentive.weights == plain.weights
    rest = WINDOW - len(visitors.served)
    one, other = attentive.serve(batch(1, rest)), plain.serve(batch(1, rest))
    assert same(one, other)
    assert [q.position for q in one.queries] == [q.position for q in other.queries]
    attentive.learn([])
    plain.learn([])
    assert attentive.weights == plain.weights


@pytest.mark.parametrize("method", FREE)
def test_what_is_served_while_questions_are_chosen_is_as_if_served_after_the_window(method):
    attentive, plain = learner(method), learner(method)
    visitors = Visitors(attentive, most=4)
    asked = attentive.serve(batch(0), turn=visitors)
    assert same(asked, plain.serve(batch(0)))
    for number, prediction in visitors.served:
        assert same(plain.serve(batch(number, 1)), prediction)
    attentive.learn([])
    plain.learn([])
    assert attentive.weights == plain.weights
    assert attentive.n_seen == plain.n_seen == WINDOW + len(visitors.served)


@pytest.mark.parametrize("observes", ["before_serving", "before_asking", "after_asking"])
def test_a_question_names_the_sample_it_is_about_whenever_statistics_move(observes):
    attentive, plain = learner(observes=observes), learner(observes=observes)
    visitors, window = Visitors(attentive, most=2), batch(0)
    queries = attentive.serve(window, turn=visitors).queries
    assert all(torch.equal(window[query.position], query.input) for query in queries)
    plain.serve(window)
    for number, prediction in visitors.served:
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
    attentive = Learner(model, LearnerConfig(window=WINDOW))
    assert attentive.source_label(batch(0)[0]) is None
    visitors = Visitors(attentive)
    attentive.serve(batch(0), turn=visitors)
    attentive.learn([], turn=visitors)
    assert visitors.served == []


def test_bitta_serves_inside_its_steps_until_the_window_would_be_full():
    attentive = learner(epochs=1)
    visitors = Visitors(attentive)
    attentive.serve(batch(0))
    attentive.learn([], turn=visitors)
    assert len(visitors.served) == WINDOW - 1
    assert attentive.n_windows == 1
    assert visitors.turns > WINDOW


def test_between_two_steps_others_are_served_by_the_weights_after_the_first():
    attentive, plain = learner(epochs=2), learner(epochs=2)
    visitors = Visitors(attentive, most=1)
    between = []
    for each in (attentive, plain):
        each.serve(batch(0))
    visitors.most = 0

    def now():
        between.append(attentive.serve(batch(7, 1)))
        visitors.most = 1

    attentive.learn([], between=now, turn=visitors)
    ((number, late),) = visitors.served

    def then():
        assert same(plain.serve(batch(7, 1)), between[0])
        assert same(plain.serve(batch(number, 1)), late)

    plain.learn([], between=then)
    assert attentive.weights == plain.weights


def test_the_answer_is_known_before_the_questions_are_chosen():
    attentive, told = learner(), []
    visitors = Visitors(attentive)
    attentive.serve(
        batch(0),
        answered=lambda prediction: told.append((len(prediction.labels), visitors.turns)),
        turn=visitors,
    )
    assert told == [(WINDOW, 0)]
    assert visitors.turns > 0
    attentive.serve(batch(1, 1), answered=lambda prediction: told.append(len(prediction.labels)))
    assert told[1:] == [1]


def test_nobody_is_served_while_weights_are_not_what_they_were():
    attentive = learner()
    model = attentive._session.model
    rooms = []

    def meddle():
        if not rooms:
            rooms.append(attentive.room)
            with torch.no_grad():
                next(model.parameters()).add_(0.0)
            rooms.append(attentive.room)

    attentive.serve(batch(0))
    attentive.learn([], turn=meddle)
    assert rooms == [WINDOW - 1, 0]


def test_a_failing_turn_leaves_no_hooks_behind():
    attentive = learner()
    attentive.serve(batch(0))

    def fail():
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        attentive.learn([], turn=fail)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_a_log_with_requests_inside_steps_gives_the_same_weights_when_lived_again(tmp_path):
    folder, visits = tmp_path / "data", []
    with running(folder, snapshot_steps=1) as (engine, store):
        worker, turns = engine._worker, count()
        within = worker._serve_within

        def with_visitors():
            if worker.learner.room and next(turns) % 7 == 0:
                visits.append(engine.predict(images(200 + len(visits), 1), request_id="visit"))
            within()

        worker._serve_within = with_visitors
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
        lived = Learner(toy_classifier(), config().learner)
        replayed = Replay(lived, store, folder=tmp_path / "again").run()
        assert replayed.differing == ()
        assert replayed.compared >= 5
        assert replayed.weights == max(store.snapshots(), key=lambda one: one.seq).weights_hash


def when(store, name):
    (event,) = [e for e in store.events(kinds=["served"]) if name in e.body["prediction_ids"]]
    return "before a step" if event.body["during"] is None else "inside its epochs"


def request(n=1, shape=(3, 8, 8)):
    return Request(torch.zeros(n, *shape), "r")


def test_requests_that_have_waited_for_others_are_given_out_as_far_as_there_is_room():
    inbox = Inbox(max_batch=64, max_wait=0.0, capacity=100)
    for n in (2, 3, 4):
        inbox.put(request(n))
    assert [len(one.inputs) for one in inbox.overdue(most=5)] == [2, 3]
    assert inbox.depth == 4
    assert inbox.overdue(most=3) == []
    inbox.order(Order(lambda: None))
    assert [len(one.inputs) for one in inbox.overdue(most=4)] == [4]


def test_a_stopwatch_leaves_rests_out_once():
    """0 to 10 with a rest from 2 to 7, another inside it from 3 to 4: 5 seconds of work."""
    times = iter((0.0, 2.0, 7.0, 10.0))
    watch = Stopwatch(lambda: next(times))
    with watch.resting(), watch.resting():
        pass
    assert watch.worked == 5.0
