"""Control what the C library does with freed memory: keep it, or return it to the system."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MAX_ARENAS = -1, -3, -8
_ONE_GIBIBYTE = 2**30


def keep_freed_memory() -> None:
    """Let the C library reuse large blocks instead of requesting new pages from the system.

    Every batch frees and allocates the same hundreds of megabytes, and requesting a page costs more
    than writing to it. All threads share one heap. If each thread of a server had its own heap, it
    would keep as much memory as its largest task needed. With other C libraries this does nothing.
    """
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _ONE_GIBIBYTE)
        library.mallopt(_TRIM_THRESHOLD, _ONE_GIBIBYTE)
        library.mallopt(_MAX_ARENAS, 1)
    except (AttributeError, OSError, TypeError):  # Not the GNU C library.
        return


def give_back_freed_memory() -> None:
    """Return all free pages of the heap to the system, including those between blocks in use.

    Freed memory is only useful if the next block fits into it. If a small block is placed in a
    large hole, the next large block no longer fits there: the heap grows, and the rest of the hole
    stays unused. With other C libraries this does nothing.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # Not the GNU C library.
        return
