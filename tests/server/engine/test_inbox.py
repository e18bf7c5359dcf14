"""How long a request waits for others to share its pass."""

import time
from threading import Timer

import torch

from bitta.server.engine.inbox import Inbox, Request

LONG = 30.0
"""Seconds that nobody here should wait for."""


def inbox(max_wait=LONG, max_batch=8):
    return Inbox(max_batch=max_batch, max_wait=max_wait, capacity=100)


def put(box, *sizes):
    for size in sizes:
        assert box.put(Request(torch.zeros(size, 3), "r"))


def sizes(requests):
    return [len(request.inputs) for request in requests]


def test_who_comes_alone_waits_for_nobody():
    box = inbox()
    for _ in range(3):
        began = time.monotonic()
        put(box, 1)
        assert sizes(box.batch(patience=1)) == [1]
        assert time.monotonic() - began < LONG / 2


def test_as_many_as_shared_the_last_pass_are_waited_for():
    box = inbox()
    put(box, 1, 2)
    assert sizes(box.batch(patience=1)) == [1, 2]
    put(box, 1)
    later = Timer(0.2, lambda: put(box, 1, 1))
    later.start()
    began = time.monotonic()
    assert sizes(box.batch(patience=1)) == [1, 1, 1]
    assert time.monotonic() - began < LONG / 2
    later.join()


def test_one_request_of_many_is_nobody_to_wait_for():
    box = inbox()
    put(box, 8)
    assert sizes(box.batch(patience=1)) == [8]
    began = time.monotonic()
    put(box, 1)
    assert sizes(box.batch(patience=1)) == [1]
    assert time.monotonic() - began < LONG / 2


def test_inside_a_step_those_are_not_waited_for_either_who_are_not_expected():
    box = inbox()
    put(box, 1)
    assert sizes(box.overdue(most=5)) == [1]
    put(box, 1, 1)
    assert sizes(box.batch(patience=1)) == [1, 1]
    put(box, 1)
    assert sizes(box.overdue(most=5)) == []
    put(box, 1)
    assert sizes(box.overdue(most=5)) == [1, 1]


def test_those_who_do_not_come_are_waited_for_no_longer_than_allowed():
    box = inbox(max_wait=0.05)
    put(box, 1, 1)
    assert sizes(box.batch(patience=1)) == [1, 1]
    put(box, 1)
    assert sizes(box.batch(patience=1)) == [1]
    box.max_wait, began = LONG, time.monotonic()
    put(box, 1)  # and now nobody is expected
    assert sizes(box.batch(patience=1)) == [1]
    assert time.monotonic() - began < LONG / 2


def test_a_pass_has_no_more_than_fit_but_one_request_is_never_split():
    box = inbox(max_batch=4)
    put(box, 9)
    assert sizes(box.batch(patience=1)) == [9]
    put(box, 2, 2, 1)
    assert sizes(box.batch(patience=1)) == [2, 2]
    assert box.depth == 1
