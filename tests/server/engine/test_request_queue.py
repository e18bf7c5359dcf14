"""Tests of the queue, in which requests wait for others to share a forward pass."""

import time
from threading import Timer

import torch

from bitta.server.engine.request_queue import InferenceRequest, RequestQueue

LONG = 30.0
"""Seconds that no request here should wait."""


def make_queue(max_wait_seconds=LONG, max_batch=8):
    return RequestQueue(max_batch=max_batch, max_wait_seconds=max_wait_seconds, capacity=100)


def put(queue, *sizes):
    for size in sizes:
        assert queue.put(InferenceRequest(torch.zeros(size, 3), "r"))


def sizes(requests):
    return [len(request.inputs) for request in requests]


def test_single_request_does_not_wait():
    queue = make_queue()
    for _ in range(3):
        started = time.monotonic()
        put(queue, 1)
        assert sizes(queue.next_batch(timeout=1)) == [1]
        assert time.monotonic() - started < LONG / 2


def test_queue_waits_for_as_many_samples_as_shared_last_pass():
    queue = make_queue()
    put(queue, 1, 2)
    assert sizes(queue.next_batch(timeout=1)) == [1, 2]
    put(queue, 1)
    later = Timer(0.2, lambda: put(queue, 1, 1))
    later.start()
    started = time.monotonic()
    assert sizes(queue.next_batch(timeout=1)) == [1, 1, 1]
    assert time.monotonic() - started < LONG / 2
    later.join()


def test_queue_does_not_wait_after_single_large_request():
    queue = make_queue()
    put(queue, 8)
    assert sizes(queue.next_batch(timeout=1)) == [8]
    started = time.monotonic()
    put(queue, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1]
    assert time.monotonic() - started < LONG / 2


def test_due_batch_waits_only_for_expected_samples():
    queue = make_queue()
    put(queue, 1)
    assert sizes(queue.next_due_batch(max_samples=5)) == [1]
    put(queue, 1, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1, 1]
    put(queue, 1)
    assert sizes(queue.next_due_batch(max_samples=5)) == []
    put(queue, 1)
    assert sizes(queue.next_due_batch(max_samples=5)) == [1, 1]


def test_queue_waits_at_most_max_wait_seconds():
    queue = make_queue(max_wait_seconds=0.05)
    put(queue, 1, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1, 1]
    put(queue, 1)
    assert sizes(queue.next_batch(timeout=1)) == [1]
    queue.max_wait_seconds, started = LONG, time.monotonic()
    put(queue, 1)  # no other request is expected now
    assert sizes(queue.next_batch(timeout=1)) == [1]
    assert time.monotonic() - started < LONG / 2


def test_batch_has_at_most_max_batch_unless_one_request_is_larger():
    queue = make_queue(max_batch=4)
    put(queue, 9)
    assert sizes(queue.next_batch(timeout=1)) == [9]
    put(queue, 2, 2, 1)
    assert sizes(queue.next_batch(timeout=1)) == [2, 2]
    assert queue.n_waiting == 1
