"""One process at a time: a lock that goes with whoever holds it, however that ends."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

_SECONDS_BETWEEN_TRIES = 0.1


@contextmanager
def alone(path: Path, *, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock that belongs to a file; `wait` is called between tries, and may raise."""
    place = path.with_name(f".{path.name}.lock")
    while (held := _hold(place)) is None:
        wait()
        sleep(_SECONDS_BETWEEN_TRIES)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        os.close(held)


def _hold(place: Path) -> int | None:
    import fcntl  # noqa: PLC0415 (not on every system, and nothing else needs it)

    place.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it may have removed it meanwhile: a file without a name keeps nobody out.
        if os.path.samestat(os.fstat(file), os.stat(place)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(file)
    return None
