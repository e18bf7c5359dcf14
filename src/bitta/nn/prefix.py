"""The part of a model before its first dropout site, run once and given again."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Prefix:
    """What modules returned before the first site: a second forward takes it instead of computing.

    Whatever a model does between these modules is done again, on the same values.
    """

    def __init__(self, model: nn.Module, sites: tuple[str, ...]) -> None:
        self._named = dict(model.named_modules())
        self._sites = sites
        self._outputs: dict[str, deque[Any]] = {}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Remember what the outermost finished modules return in the one forward inside.

        Gradients are tracked up to the first site only: what follows is not to be differentiated.
        """
        passed = False

        def hook_for(name: str) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                nonlocal passed
                if passed:
                    return
                passed = name in self._sites
                for inner in [known for known in self._outputs if known.startswith(f"{name}.")]:
                    del self._outputs[inner]
                self._outputs.setdefault(name, deque()).append(output)
                if passed:
                    torch.set_grad_enabled(False)

            return hook

        handles = [
            module.register_forward_hook(hook_for(name))
            for name, module in self._named.items()
            if name
        ]
        tracking = torch.is_grad_enabled()
        try:
            yield
        finally:
            torch.set_grad_enabled(tracking)
            for handle in handles:
                handle.remove()

    @contextmanager
    def given_again(self) -> Iterator[None]:
        """Let these modules return what they returned, as often as they did."""

        def stand_in(forward: Callable[..., Any], outputs: deque[Any]) -> Callable[..., Any]:
            def again(*args: Any, **kwargs: Any) -> Any:
                return outputs.popleft() if outputs else forward(*args, **kwargs)

            return again

        modules = [self._named[name] for name in self._outputs]
        own = [module.__dict__.get("forward") for module in modules]
        for module, outputs in zip(modules, self._outputs.values(), strict=True):
            module.__dict__["forward"] = stand_in(module.forward, outputs)
        try:
            yield
        finally:
            for module, forward in zip(modules, own, strict=True):
                del module.__dict__["forward"]
                if forward is not None:
                    module.__dict__["forward"] = forward
