"""A process that is killed at any moment loses no answer that it acknowledged."""

import multiprocessing
import random
import time

from bitta.server.store import Store
from server.store.answering import answer_until_killed
from server.store.made import given

ROUNDS = 10
ROOM = 1_000_000
"""Numbers of predictions that a round may use."""


def killed(url, folder, first, seconds):
    """Let a process answer for a while after its first answers; the numbers it acknowledged."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bitta.server.store"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=answer_until_killed, args=(url, str(folder), first, there))
    process.start()
    there.close()
    told = [here.recv() for _ in range(3)]
    time.sleep(seconds)
    process.kill()
    process.join()
    try:
        while True:
            told.append(here.recv())
    except (EOFError, OSError):
        here.close()
    return told


def test_every_acknowledged_answer_is_there_exactly_once(url, tmp_path):
    chance = random.Random(0)
    told = []
    for number in range(ROUNDS):
        told += killed(url, tmp_path, number * ROOM, chance.uniform(0, 0.25))
        with Store.open(url, tmp_path) as store:
            stored = [record.idempotency_key for record in store.all_feedback()]
            assert len(stored) == len(set(stored))
            assert {f"k{one}" for one in told} <= set(stored)
            assert store.add_answer(given(told[-1], key=f"k{told[-1]}")).result().repeated
    with Store.open(url, tmp_path) as store:
        learned_in_log = [
            one
            for event in store.events(kinds=["learned"], limit=10**6)
            for one in event.body["answers"]
        ]
        applied = [one.id for one in store.all_feedback() if one.status == "applied"]
    assert len(learned_in_log) == len(set(learned_in_log))
    assert sorted(learned_in_log) == sorted(applied)
