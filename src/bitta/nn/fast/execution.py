"""How the arithmetic of a session is carried out; what comes out is the same up to rounding."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, get_args

import torch

from bitta.config import require
from bitta.errors import DeviceMemoryError
from bitta.nn.fast.fused import works


@contextmanager
def explain_out_of_memory(work: str, remedy: str) -> Iterator[None]:
    """Say what did not fit, and what to do about it."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            f"{work} does not fit into the device's memory; {remedy}"
        ) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Also where another error came of it, as it does while a graph is captured."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            return True
        error = error.__context__
    return False


Precision: TypeAlias = Literal["auto", "float32", "tf32", "bfloat16"]
"""Of convolutions and matrix products; weights and losses are kept in single precision."""

_AMPERE = 8


@dataclass(frozen=True, slots=True)
class Execution:
    """The path a session runs on, chosen once for its device."""

    graphs: bool
    """Whether what repeats with the same shapes is captured as a CUDA graph and replayed."""
    precision: Literal["float32", "tf32", "bfloat16", "the model's own precision"]
    channels_last: bool
    fused: bool
    """Whether the optimiser updates all parameters in one kernel."""
    kernels: bool
    """Whether passes are normalised and dropped by kernels of our own."""

    @classmethod
    def choose(
        cls, device: torch.device, dtype: torch.dtype, *, eager: bool, precision: Precision
    ) -> Self:
        """The fastest path for a model of this type on this device, or the plain one."""
        allowed = get_args(Precision)
        require(precision in allowed, "precision", precision, ", ".join(allowed))
        cuda = device.type == "cuda"
        recent = cuda and torch.cuda.get_device_capability(device)[0] >= _AMPERE
        if precision == "auto":
            precision = "bfloat16" if recent and not eager else "float32"
        if precision == "tf32" and not recent:
            precision = "float32"  # nothing else has such a mode
        fast, single = cuda and not eager, dtype == torch.float32
        return cls(
            graphs=fast,
            precision=precision if single else "the model's own precision",
            channels_last=True,
            fused=fast,
            # They round in another order, which is not what somebody wants who asks for float32.
            kernels=fast and recent and single and precision != "float32" and works(device),
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
    def arithmetic(self) -> Iterator[None]:
        """Around forward and backward: whether a GPU may round to TF32."""
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
        """Around a forward alone."""
        if self.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)
