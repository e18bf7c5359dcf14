"""The last linear layer of a classifier: what goes into it are the features."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from bitta.errors import ModelError


def find_head(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Name of the last linear layer that runs in a forward with a row for each of its rows."""
    ran: list[tuple[str, int]] = []

    def hook_for(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            ran.append((name, len(output) if output.dim() == 2 else 0))

        return hook

    handles = [
        module.register_forward_hook(hook_for(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        n_rows = len(forward())
    finally:
        for handle in handles:
            handle.remove()
    heads = [name for name, rows in ran if rows == n_rows]
    if not heads:
        raise ModelError(
            f"{type(model).__name__} ends in no linear layer, so it has no features that this "
            "method could compare; use another method, or end the model in nn.Linear."
        )
    return heads[-1]


@contextmanager
def input_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what goes into a module in the forwards inside."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()
