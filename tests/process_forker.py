"""Processes that are forked from one that has imported everything, so that they start fast."""

import json
import os
import signal
import subprocess
import sys
from threading import Lock

_PARENT_SCRIPT = """
import json, os, sys, traceback
from functools import partial
import torch
import torch._dynamo
import bitta.cli.run
import bitta.cli.sweep
import bitta.server.process
from bitta.cli.main import main
from bitta.server.store import Store, connection

torch.set_num_threads(1)
connection.OWNER_LOCK_TIMEOUT = "60s"  # on a busy machine, killed processes end late


def start(arguments, log, busy_seconds):
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
    except BaseException:  # print it as the interpreter would: os._exit skips that
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def exit_code(child, options):
    found, status = os.waitpid(child, options)
    return os.waitstatus_to_exitcode(status) if found else None


for line in sys.stdin:
    command, *arguments = json.loads(line)
    print(json.dumps({"start": start, "exit_code": exit_code}[command](*arguments)), flush=True)
"""


class ProcessForker:
    """A parent process that imports `bitta` and forks a child for each command."""

    def __init__(self):
        self._lock = Lock()
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT_SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # for all children
        )

    def close(self):
        """End the parent. Its children must have ended."""
        self._parent.kill()
        self._parent.communicate()

    def start(self, arguments, log, *, busy_seconds=None):
        """Run `bitta` with these arguments in a child process.

        `busy_seconds` is the time after which a server gives up on a locked database.
        """
        return ForkedProcess(self, self.call("start", arguments, str(log), busy_seconds))

    def call(self, *command):
        """Send a command to the parent. Return its result."""
        with self._lock:
            self._parent.stdin.write(json.dumps(command) + "\n")
            self._parent.stdin.flush()
            return json.loads(self._parent.stdout.readline())


class ForkedProcess:
    """A child process, with the interface of `subprocess.Popen`."""

    def __init__(self, forker, pid):
        self.pid, self._forker, self._exit_code = pid, forker, None

    def poll(self):
        """Return the exit code; None while the process runs."""
        if self._exit_code is None:
            self._exit_code = self._forker.call("exit_code", self.pid, os.WNOHANG)
        return self._exit_code

    def wait(self, _=None):
        """Wait for the end of the process. Return its exit code."""
        if self._exit_code is None:
            self._exit_code = self._forker.call("exit_code", self.pid, 0)
        return self._exit_code

    def send_signal(self, number):
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)
