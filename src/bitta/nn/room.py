"""Work that may not fit into the memory of its device."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bitta.errors import SpaceError


@contextmanager
def room(work: str, remedy: str) -> Iterator[None]:
    """Say what did not fit, and what to do about it."""
    try:
        yield
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        raise SpaceError(f"{work} does not fit into the device's memory; {remedy}") from error


def ran_out_of_memory(error: BaseException | None) -> bool:
    """Also where another error came of it, as it does while a graph is captured."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return True
        error = error.__context__
    return False
