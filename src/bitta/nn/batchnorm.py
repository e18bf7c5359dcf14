"""Robust batch normalisation: by statistics that follow the batches slowly (RoTTA, 2023).

torch's own kernel for this layout adds up hundreds of thousands of numbers one after another. That
costs a variance up to 1e-4 and gradients up to a percent of their value, which is enough to make a
model learn visibly worse. Here every sum is torch's own `sum`, which adds in parts.

Every BatchNorm layer, whatever its class does around it, ends in `torch.nn.functional.batch_norm`.
That call is taken over for the length of a forward; layers and their flags are never touched.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from bitta.errors import ModelError
from bitta.nn.fast import fused


def needs_precise_sums(x: Tensor) -> bool:
    """Whether x is what this is for."""
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return last and x.device.type == "cpu" and not x.is_contiguous()


def normalise_passes_precisely(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, passes: int, *, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """BatchNorm of each pass by its own statistics; also these, mean and variance (passes, C)."""
    plain = x.new_zeros(x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
    weight = plain + 1 if weight is None else weight
    bias = plain if bias is None else bias
    out, mean, var = _Normalise.apply(x, weight, bias, passes, eps)  # type: ignore[no-untyped-call]
    return out, mean, var


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, passes: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised rows, laid out as they came, and the statistics of each pass."""
        out = torch.empty_like(x)
        means, variances = weight.new_empty(2, passes, len(weight))
        for place, (rows, target) in enumerate(
            zip(_rows(x, passes), _rows(out, passes), strict=True)
        ):
            mean = torch.sum(rows, 0, dtype=weight.dtype) / len(rows)
            torch.sub(rows, mean, out=target)
            var = torch.sum(target.square(), 0, dtype=weight.dtype) / len(rows)
            scale = weight * (var + eps).rsqrt()
            torch.addcmul(bias, target, scale, out=target)
            means[place], variances[place] = mean, var
        ctx.save_for_backward(x, weight, means, (variances + eps).rsqrt())
        ctx.mark_non_differentiable(means, variances)
        return out, means, variances

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Through mean and variance too."""
        x, weight, means, inverses = ctx.saved_tensors
        out = torch.empty_like(x)
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(weight)
        parts = (_rows(tensor, len(means)) for tensor in (x, gradient, out))
        for rows, slopes, target, mean, inverse in zip(*parts, means, inverses, strict=True):
            n = len(rows)
            total = torch.sum(slopes, 0, dtype=weight.dtype)
            torch.sub(rows, mean, out=target)
            along = torch.sum(target * slopes, 0, dtype=weight.dtype) * inverse
            scale = weight * inverse
            # dx = scale (slope - total / n - normal along / n), normal = (x - mean) inverse
            torch.addcmul(-scale * total / n, target, -scale * inverse * along / n, out=target)
            target.addcmul_(slopes, scale.to(target.dtype))
            by_weight += along
            by_bias += total
        return out, by_weight, by_bias, None, None


def _rows(x: Tensor, passes: int) -> tuple[Tensor, ...]:
    """Each pass as (rows, channels): a view, channels being closest together in memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).chunk(passes)


Statistics: TypeAlias = Literal["running", "batch"]
"""Normalise by the buffers a model carries, or by the batch that passes through."""

