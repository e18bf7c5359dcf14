"""Broken JPEG, PNG and WebP files, sent to a whole server."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

from soak_memory import growth

from bitta.client import Client, ClientError
from made_pictures import broken, originals
from server.processes import MODEL, ServerProcess

_SETTINGS = (
    f'model = "{MODEL}"\nlog_level = "warning"\nmethod = "source"\nn_queries = 0\naudits = 0\n'
    "recent_bytes = 1048576\n"
)
"""Without learning, whose memory has a part of its own."""
_ROUND = 50
"""Pictures between two looks at the memory."""
_MOST = 16.0
"""MiB by which the server may have grown from a third of the pictures to the end: room for what
decoders keep, and far less than one byte kept for each byte sent would take."""


def pictures(n, tell):
    """Send n broken pictures; what was found, and what is wrong."""
    chance, wholes, statuses = random.Random(0), originals(), {}
    said, resident, sent = set(), [], 0
    with TemporaryDirectory() as folder:
        server = ServerProcess(Path(folder), settings=_SETTINGS)
        with server, server.client("client") as client:
            for number in range(n):
                content = broken(wholes[number % len(wholes)], chance)
                sent += len(content)
                status, sentence = _sent(client, content)
                statuses[status] = statuses.get(status, 0) + 1
                said.add(sentence)
                if number % _ROUND == 0:
                    resident.append(server.resident() / 2**20)
                    tell(f"{number} of {n} pictures, {resident[-1]:.0f} MiB")
            server.wait_ready()
        grown = growth(resident)
        traced = "raceback" in server.log.read_text(errors="replace")
    found = {
        "pictures": n,
        "bytes": sent,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "sentences": len(said - {""}),
        "resident_mib": {"first": resident[0], "last": resident[-1], "grown": grown},
    }
    return found, _wrong(found, traced)


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
    if found["resident_mib"]["grown"] > _MOST:
        wrong.append(f"memory grew by {found['resident_mib']['grown']:.1f} MiB")
    return wrong
