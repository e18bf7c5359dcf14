"""Commands in processes forked from one that has imported everything: starts without imports."""

import json
import os
import signal
import subprocess
import sys
from threading import Lock

_MOTHER = """
import json, os, sys, traceback
from functools import partial
import torch
import torch._dynamo
import bitta.cli.run
import bitta.cli.sweep
import bitta.server.process
import bitta.server.bootstrap
from bitta.cli.main import main
from bitta.server.store import Store, connection

torch.set_num_threads(1)
connection.OWNER_LOCK_TIMEOUT = "60s"  # a machine under load takes its time to end what was killed


def born(arguments, log, busy_seconds):
    child = os.fork()
    if child:
        return child
    if busy_seconds is not None:
        Store.open = partial(Store.open, busy_seconds=busy_seconds)
    for stream, name, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_APPEND)):
        os.dup2(os.open(name, flags | os.O_CREAT, 0o600), stream)
    os.dup2(1, 2)
    code = 1
    try:
        code = main(arguments)
    except BaseException:  # as the interpreter would, which this process never gets back to
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def ended(child, options):
    found, status = os.waitpid(child, options)
    return os.waitstatus_to_exitcode(status) if found else None


for line in sys.stdin:
    what, *given = json.loads(line)
    print(json.dumps({"bear": born, "ended": ended}[what](*given)), flush=True)
"""


class Nursery:
    """One process that imports, and makes others of itself; nothing in it computes before."""

    def __init__(self):
        self._order = Lock()
        self._mother = subprocess.Popen(
            [sys.executable, "-c", _MOTHER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # for what its children start
        )

    def close(self):
        """To be called when its children have ended."""
        self._mother.kill()
        self._mother.communicate()

    def bear(self, arguments, log, *, busy_seconds=None):
        """`bitta` with these arguments, as `subprocess.Popen` would give it.

        A server gives up a database that is locked after `busy_seconds`, where they are given.
        """
        return Child(self, self.order("bear", arguments, str(log), busy_seconds))

    def order(self, *words):
        """What the process says to it."""
        with self._order:
            self._mother.stdin.write(json.dumps(words) + "\n")
            self._mother.stdin.flush()
            return json.loads(self._mother.stdout.readline())


class Child:
    """A process that another one waits for."""

    def __init__(self, nursery, pid):
        self.pid, self._nursery, self._code = pid, nursery, None

    def poll(self):
        """How it ended; None while it runs."""
        if self._code is None:
            self._code = self._nursery.order("ended", self.pid, os.WNOHANG)
        return self._code

    def wait(self, _=None):
        """Until it has ended; how."""
        if self._code is None:
            self._code = self._nursery.order("ended", self.pid, 0)
        return self._code

    def send_signal(self, number):
        """Unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)
