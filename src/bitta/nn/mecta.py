"""MECTA: BatchNorm that follows the stream and keeps few channels for its gradient.

Hong et al., ICLR 2023, "MECTA: Memory-Economic Continual Test-Time Model Adaptation".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.errors import ModelError
from bitta.nn.batchnorm import BatchNormCall, batch_norms
from bitta.seeding import RandomKey

T = TypeVar("T")
_EPS = 1e-3
"""Added to both variances in the distance."""


class Moments(NamedTuple):
    """Mean and biased variance of each channel."""

    mean: Tensor  # (channels,)
    var: Tensor  # (channels,)


def distance(one: Moments, two: Moments) -> Tensor:
    """Of two Gaussians, channel by channel, the same both ways; 0 where they are equal."""
    v1, v2, apart = one.var + _EPS, two.var + _EPS, (one.mean - two.mean).square()
    return ((v1 + apart) / v2 + (v2 + apart) / v1) / 2 - 1


class MectaNorm:
    """A normaliser: running statistics move towards the batch, and what they become normalises.

    With a `gate` they move by 1 - exp(-mean distance), and a layer that would move by no more than
    the gate is matched: its scale and shift get no gradient, and it keeps nothing. Without one they
    move by `rate`.

    Buffers change while `following`, and once at the end of a `step`, by the mean over all passes
    that were `noted` in it; everything else sees what they would become and leaves them alone.
    Channels are left out of the cache, and layers matched, in a step alone.
    """

    def __init__(
        self, model: nn.Module, *, prune: float, rate: float = 0.1, gate: float | None = None
    ) -> None:
        if not _places(model):
            raise ModelError(
                "MECTA needs BatchNorm layers with running statistics, and "
                f"{type(model).__name__} has none; set mecta='off'."
            )
        self._model = model
        self._prune, self._rate, self._gate = prune, rate, gate
        self._following = False
        self._step: _Step | None = None

    def __call__(self, call: BatchNormCall, passes: int) -> Tensor:
        """What the layer gives, each pass by its own statistics."""
        if call.input.numel() == passes * call.input.shape[1]:
            # One value per channel has no variance: go by what the model carries.
            return F.batch_norm(*call._replace(training=False))
        each = [self._normalised(call._replace(input=x)) for x in call.input.chunk(passes)]
        return each[0] if passes == 1 else torch.cat(each)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Let running statistics move with every forward inside."""
        self._following = True
        try:
            yield
        finally:
            self._following = False

    @contextmanager
    def step(self, random_key: RandomKey) -> Iterator[None]:
        """A gradient step: `chance` says which channels are kept; statistics move at its end.

        Not before: what is run a second time for its gradient must find them as they were.
        """
        self._step = step = _Step(random_key, _places(self._model))
        try:
            yield
            step.move()
        finally:
            self._step = None

    def noted(self, forward: Callable[[], T]) -> T:
        """Let what passes through the model in this part of a step, with gradient, count."""
        assert self._step is not None
        self._step.noting = True
        try:
            return forward()
        finally:
            self._step.noting = False

    def _normalised(self, call: BatchNormCall) -> Tensor:
        assert call.running_mean is not None
        assert call.running_var is not None
        with torch.no_grad():
            batch, running = _moments(call.input), Moments(call.running_mean, call.running_var)
            rate = self._rate_of(batch, running)
            moved = Moments(*(_moved(*pair, rate) for pair in zip(running, batch, strict=True)))
        if self._following:
            _put(moved, running)
        if not torch.is_grad_enabled():
            return _by(call, moved)
        if self._step is not None:
            self._step.note(running, moved)
        out: Tensor = _Normalise.apply(  # type: ignore[no-untyped-call]
            call.input, call.weight, call.bias, batch, moved, self._kept(call, rate), call.eps
        )
        return out

    def _rate_of(self, batch: Moments, running: Moments) -> Tensor:
        if self._gate is None:
            return torch.full_like(batch.mean[0], self._rate)
        return -torch.expm1(-distance(batch, running).mean())

    def _kept(self, call: BatchNormCall, rate: Tensor) -> Tensor | None:
        """Channels cached for the gradient; None where the layer is matched."""
        n = call.input.shape[1]
        if self._step is None:
            return torch.arange(n, device=call.input.device)
        if self._gate is not None and rate <= self._gate:
            return None
        n_kept = max(1, round((1 - self._prune) * n))
        return self._step.channels(call, n_kept)


