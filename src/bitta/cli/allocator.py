"""Memory that a command has freed stays with it."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_PLENTY = 2**30


def keep_freed_memory() -> None:
    """Let the C library reuse large blocks instead of asking the system for fresh pages each time.

    Every batch frees and takes the same hundreds of megabytes, and a fresh page costs more than
    writing to it. Where there is no such setting, nothing changes.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _PLENTY)
        library.mallopt(_TRIM_THRESHOLD, _PLENTY)
    except (AttributeError, OSError, TypeError):  # not the GNU C library
        return
