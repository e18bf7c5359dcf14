"""Send broken JPEG, PNG and WebP files to a server."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

from bitta.client import Client, ClientError
from made_pictures import broken, originals
from server.processes import MODEL, ServerProcess

_SETTINGS = (
    f'model = "{MODEL}"\nlog_level = "warning"\nmethod = "source"\nn_queries = 0\naudits = 0\n'
    "recent_bytes = 1048576\n"
)
"""Settings without learning, whose memory `soak_memory.py` checks."""
_MEASURE_EVERY = 100
"""Number of images between two measurements of the memory."""
MAX_GROWTH_MIB = 16.0
"""Allowed growth of the memory peak from the last but one pass to the last. In earlier passes the
peak also grows when a thread decodes the largest image for the first time, and when a module is
imported late. A leak per image also shows in the last pass."""
_N_BEFORE = 1000
"""Least number of images before the last pass."""


def check_broken_images(n, print_line):
    """Send n broken images three times, or more often if they are few.

    Return measurements and problems.
    """
    statuses, messages, peaks = {}, set(), []
    times = 1 + max(2, -(-_N_BEFORE // n))
    with TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder), settings=_SETTINGS)
        with server, server.client("client") as client:
            for time in range(1, times + 1):
                peaks.append(server.resident_bytes() / 2**20)
                for number, content in enumerate(_broken(n)):
                    status, message = _send(client, content)
                    statuses[status] = statuses.get(status, 0) + 1
                    messages.add(message)
                    if (number + 1) % _MEASURE_EVERY == 0 or number + 1 == n:
                        peaks[-1] = max(peaks[-1], server.resident_bytes() / 2**20)
                        print_line(f"{number + 1} of {n}, time {time} of {times}, "
                             f"{peaks[-1]:.0f} MiB at peaks")  # fmt: skip
            server.wait_ready()
        has_traceback = "raceback" in server.log.read_text(errors="replace")
    found = {
        "pictures": n,
        "times": times,
        "bytes": sum(map(len, _broken(n))),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "sentences": len(messages - {""}),
        "most_resident_mib": peaks,
    }
    return found, _problems(found, has_traceback)


def _broken(n):
    """Return n broken images. Every call returns the same ones."""
    random_source, intact = random.Random(0), originals()
    return (broken(intact[number % len(intact)], random_source) for number in range(n))


def _send(client: Client, content: bytes) -> tuple[int, str]:
    """Return status and message of the response. A status of 200 needs a valid prediction."""
    try:
        [served] = client.predict(content)
    except ClientError as error:
        return error.status, str(error)
    assert 0 <= served.class_index < 10, served
    assert 0 < served.confidence <= 1, served
    return 200, ""


def _problems(found, has_traceback):
    problems = []
    allowed = {"200", "400", "413", "422"}
    if not set(found["statuses"]) <= allowed:
        others = sorted(set(found["statuses"]) - allowed)
        problems.append(f"pictures were answered with status {others}")
    if len(found["statuses"]) < 2:
        problems.append("all images were treated alike")
    if has_traceback:
        problems.append("the log contains a traceback")
    *_, before, after = found["most_resident_mib"]
    if after - before > MAX_GROWTH_MIB:
        problems.append(f"memory grew by {after - before:.1f} MiB in the last round")
    return problems
