"""Choose the statistics with which BatchNorm layers normalise, without changing the layers.

Every BatchNorm layer, whatever its class, calls `torch.nn.functional.batch_norm`. That call is
intercepted while a forward pass runs. The layers and their flags stay as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from bitta.errors import ModelError
from bitta.nn.fast import fused
from bitta.seeding import RandomKey

Statistics: TypeAlias = Literal["running", "batch"]
"""Normalise by the running statistics in the model's buffers, or by those of the batch."""

_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return every BatchNorm layer of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def norm_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return scale and shift of every normalisation layer."""
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    return [parameter for norm in norms for parameter in norm.parameters(recurse=False)]


@dataclass(slots=True)
class RowLayout:
    """Layout of the rows in the current forward pass."""

    n_passes: int = 1
    """Number of stochastic passes that the rows hold, pass after pass."""
    n_rows: int = 0
    """Number of rows given to the model, if they are a part of a larger batch."""
    first_row: int = 0
    """Position of these rows in the larger batch."""
    n_total: int = 0
    """Rows of the larger batch; 0 if the model gets the whole batch."""


class BatchNormCall(NamedTuple):
    """Arguments of `torch.nn.functional.batch_norm`. The buffers identify the layer."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


class Normaliser(ABC):
    """Replacement for batch statistics in the BatchNorm layers of a model.

    A method gives a normaliser to its model. The normaliser updates the running statistics by its
    own rule. The context managers mark the purpose of the forward passes inside them.
    """

    follows_stream: ClassVar[bool] = False
    """True if the running statistics also follow each batch before it is served."""

    @abstractmethod
    def __call__(self, call: BatchNormCall, n_passes: int) -> Tensor:
        """Return the output of a layer for an input that holds `n_passes` passes."""

    def observing(self) -> AbstractContextManager[None]:
        """Enclose a forward pass that observes a batch of the stream."""
        return nullcontext()

    def updating(self, random_key: RandomKey) -> AbstractContextManager[None]:  # noqa: ARG002
        """Enclose forward and backward passes of one update."""
        return nullcontext()

    def recording(self) -> AbstractContextManager[None]:
        """Enclose the forward passes of an update, but not their repetition during backward."""
        return nullcontext()


@contextmanager
def use_statistics(
    model: nn.Module,
    statistics: Statistics,
    *,
    rows: RowLayout,
    momentum: float = 0.0,
    kernels: bool = False,
    normaliser: Normaliser | None = None,
) -> Iterator[None]:
    """Choose the statistics of every BatchNorm layer for the forward passes inside the block.

    Args:
        model: The model, in evaluation mode.
        statistics: Statistics to normalise by.
        rows: Description of the rows. Each stochastic pass is normalised by its own statistics.
        momentum: Rate at which running statistics follow the batch. 0 leaves them unchanged.
        kernels: Use Triton kernels where they support the input.
        normaliser: Replacement for batch statistics.
    """
    if statistics == "running" and all(n.running_mean is not None for n in batch_norms(model)):
        yield  # Layers in evaluation mode use their running statistics.
        return
    with _BatchNormInterceptor(statistics, rows, momentum, kernels, normaliser):
        yield


class CallDetector(TorchFunctionMode):
    """Context manager that records if a function is called inside the block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function
        self.was_called = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function, and record if it is the one to detect."""
        self.was_called = self.was_called or func is self._function
        return func(*args, **(kwargs or {}))


class _BatchNormInterceptor(TorchFunctionMode):
    """Context manager that replaces calls of `torch.nn.functional.batch_norm`."""

    def __init__(
        self,
        statistics: Statistics,
        rows: RowLayout,
        momentum: float,
        kernels: bool,
        normaliser: Normaliser | None,
    ) -> None:
        super().__init__()
        self._statistics, self._rows = statistics, rows
        self._momentum, self._kernels = momentum, kernels
        self._normaliser = normaliser

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not F.batch_norm:
            return func(*args, **(kwargs or {}))
        call = BatchNormCall(*args, **(kwargs or {}))
        if self._statistics == "running" and call.running_mean is not None:
            return F.batch_norm(*call)
        return self._normalise_by_batch(call, self._rows.n_passes)

    def _normalise_by_batch(self, call: BatchNormCall, n_passes: int) -> Tensor:
        if self._normaliser is not None and call.running_mean is not None:
            return self._normaliser(call, n_passes)
        if call.input.numel() == n_passes * call.input.shape[1]:
            return _normalise_single_values(call)
        can_use_kernels = self._kernels and not self._momentum
        if can_use_kernels and fused.supports(call.input, call.weight, call.bias):
            return fused.normalise_passes(
                call.input, call.weight, call.bias, n_passes, eps=call.eps
            )
        if needs_precise_sums(call.input):
            return _normalise_precisely(call, n_passes, momentum=self._momentum)
        if n_passes > 1:
            return _normalise_each_pass(call, n_passes)
        return _normalise_one_pass(call, momentum=self._momentum)


def _normalise_single_values(call: BatchNormCall) -> Tensor:
    """Use the running statistics: one value per channel has no variance."""
    if call.running_mean is None:
        raise ModelError(
            "a BatchNorm layer without running statistics was given one value per channel; "
            "send at least two images in a batch."
        )
    return F.batch_norm(*call._replace(training=False))


