"""A process that serves, answers and learns until it is killed."""

import threading
from pathlib import Path

from bitta.server.store import LearnedStep, Store, connection
from server.store.made import given, served

THREADS = 4


def answer_until_killed(url, folder, first, told):
    """Send the key of each answer once it is acknowledged."""
    connection.OWNER_LOCK_TIMEOUT = "60s"  # the one before was killed a moment ago
    store = Store.open(url, Path(folder))
    lock = threading.Lock()

    def answer(start):
        number = start
        while True:
            store.log_served_batch(served([number]))
            store.add_answer(given(number, key=f"k{number}")).result()
            with lock:
                told.send(number)
            number += THREADS

    for thread in range(THREADS):
        threading.Thread(target=answer, args=(first + thread,), daemon=True).start()
    step = 0
    while True:
        step += 1
        taken = store.claim_answers(3).result()
        names = [one.feedback_id for one in taken]
        store.log_learned_step(LearnedStep(f"1.{first + step}", names, {}, 0.1)).result()