_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(slots=True)
class RowLayout:
    """What the rows now flowing through the model are."""

    passes: int = 1
    """How many stochastic passes they hold, one after another."""
    n: int = 0
    """How many went in, where they are a part of a batch."""
    start: int = 0
    """Where they begin in that batch."""
    total: int = 0
    """Rows of that batch; 0 where they are all of it."""


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm layer of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def norm_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The affine parameters of every normalisation layer."""
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    return [parameter for norm in norms for parameter in norm.parameters(recurse=False)]


@contextmanager
def use_statistics(
    model: nn.Module,
    statistics: Statistics,
    *,
    rows: RowLayout,
    momentum: float = 0.0,
    kernels: bool = False,
    normaliser: "Normaliser | None" = None,
) -> Iterator[None]:
    """Choose the statistics of every BatchNorm for the forwards inside.

    Batch statistics leave the running buffers alone unless `momentum` says how fast they follow;
    `kernels` of our own are used where they fit. A `normaliser` takes the place of batch
    statistics, in gradient steps and where running ones follow.
    """
    if statistics == "running" and all(n.running_mean is not None for n in batch_norms(model)):
        yield  # evaluation mode does just that
        return
    with _BatchNormCalls(statistics, rows, momentum, kernels, normaliser):
        yield


class CallDetector(TorchFunctionMode):
    """Notices whether a function is called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function
        self.seen = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look, and let it through."""
        self.seen = self.seen or func is self._function
        return func(*args, **(kwargs or {}))


class BatchNormCall(NamedTuple):
    """The arguments of `torch.nn.functional.batch_norm`; a layer is known by its buffers."""

    input: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


Normaliser: TypeAlias = Callable[[BatchNormCall, int], Tensor]
"""What a BatchNorm layer gives for a call that holds so many stochastic passes."""


class _BatchNormCalls(TorchFunctionMode):
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
        return self._of_the_batch(call, self._rows.passes)

    def _of_the_batch(self, call: BatchNormCall, passes: int) -> Tensor:
        if self._normaliser is not None and call.running_mean is not None:
            return self._normaliser(call, passes)
        if call.input.numel() == passes * call.input.shape[1]:
            return _by_running(call)
        if self._kernels and not self._momentum and fused.fits(call.input, call.weight, call.bias):
            return fused.normalise_passes(call.input, call.weight, call.bias, passes, eps=call.eps)
        if needs_precise_sums(call.input):
            return _exactly(call, passes=passes, momentum=self._momentum)
        return _by_batch(call, passes=passes, momentum=self._momentum)


def _exactly(call: BatchNormCall, *, passes: int, momentum: float) -> Tensor:
    out, mean, var = normalise_passes_precisely(
        call.input, call.weight, call.bias, passes, eps=call.eps
    )
    if momentum and call.running_mean is not None and call.running_var is not None:
        n = call.input.numel() // call.input.shape[1]
        call.running_mean.lerp_(mean[0], momentum)
        call.running_var.lerp_(var[0] * n / (n - 1), momentum)
    return out


def _by_batch(call: BatchNormCall, *, passes: int, momentum: float) -> Tensor:
    if passes > 1:
        return _per_pass(call, passes)
    mean, var = (call.running_mean, call.running_var) if momentum else (None, None)
    return F.batch_norm(call.input, mean, var, call.weight, call.bias, True, momentum, call.eps)


def _by_running(call: BatchNormCall) -> Tensor:
    """One value per channel has no variance: fall back on what the model carries."""
    if call.running_mean is None:
        raise ModelError(
            "a BatchNorm layer without running statistics was given one value per channel; "
            "send at least two images in a batch."
        )
    return F.batch_norm(*call._replace(training=False))


def _per_pass(call: BatchNormCall, passes: int) -> Tensor:
    """Each stochastic pass normalised by its own statistics; pooling them would mix variances."""
    each = [
        F.batch_norm(x, None, None, call.weight, call.bias, True, 0.0, call.eps)
        for x in call.input.chunk(passes)
    ]
    return torch.cat(each)


class RobustNorm:
    """A `Normaliser`: the running statistics move by `rate`, then normalise the batch.

    Gradients flow through the batch's share of them.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, call: BatchNormCall, passes: int) -> Tensor:  # noqa: ARG002
        """What the layer gives; all rows count as one batch."""
        x, running_mean, running_var, weight, bias, *_, eps = call
        assert running_mean is not None
        assert running_var is not None
        mean, var = running_mean, running_var
        if x.numel() > x.shape[1]:  # one value per channel has no variance
            rows = [axis for axis in range(x.dim()) if axis != 1]
            batch_var, batch_mean = torch.var_mean(x.to(mean.dtype), rows, correction=0)
            mean = mean.lerp(batch_mean, self.rate)
            var = var.lerp(batch_var, self.rate)
            running_mean.copy_(mean.detach())
            running_var.copy_(var.detach())
        scale = torch.rsqrt(var + eps) * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * scale
        channels = (-1, *[1] * (x.dim() - 2))
        return (x * scale.view(channels) + shift.view(channels)).to(x.dtype)