def _normalise_one_pass(call: BatchNormCall, *, momentum: float) -> Tensor:
    mean, var = (call.running_mean, call.running_var) if momentum else (None, None)
    return F.batch_norm(call.input, mean, var, call.weight, call.bias, True, momentum, call.eps)


def _normalise_each_pass(call: BatchNormCall, n_passes: int) -> Tensor:
    """Normalise each pass by its own statistics. Pooled statistics would mix their variances."""
    outputs = [
        F.batch_norm(x, None, None, call.weight, call.bias, True, 0.0, call.eps)
        for x in call.input.chunk(n_passes)
    ]
    return torch.cat(outputs)


def _normalise_precisely(call: BatchNormCall, n_passes: int, *, momentum: float) -> Tensor:
    out, mean, var = normalise_passes_precisely(
        call.input, call.weight, call.bias, n_passes, eps=call.eps
    )
    if momentum and call.running_mean is not None and call.running_var is not None:
        n = call.input.numel() // call.input.shape[1]
        call.running_mean.lerp_(mean[0], momentum)
        call.running_var.lerp_(var[0] * n / (n - 1), momentum)
    return out


def needs_precise_sums(x: Tensor) -> bool:
    """Return True for images in channels-last layout on a CPU.

    For this layout torch's own kernel adds hundreds of thousands of numbers one after another. The
    error is up to 1e-4 in its variance and up to a percent in its gradients. With such gradients
    models learn visibly worse.
    """
    is_channels_last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return is_channels_last and x.device.type == "cpu" and not x.is_contiguous()


def normalise_passes_precisely(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n_passes: int, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each pass by its own statistics. Also return mean and variance, (passes, C).

    Every sum is computed by `torch.sum`, which adds in blocks and so rounds little.
    """
    zeros = x.new_zeros(x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
    weight = zeros + 1 if weight is None else weight
    bias = zeros if bias is None else bias
    out, mean, var = _PreciseBatchNorm.apply(x, weight, bias, n_passes, eps)  # type: ignore[no-untyped-call]
    return out, mean, var


class _PreciseBatchNorm(torch.autograd.Function):
    """Batch normalisation of channels-last images with precise sums, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, n_passes: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalised input in its own layout, and the statistics of each pass."""
        out = torch.empty_like(x)
        means, variances = weight.new_empty(2, n_passes, len(weight))
        pairs = zip(_rows_by_pass(x, n_passes), _rows_by_pass(out, n_passes), strict=True)
        for number, (rows, target) in enumerate(pairs):
            mean = torch.sum(rows, 0, dtype=weight.dtype) / len(rows)
            torch.sub(rows, mean, out=target)
            var = torch.sum(target.square(), 0, dtype=weight.dtype) / len(rows)
            scale = weight * (var + eps).rsqrt()
            torch.addcmul(bias, target, scale, out=target)
            means[number], variances[number] = mean, var
        ctx.save_for_backward(x, weight, means, (variances + eps).rsqrt())
        ctx.mark_non_differentiable(means, variances)
        return out, means, variances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias. Mean and variance also depend on x."""
        x, weight, means, inverses = ctx.saved_tensors
        out = torch.empty_like(x)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        weight_gradient, bias_gradient = torch.zeros_like(weight), torch.zeros_like(weight)
        parts = (_rows_by_pass(tensor, len(means)) for tensor in (x, gradient, out))
        for rows, slopes, target, mean, inverse in zip(*parts, means, inverses, strict=True):
            n = len(rows)
            total = torch.sum(slopes, 0, dtype=weight.dtype)
            torch.sub(rows, mean, out=target)
            dot = torch.sum(target * slopes, 0, dtype=weight.dtype) * inverse
            scale = weight * inverse
            # dx = scale (slope - total / n - normal * dot / n), normal = (x - mean) inverse
            torch.addcmul(-scale * total / n, target, -scale * inverse * dot / n, out=target)
            target.addcmul_(slopes, scale.to(target.dtype))
            weight_gradient += dot
            bias_gradient += total
        return out, weight_gradient, bias_gradient, None, None


def _rows_by_pass(x: Tensor, n_passes: int) -> tuple[Tensor, ...]:
    """View each pass of a channels-last tensor as (rows, channels)."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).chunk(n_passes)


class RobustNorm(Normaliser):
    """Robust batch normalisation (RoTTA, 2023).

    The running statistics move by `rate` towards those of the batch, then normalise the batch.
    Gradients also flow through the batch's part of these statistics.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, call: BatchNormCall, n_passes: int) -> Tensor:  # noqa: ARG002
        """Return the output of the layer. All rows count as one batch."""
        x, running_mean, running_var, weight, bias, *_, eps = call
        assert running_mean is not None
        assert running_var is not None
        mean, var = running_mean, running_var
        if x.numel() > x.shape[1]:  # One value per channel has no variance.
            axes = [axis for axis in range(x.dim()) if axis != 1]
            batch_var, batch_mean = torch.var_mean(x.to(mean.dtype), axes, correction=0)
            mean = mean.lerp(batch_mean, self.rate)
            var = var.lerp(batch_var, self.rate)
            running_mean.copy_(mean.detach())
            running_var.copy_(var.detach())
        scale = torch.rsqrt(var + eps) * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        channels = (-1, *[1] * (x.dim() - 2))
        return (x * scale.view(channels) + shift.view(channels)).to(x.dtype)
