"""Fan-out MC-dropout: N stochastic passes of any module in one forward.

Forward hooks at the sites drop elements of what they see. At the first site the batch is repeated,
so that everything before it runs once. Masks are addressed by (site, call, pass), never by the
order of drawing, so that a fan-out, N separate passes and a second run of one of them drop the same
elements.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bitta.errors import ModelError
from bitta.nn.norm import Rows
from bitta.seeding import Chance

_LEVELS = 2**16


@contextmanager
def dropout_at(
    model: nn.Module,
    sites: Sequence[str],
    *,
    rate: float,
    passes: Sequence[int],
    chance: Chance,
    rows: Rows,
) -> Iterator[None]:
    """Drop elements after each site; several passes fan out at the first one that runs.

    Serves one forward: inside it `rows.passes` tells how many passes the current rows hold.
    """
    calls = [0] * len(sites)

    def hook_for(site: int) -> Callable[..., Any]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            call, calls[site] = calls[site], calls[site] + 1
            fanned, rows.passes = rows.passes == len(passes), len(passes)

            def drop(x: Tensor) -> Tensor:
                split = x.unflatten(0, (len(passes), -1)) if fanned else x.unsqueeze(0)
                generators = [chance.at(site, call, n, device=x.device) for n in passes]
                kept = _kept(split[0], rate, generators, rows)
                return (kept * (split * (1 / (1 - rate)))).flatten(0, 1)

            return _on_first_tensor(output, drop)

        return hook

    handles = [
        model.get_submodule(name).register_forward_hook(hook_for(site))
        for site, name in enumerate(sites)
    ]
    try:
        yield
        if not any(calls):
            raise ModelError(f"none of the dropout sites {', '.join(sites)} ran in the forward.")
    finally:
        rows.passes = 1
        for handle in handles:
            handle.remove()


def _kept(x: Tensor, rate: float, generators: Sequence[torch.Generator], rows: Rows) -> Tensor:
    """True where an element of x is kept, (generators, *x.shape), laid out in memory as x is.

    Random bits, four decisions to a word, are several times faster on a CPU than `bernoulli_`; the
    rate is honoured to one part in 65,536.
    """
    size = x[0].numel() if len(x) else 0
    n_elements = size * (rows.total or len(x))
    words = x.new_empty((len(generators), (n_elements + 3) // 4), dtype=torch.int64)
    for row, chance in zip(words, generators, strict=True):
        row.random_(-(2**63), None, generator=chance)
    start = size * rows.start
    drawn = words.view(torch.int16)[:, start : start + x.numel()]
    kept = drawn >= round(rate * _LEVELS) - _LEVELS // 2
    return kept.as_strided((len(generators), *x.shape), (x.numel(), *_dense_strides(x)))


def _dense_strides(x: Tensor) -> Sequence[int]:
    """Strides of x where it lies row after row without gaps, else those of a contiguous one."""
    laid_out = torch.empty_like(x, device="meta").stride()
    by_rows = len(x) > 0 and laid_out[0] == x[0].numel()
    return laid_out if by_rows else torch.empty(x.shape, device="meta").stride()


def _on_first_tensor(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Blocks that return (hidden, attentions, ...) are dropped in their hidden state."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return (change(output[0]), *output[1:])
    raise ModelError(
        f"a dropout site returned {type(output).__name__}; it must return a tensor or a tuple that "
        "starts with one; name other sites."
    )
