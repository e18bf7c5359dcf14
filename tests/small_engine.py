"""A small engine with its own store."""

import time
from contextlib import contextmanager
from itertools import count

import numpy as np
import torch
import torch._dynamo  # otherwise the first step waits for this import

from bitta.seeding import generator
from bitta.server.engine import Engine
from bitta.server.settings import ServeSettings
from bitta.server.store import NewAnswer, Store
from bitta.testing import toy_classifier

CLASSES = ("ant", "bee", "cat", "dog", "eel")
WINDOW = 8


def serve_settings(**changes):
    defaults = {
        "window": WINDOW, "settings": {"epochs": 2}, "max_wait_ms": 0.0, "duty": 1.0,
        "keep_images": "all",
    }  # fmt: skip
    return ServeSettings(**(defaults | changes))


def clock():
    ticks = count(1_700_000_000_000_000, 1000)
    return lambda: next(ticks)


@contextmanager
def running(folder, **changes):
    """Start an engine. Yield it with its store."""
    ticks = clock()
    with Store.open(None, folder, clock=ticks) as store:
        engine = Engine(
            toy_classifier(), CLASSES, store, serve_settings(**changes),
            data_dir=folder, clock=ticks, input_shape=(3, 8, 8), name="toy",
        )  # fmt: skip
        engine.start()
        try:
            yield engine, store
        finally:
            engine.stop()


def images(number, n=WINDOW):
    made = torch.rand(n, 3, 8, 8, generator=generator(9, number))
    return made.numpy().astype(np.float32)


def serve(engine, number, n=WINDOW):
    return engine.predict(images(number, n), request_id=f"r{number}").result(20)


def answer(store, prediction_id, *, correct=True, key=None):
    given = NewAnswer(
        prediction_id=prediction_id,
        verdict="correct" if correct else "incorrect",
        annotator_id="ann",
        idempotency_key=key or f"key-{prediction_id}",
    )
    return store.add_answer(given).result(10)


def until(condition, seconds=20.0):
    """Wait for a condition that another thread makes true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.01)
