"""How many passes over its pixels a JPEG asks for.

A progressive picture of a few kilobytes can repeat a scan that says nothing some thousand times,
and libjpeg goes over the whole picture for each of them.
"""

import re

_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")  # All but fill, escapes, restarts and TEM.
_BEGIN, _END, _SCAN = 0xD8, 0xD9, 0xDA


def count_scans(content: bytes, *, enough: int) -> int:
    """Scans up to the end of the picture; counting stops once there are more than `enough`."""
    n_scans = place = 0
    while n_scans <= enough and (found := _MARKER.search(content, place)):
        (marker,) = found[1]
        if marker == _END:
            break
        n_scans += marker == _SCAN
        place = found.end()
        if marker != _BEGIN:  # Every other segment tells its length, which counts itself.
            place += max(2, int.from_bytes(content[place : place + 2], "big"))
    return n_scans
