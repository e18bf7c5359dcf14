"""One process owns a data folder; the lock goes with it, however it ends."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from bitta.server.store.errors import StoreInUse, StoreUnavailable


def make_folder(folder: Path) -> None:
    """Make a data folder that nobody else on the machine can read."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error


def own(folder: Path) -> int:
    """Take the folder's lock; the open file that holds it."""
    make_folder(folder)
    try:
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(file, 20).decode("ascii", "replace").strip()
        os.close(file)
        raise StoreInUse(
            f"the data folder {folder} belongs to a bitta server that runs"
            f"{f' (process {owner})' if owner else ''}; stop it, or give another folder"
        ) from None
    with suppress(OSError):  # a full disk; who owns it is only good to know
        os.truncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file


def disown(file: int) -> None:
    """Let the folder go."""
    os.close(file)


def _unusable(folder: Path, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"the data folder {folder} cannot be used ({error.strerror}); give one that can be written"
    )
