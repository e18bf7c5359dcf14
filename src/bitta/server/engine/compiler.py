"""torch's compiler, imported when it does not hold up those who wait.

Optimisers tell it to leave them alone, and import it for that, which takes longer than all else at
the start of a server. It is needed when they step; until then it can wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Thread

from torch.optim import Optimizer

_TELLING = ("add_param_group", "state_dict", "load_state_dict")


@contextmanager
def without_compiler() -> Iterator[None]:
    """Make, save or load optimisers inside, without telling the compiler."""
    told = {name: getattr(Optimizer, name) for name in _TELLING}
    for name, method in told.items():
        # Another thread may have got here first; an older or newer torch may not wrap them.
        setattr(Optimizer, name, getattr(method, "__wrapped__", method))
    try:
        yield
    finally:
        for name, method in told.items():
            setattr(Optimizer, name, method)


class Import(Thread):
    """Imports the compiler, at a pace that lets others work."""

    def __init__(self) -> None:
        super().__init__(name="bitta-import", daemon=True)

    def run(self) -> None:
        """Once; the next step finds it there."""
        import_module("torch._dynamo")

    def finished(self) -> bool:
        """Begin it if it has not begun, and say whether it is over."""
        if self.ident is None:
            self.start()
        return not self.is_alive()
