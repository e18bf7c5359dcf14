"""Memory that a command has freed stays with it."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_ARENAS = -1, -3, -8
_PLENTY = 2**30


def keep_freed_memory() -> None:
    """Let the C library reuse large blocks instead of asking the system for fresh pages each time.

    Every batch frees and takes the same hundreds of megabytes, and a fresh page costs more than
    writing to it. All threads share one heap: with one each, every thread of a server would come to
    hold as much as the largest of its tasks ever took. Where there is no such setting, nothing
    changes.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _PLENTY)
        library.mallopt(_TRIM_THRESHOLD, _PLENTY)
        library.mallopt(_MOST_ARENAS, 1)
    except (AttributeError, OSError, TypeError):  # not the GNU C library
        return
