"""How long a request waits for others to share its pass."""

import time
from threading import Timer

import torch

from bitta.server.engine.request_queue import InferenceRequest, RequestQueue

LONG = 30.0
"""Seconds that nobody here should wait for."""


def make_queue(max_wait_seconds=LONG, max_batch=8):
    return RequestQueue(max_batch=max_batch, max_wait_seconds=max_wait_seconds, capacity=100)


def put(queue, *sizes):
    for size in sizes:
        assert queue.put(InferenceRequest(torch.zeros(size, 3), "r"))


def sizes(requests):
    return [len(request.inputs) for request in requests]


def test_who_comes_alone_waits_for_nobody():
    queue = make_queue()
    for _ in range(3):
        began = time.monotonic()
        put(queue, 1)
        assert sizes(queue.next_batch(timeout=1)) == [1]
        assert time.monotonic() - began < LONG / 2


def test_as_many_as_shared_the_last_pass_are_waited_for():
    queue = make_queue()
    put(queue, 1, 2)
    assert sizes(queue.next_batch(timeout=1)) == [1, 2]
    put(queue, 1)
    later = Timer(0.2, lambda: put(queue, 1, 1))
    later.start()
    began = time.monotonic()
    assert sizes(queue.next_batch(timeout=1)) == [1, 1, 1]
    assert time.monotonic() - began < LONG / 2
    later.join()


def test_one_request_of_many_is_nobody_to_wait_for():
    queue = make_queue()
    put(queue, 8)
    assert sizes(queue.next_batch(timeout=1)) == [8]
    began = time.monotonic()
    put(queue, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1]
    assert time.monotonic() - began < LONG / 2


def test_inside_a_step_those_are_not_waited_for_either_who_are_not_expected():
    queue = make_queue()
    put(queue, 1)
    assert sizes(queue.next_due_batch(max_samples=5)) == [1]
    put(queue, 1, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1, 1]
    put(queue, 1)
    assert sizes(queue.next_due_batch(max_samples=5)) == []
    put(queue, 1)
    assert sizes(queue.next_due_batch(max_samples=5)) == [1, 1]


def test_those_who_do_not_come_are_waited_for_no_longer_than_allowed():
    queue = make_queue(max_wait_seconds=0.05)
    put(queue, 1, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1, 1]
    put(queue, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1]
    queue.max_wait_seconds, began = LONG, time.monotonic()
    put(queue, 1)  # and now nobody is expected
    assert sizes(queue.next_batch(timeout=1)) == [1]
    assert time.monotonic() - began < LONG / 2


def test_a_pass_has_no_more_than_fit_but_one_request_is_never_split():
    queue = make_queue(max_batch=4)
    put(queue, 9)
    assert sizes(queue.next_batch(timeout=1)) == [9]
    put(queue, 2, 2, 1)
    assert sizes(queue.next_batch(timeout=1)) == [2, 2]
    assert queue.n_waiting == 1
