"""BatchNorm under control: whose statistics normalise, and whether buffers move."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from bitta.errors import ModelError

Statistics: TypeAlias = Literal["running", "batch"]
"""Normalise by the buffers a model carries, or by the batch that passes through."""

_NORMS = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(slots=True)
class Rows:
    """How many stochastic passes the rows now flowing through the model hold, sample-major."""

    passes: int = 1


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm layer of a model."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def scale_and_shift(model: nn.Module) -> list[nn.Parameter]:
    """The affine parameters of every normalisation layer."""
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    return [parameter for norm in norms for parameter in norm.parameters(recurse=False)]


@contextmanager
def normalised_by(
    model: nn.Module, statistics: Statistics, *, rows: Rows, momentum: float = 0.0
) -> Iterator[None]:
    """Choose the statistics of every BatchNorm for the forwards inside; no flag is touched.

    Batch statistics leave the running buffers alone unless `momentum` says how fast they follow.
    """
    with ExitStack() as stack:
        for layer in batch_norms(model):
            if statistics == "batch" or layer.running_mean is None:
                forward = partial(_by_batch, layer, rows=rows, momentum=momentum)
                stack.enter_context(_replaced_forward(layer, forward))
        yield


@contextmanager
def _replaced_forward(layer: nn.Module, forward: object) -> Iterator[None]:
    earlier = layer.__dict__.get("forward")
    layer.__dict__["forward"] = forward
    try:
        yield
    finally:
        if earlier is None:
            del layer.__dict__["forward"]
        else:
            layer.__dict__["forward"] = earlier


def _by_batch(layer: _BatchNorm, x: Tensor, *, rows: Rows, momentum: float) -> Tensor:
    if x.numel() == rows.passes * x.shape[1]:
        return _by_running(layer, x)
    if rows.passes > 1:
        return _per_pass(layer, x, rows.passes)
    mean, var = (layer.running_mean, layer.running_var) if momentum else (None, None)
    return F.batch_norm(x, mean, var, layer.weight, layer.bias, True, momentum, layer.eps)


def _by_running(layer: _BatchNorm, x: Tensor) -> Tensor:
    """One value per channel has no variance: fall back on what the model carries."""
    if layer.running_mean is None:
        raise ModelError(
            "a BatchNorm layer without running statistics was given one value per channel; "
            "send at least two images in a batch."
        )
    mean, var = layer.running_mean, layer.running_var
    return F.batch_norm(x, mean, var, layer.weight, layer.bias, False, 0.0, layer.eps)


def _per_pass(layer: _BatchNorm, x: Tensor, passes: int) -> Tensor:
    """Each stochastic pass normalised by its own statistics; pooling them would mix variances."""
    weight, bias = layer.weight, layer.bias
    if x.is_contiguous():
        # Sample-major rows make (samples, passes * channels, ...) a view: passes become channels.
        wide = x.view(-1, passes * x.shape[1], *x.shape[2:])
        wide_weight = None if weight is None else weight.repeat(passes)
        wide_bias = None if bias is None else bias.repeat(passes)
        normal = F.batch_norm(wide, None, None, wide_weight, wide_bias, True, 0.0, layer.eps)
        return normal.view(x.shape)
    split = x.unflatten(0, (-1, passes))  # (samples, passes, channels, ...)
    over = (0, *range(3, split.dim()))
    var, mean = torch.var_mean(split, dim=over, correction=0, keepdim=True)
    normal = (split - mean) * (var + layer.eps).rsqrt()
    if weight is not None:
        channels = (-1, *[1] * (split.dim() - 3))
        normal = normal * weight.view(channels) + bias.view(channels)
    rows: Tensor = normal.flatten(0, 1)
    return rows
