"""Process that serves, answers and learns until it is killed."""

import threading
from pathlib import Path

from bitta.server.store import LearnedStep, Store, connection
from server.store.factories import new_answer, served_batch

THREADS = 4


def answer_until_killed(url, folder, first, sender):
    """Send the number of each answer once it is acknowledged."""
    connection.OWNER_LOCK_TIMEOUT = "60s"  # the previous process was just killed
    store = Store.open(url, Path(folder))
    lock = threading.Lock()

    def answer(start):
        number = start
        while True:
            store.log_served_batch(served_batch([number]))
            store.add_answer(new_answer(number, key=f"k{number}")).result()
            with lock:
                sender.send(number)
            number += THREADS

    for thread in range(THREADS):
        threading.Thread(target=answer, args=(first + thread,), daemon=True).start()
    step = 0
    while True:
        step += 1
        claimed = store.claim_answers(3).result()
        ids = [one.feedback_id for one in claimed]
        store.log_learned_step(LearnedStep(f"1.{first + step}", ids, {}, 0.1)).result()