@dataclass
class _Step:
    """What one gradient step needs to know from its first forward to its end."""

    random_key: RandomKey
    places: dict[int, int]
    noting: bool = False
    _drawn: dict[int, Tensor] = field(default_factory=dict)
    _moves: dict[int, tuple[Moments, list[Moments]]] = field(default_factory=dict)

    def channels(self, call: BatchNormCall, n_kept: int) -> Tensor:
        """The same ones whenever a layer is asked in this step."""
        assert call.running_mean is not None
        place = self.places.get(call.running_mean.data_ptr(), len(self.places))
        if place not in self._drawn:
            device = call.input.device
            generator = self.random_key.at("mecta", place, device=device)
            drawn = torch.rand(call.input.shape[1], generator=generator, device=device)
            self._drawn[place] = drawn.topk(n_kept).indices
        return self._drawn[place]

    def note(self, running: Moments, moved: Moments) -> None:
        if self.noting:
            _, moves = self._moves.setdefault(running.mean.data_ptr(), (running, []))
            moves.append(moved)

    def move(self) -> None:
        """By the mean over passes of what each would have moved by."""
        for running, moves in self._moves.values():
            means, variances = zip(*moves, strict=True)
            _put(Moments(torch.stack(means).mean(0), torch.stack(variances).mean(0)), running)


class _Normalise(torch.autograd.Function):
    """Normalise by statistics that have moved; differentiate as if by the batch, rescaled.

    (x - μ_r) / σ_r = r x̂ + d with x̂ = (x - μ_B) / σ_B, r = σ_B / σ_r, d = (μ_B - μ_r) / σ_r, where
    r and d count as constants. Channels that were not kept lack x̂: their weight gets no gradient
    and their input that without the term in x̂.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        batch: Moments,
        moved: Moments,
        kept: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Of x only the kept channels stay."""
        inverse = (moved.var.to(batch.var.dtype) + eps).rsqrt()
        scale = inverse if weight is None else inverse * weight
        if kept is None:
            ctx.save_for_backward(scale)
        else:
            vectors = (batch.mean, (batch.var + eps).rsqrt(), moved.mean, inverse)
            ctx.save_for_backward(
                scale, kept, x.index_select(1, kept), *(vector[kept] for vector in vectors)
            )
        return F.batch_norm(x, moved.mean, moved.var, weight, bias, False, 0.0, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """dx = γ / σ_r (g - mean g - x̂ mean(g x̂)), dγ = Σ g (r x̂ + d), db = Σ g."""
        scale, *cached = ctx.saved_tensors
        if not cached:  # matched: statistics, scale and shift are constants
            slopes = (gradient * _shaped(scale, gradient)).to(gradient.dtype)
            return slopes, None, None, None, None, None, None
        kept, x, mean, inverse, moved_mean, moved_inverse = cached
        over = _but_channels(gradient)
        n = gradient.numel() // len(scale)
        total = gradient.sum(over, dtype=scale.dtype)
        normal = (x - _shaped(mean, x)) * _shaped(inverse, x)
        along = (gradient.index_select(1, kept) * normal).sum(over, dtype=scale.dtype)
        slopes = gradient - _shaped(total / n, gradient)
        slopes.index_add_(1, kept, (normal * _shaped(-along / n, x)).to(slopes.dtype))
        slopes = (slopes * _shaped(scale, gradient)).to(gradient.dtype)
        by_weight = torch.zeros_like(scale)
        by_weight[kept] = moved_inverse * (along / inverse + (mean - moved_mean) * total[kept])
        _, scales, shifts, *_ = ctx.needs_input_grad
        return slopes, by_weight if scales else None, total if shifts else None, *[None] * 4


def _places(model: nn.Module) -> dict[int, int]:
    """Which BatchNorm layer a running mean belongs to."""
    means = (norm.running_mean for norm in batch_norms(model))
    return {mean.data_ptr(): place for place, mean in enumerate(means) if mean is not None}


def _moments(x: Tensor) -> Moments:
    dtype, over, n = torch.promote_types(x.dtype, torch.float32), _but_channels(x), x[:, 0].numel()
    mean = x.sum(over, dtype=dtype) / n
    var = (x - _shaped(mean, x)).square().sum(over, dtype=dtype) / n
    return Moments(mean, var)


def _moved(old: Tensor, new: Tensor, rate: Tensor) -> Tensor:
    return old.to(new.dtype).lerp(new, rate).to(old.dtype)


def _by(call: BatchNormCall, by: Moments) -> Tensor:
    return F.batch_norm(call.input, *by, call.weight, call.bias, False, 0.0, call.eps)


def _put(values: Moments, into: Moments) -> None:
    for value, buffer in zip(values, into, strict=True):
        buffer.copy_(value)


def _but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _shaped(vector: Tensor, like: Tensor) -> Tensor:
    """A value per channel, to go with (rows, channels, ...)."""
    return vector.view(-1, *[1] * (like.dim() - 2))
