"""Broken JPEG, PNG and WebP files, sent to a whole server."""

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
"""Without learning, whose memory has a part of its own."""
_ROUND = 100
"""Pictures between two looks at the memory."""
MOST = 16.0
"""MiB by which the most that the server has, while it is sent the same pictures for the last time,
may be above the most of the time before. Until then each thread that decodes may meet the worst of
them, and what is imported late has been; whatever was kept of each picture would be kept again."""
_BEFORE = 1000
"""Pictures that are sent at least before that."""


def pictures(n, tell):
    """Send n broken pictures three times, few ones more often; what was found, and is wrong."""
    statuses, said, most = {}, set(), []
    times = 1 + max(2, -(-_BEFORE // n))
    with TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder), settings=_SETTINGS)
        with server, server.client("client") as client:
            for time in range(1, times + 1):
                most.append(server.resident_bytes() / 2**20)
                for number, content in enumerate(_broken(n)):
                    status, sentence = _sent(client, content)
                    statuses[status] = statuses.get(status, 0) + 1
                    said.add(sentence)
                    if (number + 1) % _ROUND == 0 or number + 1 == n:
                        most[-1] = max(most[-1], server.resident_bytes() / 2**20)
                        tell(f"{number + 1} of {n}, time {time} of {times}, "
                             f"{most[-1]:.0f} MiB at most")  # fmt: skip
            server.wait_ready()
        traced = "raceback" in server.log.read_text(errors="replace")
    found = {
        "pictures": n,
        "times": times,
        "bytes": sum(map(len, _broken(n))),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "sentences": len(said - {""}),
        "most_resident_mib": most,
    }
    return found, _wrong(found, traced)


def _broken(n):
    """The same every time."""
    chance, wholes = random.Random(0), originals()
    return (broken(wholes[number % len(wholes)], chance) for number in range(n))


def _sent(client: Client, content: bytes) -> tuple[int, str]:
    """Status and sentence; 200 only for a prediction that is one."""
    try:
        [served] = client.predict(content)
    except ClientError as error:
        return error.status, str(error)
    assert 0 <= served.class_index < 10, served
    assert 0 < served.confidence <= 1, served
    return 200, ""


def _wrong(found, traced):
    wrong = []
    allowed = {"200", "400", "413", "422"}
    if not set(found["statuses"]) <= allowed:
        wrong.append(f"pictures were answered with {sorted(set(found['statuses']) - allowed)}")
    if len(found["statuses"]) < 2:
        wrong.append("all pictures were treated alike")
    if traced:
        wrong.append("the log holds a traceback")
    *_, before, after = found["most_resident_mib"]
    if after - before > MOST:
        wrong.append(f"memory grew by {after - before:.1f} MiB the last time")
    return wrong
