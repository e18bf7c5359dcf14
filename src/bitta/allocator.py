"""What becomes of memory that was freed: a command keeps it, a server gives it back in time."""

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


def give_back_freed_memory() -> None:
    """Return every free page of the heap to the system, also those between blocks in use.

    What is kept is only of use where the next block fits into it. Where something small came to lie
    in a hole, the large block that used to fit is put elsewhere, and the heap grows by a hole that
    is never filled again. Where there is no such call, nothing changes.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # not the GNU C library
        return
