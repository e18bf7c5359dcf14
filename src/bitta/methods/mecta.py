"""MECTA: a normaliser that saves memory in methods that learn on BatchNorm models.

Hong et al., ICLR 2023, "MECTA: Memory-Economic Continual Test-Time Model Adaptation".
A method that supports MECTA derives its settings from `MectaConfig`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import require
from bitta.errors import ModelError
from bitta.methods.base import GradientConfig
from bitta.nn import BatchNormCall, Normaliser, batch_norms
from bitta.seeding import RandomKey

_VARIANCE_EPS = 1e-3
"""Constant added to both variances in `gaussian_distance`."""


@dataclass(frozen=True, kw_only=True)
class MectaConfig(GradientConfig):
    """Settings of MECTA, for methods that support it."""

    mecta: Literal["off", "gated", "fixed"] = "off"
    """Use MECTA: "gated" follows its authors; "fixed" follows the code published with BiTTA, with a
    fixed rate and without the gate."""
    mecta_prune: float = 0.7
    """Share q of the channels of a BatchNorm layer that are not stored for the gradient."""
    mecta_gate: float = 0.00125
    """Threshold of the rate at which the statistics of a layer follow the stream. A layer at or
    below it does not learn. The default is the authors' value for CIFAR-10 and ImageNet."""
    mecta_rate: float = 0.1
    """Rate at which the statistics follow the stream if mecta is "fixed"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        prune, rate, gate = self.mecta_prune, self.mecta_rate, self.mecta_gate
        require(0 <= prune < 1, "mecta_prune", prune, "at least 0 and below 1")
        require(0 <= rate <= 1, "mecta_rate", rate, "0 to 1")
        require(0 <= gate < 1, "mecta_gate", gate, "at least 0 and below 1")

    def make_normaliser(self, model: nn.Module) -> "MectaNorm | None":
        """Return the normaliser of a model, or None if MECTA is off."""
        if self.mecta == "off":
            return None
        gate = self.mecta_gate if self.mecta == "gated" else None
        return MectaNorm(model, prune=self.mecta_prune, rate=self.mecta_rate, gate=gate)


class Moments(NamedTuple):
    """Mean and biased variance of each channel."""

    mean: Tensor  # (channels,)
    var: Tensor  # (channels,)


def gaussian_distance(one: Moments, two: Moments) -> Tensor:
    """Return the symmetric distance of two Gaussians per channel; 0 if they are equal."""
    v1, v2, gap = one.var + _VARIANCE_EPS, two.var + _VARIANCE_EPS, (one.mean - two.mean).square()
    return ((v1 + gap) / v2 + (v2 + gap) / v1) / 2 - 1


class MectaNorm(Normaliser):
    """Moves the running statistics towards the batch and normalises by the result.

    With a `gate` the statistics move at the rate 1 - exp(-d), where d is the mean over channels of
    `gaussian_distance`. A layer whose rate is at most the gate does not learn in this update: its
    scale and shift get no gradient, and it stores nothing for backward. Without a gate the
    statistics move at the fixed `rate`.

    The model's buffers change with each pass inside `observing`. They change once at the end of
    `updating`, to the mean over all passes inside `recording`. Any other forward pass normalises by
    the moved statistics and leaves the buffers unchanged. Channels are dropped and layers are gated
    only inside `updating`.
    """

    follows_stream: ClassVar[bool] = True

    def __init__(
        self, model: nn.Module, *, prune: float, rate: float = 0.1, gate: float | None = None
    ) -> None:
        if not _layer_numbers(model):
            raise ModelError(
                "MECTA needs BatchNorm layers with running statistics, and "
                f"{type(model).__name__} has none; set mecta='off'."
            )
        self._model = model
        self._prune, self._rate, self._gate = prune, rate, gate
        self._is_observing = False
        self._update: _UpdateState | None = None

    def __call__(self, call: BatchNormCall, n_passes: int) -> Tensor:
        """Return the output of the layer. Each pass is normalised by its own statistics."""
        if call.input.numel() == n_passes * call.input.shape[1]:
            # One value per channel has no variance: use the running statistics.
            return F.batch_norm(*call._replace(training=False))
        outputs = [self._normalise(call._replace(input=x)) for x in call.input.chunk(n_passes)]
        return outputs[0] if n_passes == 1 else torch.cat(outputs)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Move the running statistics with every forward pass inside the block."""
        self._is_observing = True
        try:
            yield
        finally:
            self._is_observing = False

    @contextmanager
    def updating(self, random_key: RandomKey) -> Iterator[None]:
        """Enclose one update. `random_key` determines which channels are stored.

        The running statistics change at the end, because a forward pass that is repeated during
        backward needs the same statistics as the first time.
        """
        self._update = update = _UpdateState(random_key, _layer_numbers(self._model))
        try:
            yield
            update.move_statistics()
        finally:
            self._update = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the statistics of forward passes with gradients for the end of the update."""
        assert self._update is not None
        self._update.is_recording = True
        try:
            yield
        finally:
            self._update.is_recording = False

    def _normalise(self, call: BatchNormCall) -> Tensor:
        assert call.running_mean is not None
        assert call.running_var is not None
        with torch.no_grad():
            batch = _compute_moments(call.input)
            running = Moments(call.running_mean, call.running_var)
            rate = self._compute_rate(batch, running)
            moved = Moments(
                *(_interpolate(*pair, rate) for pair in zip(running, batch, strict=True))
            )
        if self._is_observing:
            _copy_moments(moved, running)
        if not torch.is_grad_enabled():
            return F.batch_norm(call.input, *moved, call.weight, call.bias, False, 0.0, call.eps)
        if self._update is not None:
            self._update.record(running, moved)
        channels = self._choose_channels(call, rate)
        out: Tensor = _MectaBatchNorm.apply(  # type: ignore[no-untyped-call]
            call.input, call.weight, call.bias, batch, moved, channels, call.eps
        )
        return out

    def _compute_rate(self, batch: Moments, running: Moments) -> Tensor:
        if self._gate is None:
            return torch.full_like(batch.mean[0], self._rate)
        return -torch.expm1(-gaussian_distance(batch, running).mean())

    def _choose_channels(self, call: BatchNormCall, rate: Tensor) -> Tensor | None:
        """Return the channels to store for backward; None if the gate keeps the layer fixed."""
        n_channels = call.input.shape[1]
        if self._update is None:
            return torch.arange(n_channels, device=call.input.device)
        if self._gate is not None and rate <= self._gate:
            return None
        n_stored = max(1, round((1 - self._prune) * n_channels))
        return self._update.draw_channels(call, n_stored)


@dataclass
class _UpdateState:
    """State of one update, from its first forward pass to its end."""

    random_key: RandomKey
    layer_numbers: dict[int, int]
    is_recording: bool = False
    _channels: dict[int, Tensor] = field(default_factory=dict)
    _recorded: dict[int, tuple[Moments, list[Moments]]] = field(default_factory=dict)

    def draw_channels(self, call: BatchNormCall, n_stored: int) -> Tensor:
        """Draw channels once per layer and update."""
        assert call.running_mean is not None
        layer = self.layer_numbers.get(call.running_mean.data_ptr(), len(self.layer_numbers))
        if layer not in self._channels:
            device = call.input.device
            rng = self.random_key.at("mecta", layer, device=device)
            drawn = torch.rand(call.input.shape[1], generator=rng, device=device)
            self._channels[layer] = drawn.topk(n_stored).indices
        return self._channels[layer]

    def record(self, running: Moments, moved: Moments) -> None:
        if self.is_recording:
            _, recorded = self._recorded.setdefault(running.mean.data_ptr(), (running, []))
            recorded.append(moved)

    def move_statistics(self) -> None:
        """Set the running statistics to the mean over the recorded passes."""
        for running, recorded in self._recorded.values():
            means, variances = zip(*recorded, strict=True)
            mean, var = torch.stack(means).mean(0), torch.stack(variances).mean(0)
            _copy_moments(Moments(mean, var), running)


class _MectaBatchNorm(torch.autograd.Function):
    """Normalises by moved statistics. The gradient is that of batch statistics, rescaled.

    (x - μ_r) / σ_r = r x̂ + d with x̂ = (x - μ_B) / σ_B, r = σ_B / σ_r, d = (μ_B - μ_r) / σ_r, where
    r and d count as constants. x̂ is not available for channels that are not stored: their weight
    gets no gradient, and the gradient of their input lacks the term with x̂.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        batch: Moments,
        moved: Moments,
        channels: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Store only the chosen channels of x."""
        inverse = (moved.var.to(batch.var.dtype) + eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        if channels is None:
            ctx.save_for_backward(scale)
        else:
            vectors = (batch.mean, (batch.var + eps).rsqrt(), moved.mean, inverse)
            stored = (vector[channels] for vector in vectors)
            ctx.save_for_backward(scale, channels, x.index_select(1, channels), *stored)
        return F.batch_norm(x, moved.mean, moved.var, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """dx = γ / σ_r (g - mean g - x̂ mean(g x̂)), dγ = Σ g (r x̂ + d), db = Σ g."""
        scale, *stored = ctx.saved_tensors
        if not stored:  # The gate keeps the layer fixed: all its values are constants.
            slopes = (gradient * _broadcast(scale, gradient)).to(gradient.dtype)
            return slopes, None, None, None, None, None, None
        channels, x, mean, inverse, moved_mean, moved_inverse = stored
        axes = _axes_without_channels(gradient)
        n = gradient.numel() // len(scale)
        total = gradient.sum(axes, dtype=scale.dtype)
        normal = (x - _broadcast(mean, x)) * _broadcast(inverse, x)
        dot = (gradient.index_select(1, channels) * normal).sum(axes, dtype=scale.dtype)
        slopes = gradient - _broadcast(total / n, gradient)
        slopes.index_add_(1, channels, (normal * _broadcast(-dot / n, x)).to(slopes.dtype))
        slopes = (slopes * _broadcast(scale, gradient)).to(gradient.dtype)
        weight_gradient = torch.zeros_like(scale)
        gap = mean - moved_mean
        weight_gradient[channels] = moved_inverse * (dot / inverse + gap * total[channels])
        _, has_weight, has_bias, *_ = ctx.needs_input_grad
        return (
            slopes,
            weight_gradient if has_weight else None,
            total if has_bias else None,
            *[None] * 4,
        )


def _layer_numbers(model: nn.Module) -> dict[int, int]:
    """Return the number of each BatchNorm layer by the address of its running mean."""
    means = (norm.running_mean for norm in batch_norms(model))
    return {mean.data_ptr(): number for number, mean in enumerate(means) if mean is not None}


def _compute_moments(x: Tensor) -> Moments:
    dtype = torch.promote_types(x.dtype, torch.float32)
    axes, n = _axes_without_channels(x), x[:, 0].numel()
    mean = x.sum(axes, dtype=dtype) / n
    var = (x - _broadcast(mean, x)).square().sum(axes, dtype=dtype) / n
    return Moments(mean, var)


def _interpolate(old: Tensor, new: Tensor, rate: Tensor) -> Tensor:
    return old.to(new.dtype).lerp(new, rate).to(old.dtype)


def _copy_moments(values: Moments, buffers: Moments) -> None:
    for value, buffer in zip(values, buffers, strict=True):
        buffer.copy_(value)


def _axes_without_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _broadcast(vector: Tensor, like: Tensor) -> Tensor:
    """Shape one value per channel to match (rows, channels, ...)."""
    return vector.view(-1, *[1] * (like.dim() - 2))
