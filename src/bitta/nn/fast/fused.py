"""Per-pass normalisation and dropout as single operations, on a GPU that Triton can program."""

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bitta.errors import FallbackWarning

_TILE = 4096
"""Elements that one program handles at a time."""
_PROGRAMS = 528
"""Enough of them to keep a large GPU busy: four on each of 132 multiprocessors."""
_MOST_SLICES, _TOGETHER = 256, 32
"""Slices that rows are summed in, and how many of these sums are added at a time."""
_DROPPED = 2048

Draw: TypeAlias = Callable[[Tensor], tuple[Tensor, int]]
"""Gives random 16-bit words for a tensor, (passes, words), and where it begins in them."""


@cache
def works(device: torch.device) -> bool:
    """Whether Triton is there, as it is with CUDA builds of torch on Linux, and can compile."""
    if find_spec("triton") is None:
        return False
    try:
        with torch.cuda.device(device):
            _Shape(torch.empty(1, 1, 1, 1), 1).added_up(torch.zeros(1, 1, 2, 1, device=device))
    except (ImportError, OSError, RuntimeError, CalledProcessError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"Triton cannot compile here ({reason}); normalising and dropping pass by pass.",
            FallbackWarning,
            stacklevel=2,
        )
        return False
    return True


def fits(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether these kernels can normalise it: images, channels last, with scale and shift."""
    return (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.float32, torch.bfloat16)
        and weight is not None
        and bias is not None
        and weight.dtype == bias.dtype == torch.float32
    )


def normalise_passes(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, passes: int, *, eps: float
) -> Tensor:
    """BatchNorm of each pass by its own statistics."""
    out: Tensor = _Normalise.apply(x, weight, bias, passes, eps)  # type: ignore[no-untyped-call]
    return out


def drop_passes(x: Tensor, draw: Draw, passes: int, *, rate: float, fanned: bool) -> Tensor:
    """Dropout of each pass by its own words, (passes * rows, ...); `fanned` rows hold all passes.

    Backward draws the words again rather than keep them.
    """
    out: Tensor = _Drop.apply(x, draw, passes, rate, fanned)  # type: ignore[no-untyped-call]
    return out


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, passes: int, eps: float
    ) -> Tensor:
        """Normalised rows, laid out as they came."""
        from bitta.nn.fast import kernels  # noqa: PLC0415 (triton is not everywhere)

        shape = _Shape(x, passes)
        sizes, blocks = (shape.rows, shape.channels), shape.blocks
        sums = x.new_empty((shape.slices, passes, 2, shape.channels), dtype=torch.float32)
        kernels.moments[shape.by_slice](x, sums, *sizes, shape.per_slice, **blocks)
        totals = shape.added_up(sums)
        out, statistics = torch.empty_like(x), torch.empty_like(totals)
        kernels.normalise[shape.by_block](
            x, totals, weight, bias, out, statistics, *sizes, eps, **blocks
        )
        ctx.save_for_backward(x, weight, statistics)
        ctx.shape = shape
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Through mean and variance too."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        x, weight, statistics = ctx.saved_tensors
        shape: _Shape = ctx.shape
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        sizes, blocks = (shape.rows, shape.channels), shape.blocks
        sums = x.new_empty((shape.slices, *statistics.shape), dtype=torch.float32)
        kernels.gradient_moments[shape.by_slice](
            x, gradient, statistics, sums, *sizes, shape.per_slice, **blocks
        )
        totals, out = shape.added_up(sums), torch.empty_like(x)
        kernels.normalise_backward[shape.by_block](
            x, gradient, statistics, totals, weight, out, *sizes, **blocks
        )
        bias, scale = totals.sum(0)
        return out, scale, bias, None, None


class _Shape:
    """How the rows of a tensor are shared out among programs."""

    def __init__(self, x: Tensor, passes: int) -> None:
        self.channels = x.shape[1]
        self.rows = x.numel() // (passes * self.channels)
        wide = min(64, 1 << (self.channels - 1).bit_length())
        self.blocks = {"ROWS": _TILE // wide, "CHANNELS": wide}
        columns = -(-self.channels // wide)
        steps = -(-self.rows // self.blocks["ROWS"])
        self.slices = max(1, min(steps, _MOST_SLICES, _PROGRAMS // (passes * columns)))
        self.per_slice = -(-steps // self.slices) * self.blocks["ROWS"]
        self.slices = -(-self.rows // self.per_slice)
        self.by_slice = (passes, columns, self.slices)
        self.by_block = (steps, passes, columns)  # only the first may be large

    def added_up(self, sums: Tensor) -> Tensor:
        """(passes, 2, channels)."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        totals = torch.empty_like(sums[0])
        wide = self.blocks["CHANNELS"]
        kernels.add_up[self.by_slice[:2]](
            sums, totals, self.channels, self.slices, SLICES=_TOGETHER, CHANNELS=wide
        )
        return totals


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, draw: Draw, passes: int, rate: float, fanned: bool) -> Tensor:
        """Every pass's share of x, or x dropped for every pass."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        words, offset = draw(x)
        n = x.numel() // passes if fanned else x.numel()
        ctx.draw, ctx.settings, ctx.n = draw, (passes, rate, fanned), n
        ctx.like = x.shape, x.stride(), x.dtype
        size = (len(x) if fanned else passes * len(x), *x.shape[1:])
        out = x.new_empty_strided(size, x.stride())
        grid = (-(-n // _DROPPED), passes)
        kernels.drop[grid](
            x, words, out, n, words.shape[1], offset, level_of(rate), 1 / (1 - rate),
            FANNED=fanned, SIZE=_DROPPED,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The same elements, scaled; those of the passes added up where they shared x."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        passes, rate, fanned = ctx.settings
        shape, stride, dtype = ctx.like
        out = torch.empty_strided(shape, stride, dtype=dtype, device=gradient.device)
        if gradient.stride() != stride:
            gradient = torch.empty_strided(
                gradient.shape, stride, dtype=dtype, device=gradient.device
            ).copy_(gradient)
        words, offset = ctx.draw(out)
        settings = (ctx.n, words.shape[1], offset, level_of(rate), 1 / (1 - rate))
        blocks = -(-ctx.n // _DROPPED)
        if fanned:
            kernels.drop[(blocks, passes)](
                gradient, words, out, *settings, FANNED=True, SIZE=_DROPPED
            )
        else:
            kernels.undrop[(blocks,)](gradient, words, out, *settings, PASSES=passes, SIZE=_DROPPED)
        return out, None, None, None, None


def level_of(rate: float) -> int:
    """The 16-bit word from which on an element is kept."""
    return min(round(rate * 2**16), 2**16 - 1) - 2**15
