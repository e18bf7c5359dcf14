"""Execution path of a session: graphs, precision, layout, kernels.

All paths give the same results up to rounding.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, get_args

import torch

from bitta.config_base import require
from bitta.errors import DeviceMemoryError
from bitta.nn.fast.fused import can_compile


@contextmanager
def explain_out_of_memory(work: str, remedy: str) -> Iterator[None]:
    """Replace out-of-memory errors by one that names the work and a remedy."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            f"{work} does not fit into the device's memory; {remedy}"
        ) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if the error, or an earlier one that led to it, is an out-of-memory error.

    If memory runs out during the capture of a graph, other errors follow.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return True
        error = error.__context__
    return False


Precision: TypeAlias = Literal["auto", "float32", "tf32", "bfloat16"]
"""Precision of convolutions and matrix products. Weights and losses stay in single precision."""

_AMPERE = 8
"""Lowest compute capability of a GPU with TF32 and bfloat16."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Execution path, chosen once for a model on its device."""

    graphs: bool
    """Capture work with constant shapes as CUDA graphs and replay it."""
    precision: Literal["float32", "tf32", "bfloat16", "the model's own precision"]
    channels_last: bool
    """Use the channels-last memory layout for images and filters."""
    fused: bool
    """Update all parameters in one kernel."""
    kernels: bool
    """Use Triton kernels for batch normalisation and dropout."""

    @classmethod
    def choose(
        cls, device: torch.device, dtype: torch.dtype, *, eager: bool, precision: Precision
    ) -> Self:
        """Choose the fastest path for weights of this dtype, or the plain path if `eager`."""
        allowed = get_args(Precision)
        require(precision in allowed, "precision", precision, ", ".join(allowed))
        is_cuda = device.type == "cuda"
        is_recent = is_cuda and torch.cuda.get_device_capability(device)[0] >= _AMPERE
        if precision == "auto":
            precision = "bfloat16" if is_recent and not eager else "float32"
        if precision == "tf32" and not is_recent:
            precision = "float32"  # The device does not support TF32.
        is_fast, is_single = is_cuda and not eager, dtype == torch.float32
        # The kernels add in another order, so they round differently. Do not use them for float32.
        is_reduced = is_fast and is_recent and is_single and precision != "float32"
        return cls(
            graphs=is_fast,
            precision=precision if is_single else "the model's own precision",
            channels_last=True,
            fused=is_fast,
            kernels=is_reduced and can_compile(device),
        )

    def __str__(self) -> str:
        parts = [
            "CUDA graphs" if self.graphs else "eager",
            self.precision,
            "channels_last" if self.channels_last else "",
            "fused optimiser" if self.fused else "",
            "Triton kernels" if self.kernels else "",
        ]
        return ", ".join(filter(None, parts))

    @contextmanager
    def tf32_mode(self) -> Iterator[None]:
        """Allow or forbid TF32 on a GPU for the forward and backward passes inside the block."""
        if not torch.cuda.is_available():
            yield
            return
        products: Any = torch.backends.cuda.matmul
        convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
        before = products.fp32_precision, convolutions.fp32_precision
        wanted = "tf32" if self.precision in ("tf32", "bfloat16") else "ieee"
        products.fp32_precision = convolutions.fp32_precision = wanted
        try:
            yield
        finally:
            products.fp32_precision, convolutions.fp32_precision = before

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """Return a context manager for forward passes: bfloat16 if that is the precision."""
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)
