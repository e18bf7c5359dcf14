"""Normalisation and dropout of stochastic passes by Triton kernels, with gradients."""

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
"""Elements that one program processes at a time."""
_N_PROGRAMS = 528
"""Number of programs that keeps a large GPU busy: four on each of 132 multiprocessors."""
_MAX_SLICES, _SLICES_AT_ONCE = 256, 32
"""Maximum number of slices in which rows are summed, and number of sums added at a time."""
_DROPOUT_BLOCK = 2048

Draw: TypeAlias = Callable[[Tensor], tuple[Tensor, int]]
"""Returns random 16-bit words, (passes, words), and the index of the word for the first element of
the given tensor."""


@cache
def can_compile(device: torch.device) -> bool:
    """Return True if Triton is installed and can compile for the device.

    Triton comes with CUDA builds of torch on Linux.
    """
    if find_spec("triton") is None:
        return False
    try:
        with torch.cuda.device(device):
            _KernelGrid(torch.empty(1, 1, 1, 1), 1).add_slices(
                torch.zeros(1, 1, 2, 1, device=device)
            )
    except (ImportError, OSError, RuntimeError, CalledProcessError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"Triton cannot compile here ({reason}); using slower operations of torch instead.",
            FallbackWarning,
            stacklevel=2,
        )
        return False
    return True


def supports(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Return True if the kernels can normalise x: channels-last images, with scale and shift."""
    return (
        x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.dtype in (torch.float32, torch.bfloat16)
        and weight is not None
        and bias is not None
        and weight.dtype == bias.dtype == torch.float32
    )


def normalise_passes(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n_passes: int, *, eps: float
) -> Tensor:
    """Normalise each pass by its own statistics."""
    out: Tensor = _FusedBatchNorm.apply(x, weight, bias, n_passes, eps)  # type: ignore[no-untyped-call]
    return out


def drop_passes(x: Tensor, draw: Draw, n_passes: int, *, rate: float, is_fanned: bool) -> Tensor:
    """Apply dropout to each pass with its own random words, (passes * rows, ...).

    If `is_fanned`, the rows already hold all passes. Backward draws the words again instead of
    storing them.
    """
    out: Tensor = _FusedDropout.apply(x, draw, n_passes, rate, is_fanned)  # type: ignore[no-untyped-call]
    return out


class _FusedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, n_passes: int, eps: float
    ) -> Tensor:
        """Return the normalised input in its own layout."""
        from bitta.nn.fast import kernels  # noqa: PLC0415 (not installed everywhere)

        grid = _KernelGrid(x, n_passes)
        sizes, blocks = (grid.n_rows, grid.n_channels), grid.blocks
        sums = x.new_empty((grid.n_slices, n_passes, 2, grid.n_channels), dtype=torch.float32)
        kernels.moments[grid.by_slice](x, sums, *sizes, grid.rows_per_slice, **blocks)
        totals = grid.add_slices(sums)
        out, statistics = torch.empty_like(x), torch.empty_like(totals)
        kernels.normalise[grid.by_block](
            x, totals, weight, bias, out, statistics, *sizes, eps, **blocks
        )
        ctx.save_for_backward(x, weight, statistics)
        ctx.grid = grid
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias. Mean and variance also depend on x."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        x, weight, statistics = ctx.saved_tensors
        grid: _KernelGrid = ctx.grid
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        sizes, blocks = (grid.n_rows, grid.n_channels), grid.blocks
        sums = x.new_empty((grid.n_slices, *statistics.shape), dtype=torch.float32)
        kernels.gradient_moments[grid.by_slice](
            x, gradient, statistics, sums, *sizes, grid.rows_per_slice, **blocks
        )
        totals, out = grid.add_slices(sums), torch.empty_like(x)
        kernels.normalise_backward[grid.by_block](
            x, gradient, statistics, totals, weight, out, *sizes, **blocks
        )
        bias, scale = totals.sum(0)
        return out, scale, bias, None, None


class _KernelGrid:
    """Division of the rows and channels of a tensor among programs."""

    def __init__(self, x: Tensor, n_passes: int) -> None:
        self.n_channels = x.shape[1]
        self.n_rows = x.numel() // (n_passes * self.n_channels)
        width = min(64, 1 << (self.n_channels - 1).bit_length())
        self.blocks = {"ROWS": _TILE // width, "CHANNELS": width}
        n_columns = -(-self.n_channels // width)
        n_blocks = -(-self.n_rows // self.blocks["ROWS"])
        n_slices = max(1, min(n_blocks, _MAX_SLICES, _N_PROGRAMS // (n_passes * n_columns)))
        self.rows_per_slice = -(-n_blocks // n_slices) * self.blocks["ROWS"]
        self.n_slices = -(-self.n_rows // self.rows_per_slice)
        self.by_slice = (n_passes, n_columns, self.n_slices)
        self.by_block = (n_blocks, n_passes, n_columns)  # CUDA limits all dimensions but the first.

    def add_slices(self, sums: Tensor) -> Tensor:
        """Add the sums of all slices, (passes, 2, channels)."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        totals = torch.empty_like(sums[0])
        width = self.blocks["CHANNELS"]
        kernels.add_slices[self.by_slice[:2]](
            sums, totals, self.n_channels, self.n_slices, SLICES=_SLICES_AT_ONCE, CHANNELS=width
        )
        return totals


class _FusedDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, draw: Draw, n_passes: int, rate: float, is_fanned: bool
    ) -> Tensor:
        """Drop elements of each pass. If x is not fanned, it is repeated for each pass."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        words, offset = draw(x)
        n = x.numel() // n_passes if is_fanned else x.numel()
        ctx.draw, ctx.settings, ctx.n = draw, (n_passes, rate, is_fanned), n
        ctx.like = x.shape, x.stride(), x.dtype
        size = (len(x) if is_fanned else n_passes * len(x), *x.shape[1:])
        out = x.new_empty_strided(size, x.stride())
        grid = (-(-n // _DROPOUT_BLOCK), n_passes)
        kernels.drop[grid](
            x, words, out, n, words.shape[1], offset, keep_threshold(rate),
            1 / (1 - rate), FANNED=is_fanned, SIZE=_DROPOUT_BLOCK,
        )  # fmt: skip
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Drop and scale gradients like the elements. Add those of passes that shared x."""
        from bitta.nn.fast import kernels  # noqa: PLC0415

        n_passes, rate, is_fanned = ctx.settings
        shape, stride, dtype = ctx.like
        out = torch.empty_strided(shape, stride, dtype=dtype, device=gradient.device)
        if gradient.stride() != stride:
            gradient = torch.empty_strided(
                gradient.shape, stride, dtype=dtype, device=gradient.device
            ).copy_(gradient)
        words, offset = ctx.draw(out)
        settings = (ctx.n, words.shape[1], offset, keep_threshold(rate), 1 / (1 - rate))
        n_blocks = -(-ctx.n // _DROPOUT_BLOCK)
        if is_fanned:
            kernels.drop[(n_blocks, n_passes)](
                gradient, words, out, *settings, FANNED=True, SIZE=_DROPOUT_BLOCK
            )
        else:
            kernels.drop_backward[(n_blocks,)](
                gradient, words, out, *settings, PASSES=n_passes, SIZE=_DROPOUT_BLOCK
            )
        return out, None, None, None, None


def keep_threshold(rate: float) -> int:
    """Return the lowest 16-bit word with which an element is kept."""
    return min(round(rate * 2**16), 2**16 - 1) - 2**15
