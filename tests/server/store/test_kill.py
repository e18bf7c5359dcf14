"""Test that a process killed at a random time loses no acknowledged answer."""

import multiprocessing
import random
import time

from bitta.server.store import Store
from server.store.factories import new_answer
from server.store.killed_process import answer_until_killed

ROUNDS = 10
ROUND_SIZE = 1_000_000
"""Range of prediction numbers of one round."""


def answer_and_kill(url, folder, first, seconds):
    """Kill a process some seconds after its first answers. Return the acknowledged numbers."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bitta.server.store"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=answer_until_killed, args=(url, str(folder), first, sender))
    process.start()
    sender.close()
    acknowledged = [receiver.recv() for _ in range(3)]
    time.sleep(seconds)
    process.kill()
    process.join()
    try:
        while True:
            acknowledged.append(receiver.recv())
    except (EOFError, OSError):
        receiver.close()
    return acknowledged


def test_killed_process_keeps_every_acknowledged_answer_once(url, tmp_path):
    rng = random.Random(0)
    acknowledged = []
    for number in range(ROUNDS):
        acknowledged += answer_and_kill(url, tmp_path, number * ROUND_SIZE, rng.uniform(0, 0.25))
        with Store.open(url, tmp_path) as store:
            stored = [record.idempotency_key for record in store.all_feedback()]
            assert len(stored) == len(set(stored))
            assert {f"k{one}" for one in acknowledged} <= set(stored)
            assert (
                store.add_answer(new_answer(acknowledged[-1], key=f"k{acknowledged[-1]}"))
                .result()
                .repeated
            )
    with Store.open(url, tmp_path) as store:
        learned_in_log = [
            one
            for event in store.events(kinds=["learned"], limit=10**6)
            for one in event.body["answers"]
        ]
        applied = [one.id for one in store.all_feedback() if one.status == "applied"]
    assert len(learned_in_log) == len(set(learned_in_log))
    assert sorted(learned_in_log) == sorted(applied)
