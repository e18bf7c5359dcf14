"""Fan-out MC-dropout: N stochastic passes of any module in one forward.

Forward hooks at the sites drop elements of what they see. At the first site the batch is repeated,
so that everything before it runs once. Masks are addressed by (site, call, pass), never by the
order of drawing, so that a fan-out, N separate passes and a second run of one of them drop the same
elements.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitta.errors import ModelError
from bitta.nn import fused
from bitta.nn.norm import Rows
from bitta.seeding import Chance


@contextmanager
def dropout_at(
    model: nn.Module,
    sites: Sequence[str],
    *,
    rate: float,
    passes: Sequence[int],
    chance: Chance,
    rows: Rows,
    kernels: bool = False,
) -> Iterator[None]:
    """Drop elements after each site; several passes fan out at the first one that runs.

    Serves one forward: inside it `rows.passes` tells how many passes the current rows hold.
    `kernels` of our own are used where they fit.
    """
    calls = [0] * len(sites)

    def hook_for(site: int) -> Callable[..., Any]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            place = (site, calls[site])
            calls[site] += 1
            fanned, rows.passes = rows.passes == len(passes), len(passes)

            def dropped(x: Tensor) -> Tensor:
                n, total, start = _rows_of(len(x) // (len(passes) if fanned else 1), rows)
                drawn = _Words(chance, place, passes, n_rows=total, start=start)
                drop = _drop_by_kernel if kernels and n else _drop
                return drop(x, rate, drawn, fanned)

            return _on_first_tensor(output, dropped)

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


def _rows_of(n: int, rows: Rows) -> tuple[int, int, int]:
    """Rows at a site, of how many in the whole batch, and where they begin among these.

    A model may fold something else into its rows, as many to each sample.
    """
    if not rows.total:
        return n, 0, 0
    if n % rows.n:
        raise ModelError(
            f"a dropout site has {n} rows for {rows.n} samples; micro_batch needs as many for each."
        )
    each = n // rows.n
    return n, each * rows.total, each * rows.start


@dataclass(frozen=True)
class _Words:
    """Random 16-bit words for one call of a site, the same whenever they are drawn.

    Random bits, four words at a time, are several times faster on a CPU than `bernoulli_`; a rate
    is honoured to one part in 65,536.
    """

    chance: Chance
    place: tuple[int, int]
    passes: Sequence[int]
    n_rows: int = 0
    """Rows of the whole batch; 0 where x is all of it."""
    start: int = 0
    """Where x begins in it."""

    def __call__(self, x: Tensor) -> tuple[Tensor, int]:
        """(passes, words) in the order in which x lies in memory, and the word of its beginning."""
        size = x[0].numel() if len(x) else 0
        n_words = size * (self.n_rows or len(x))
        quads = x.new_empty((len(self.passes), (n_words + 3) // 4), dtype=torch.int64)
        for row, number in zip(quads, self.passes, strict=True):
            generator = self.chance.at(*self.place, number, device=x.device)
            row.random_(-(2**63), None, generator=generator)
        return quads.view(torch.int16), size * self.start


def _drop(x: Tensor, rate: float, drawn: _Words, fanned: bool) -> Tensor:
    split = x.unflatten(0, (len(drawn.passes), -1)) if fanned else x.unsqueeze(0)
    return (_kept(split[0], rate, drawn) * (split * (1 / (1 - rate)))).flatten(0, 1)


def _kept(x: Tensor, rate: float, drawn: _Words) -> Tensor:
    """1 where an element of x is kept, else 0: (passes, *x.shape), laid out in memory as x is."""
    words, start = drawn(x)
    words = words[:, start : start + x.numel()]
    # In the type of x from the start: a CPU is slow to mix types.
    kept = torch.ge(words, fused.level_of(rate), out=x.new_empty(words.shape))
    return kept.as_strided((len(kept), *x.shape), (x.numel(), *_dense_strides(x)))


def _drop_by_kernel(x: Tensor, rate: float, drawn: _Words, fanned: bool) -> Tensor:
    if x.dtype not in (torch.float32, torch.bfloat16) or x.stride() != tuple(_dense_strides(x)):
        return _drop(x, rate, drawn, fanned)
    n_passes = len(drawn.passes)

    def draw(x: Tensor) -> tuple[Tensor, int]:
        return drawn(x[: len(x) // n_passes] if fanned else x)

    return fused.drop_passes(x, draw, n_passes, rate=rate, fanned=fanned)


def _dense_strides(x: Tensor) -> Sequence[int]:
    """Strides of x where it lies row after row without gaps, else those of a contiguous one."""
    size = x[0].numel() if len(x) else 0
    laid_out = torch.empty_like(x, device="meta").stride()
    if len(x) == 1 or laid_out[0] == size:  # of a single row, the first stride says nothing
        return (size, *laid_out[1:])
    return torch.empty(x.shape, device="meta").stride()


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
