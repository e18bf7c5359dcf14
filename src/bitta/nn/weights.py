"""Operations on weights: snapshot, moving average, restoration, noise, SAM ascent.

Foret et al., ICLR 2021, https://openreview.net/forum?id=6Tm1mposlrM
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitta.errors import InputError
from bitta.seeding import Key, RandomKey, generator
from bitta.types import State


class SavedWeights:
    """A private copy of a model's parameters and buffers, out of the way of a GPU's work."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self._near: dict[torch.device, dict[str, Tensor]] = {}

    @classmethod
    def copy_of(cls, model: nn.Module) -> Self:
        """Copy what the model holds now."""
        tensors = named_tensors(model)
        return cls({name: t.detach().to("cpu", copy=True) for name, t in tensors.items()})

    def near(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors on a device, for work that needs them again and again."""
        if device not in self._near:
            self._near[device] = {name: t.to(device) for name, t in self.tensors.items()}
        return self._near[device]

    @torch.no_grad()
    def restore(self, model: nn.Module) -> None:
        """Make the model exactly what it was, in place."""
        target = named_tensors(model)
        if target.keys() != self.tensors.keys():
            odd = sorted(target.keys() ^ self.tensors.keys())
            raise InputError(f"saved weights belong to another model; {odd[0]!r} is in only one.")
        for name, tensor in target.items():
            saved = self.tensors[name]
            if (saved.shape, saved.dtype) != (tensor.shape, tensor.dtype):
                raise InputError(
                    f"saved weights belong to another model; {name!r} is {saved.dtype} "
                    f"{tuple(saved.shape)} there and {tensor.dtype} {tuple(tensor.shape)} here."
                )
            tensor.copy_(saved)

    def state_dict(self) -> State:
        """The tensors by name."""
        return dict(self.tensors)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, non-persistent ones included."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def weight_hash(model: nn.Module | SavedWeights) -> str:
    """SHA-256 over names and values: two models with one hash serve the same."""
    tensors = model.tensors if isinstance(model, SavedWeights) else named_tensors(model)
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, *, rate: float) -> None:
    """teacher <- (1 - rate) teacher + rate student, in place; buffers stay as they are."""
    for kept, new in zip(teacher.parameters(), student.parameters(), strict=True):
        kept.lerp_(new, rate)


@torch.no_grad()
def restore_stochastically(
    model: nn.Module, source: Mapping[str, Tensor], *, rate: float, key: Key
) -> None:
    """Give each weight its source value back with probability `rate`."""
    for place, (name, parameter) in enumerate(model.named_parameters()):
        random_key = generator(*key, place, device=parameter.device)
        drawn = torch.rand(parameter.shape, generator=random_key, device=parameter.device)
        parameter.copy_(torch.where(drawn < rate, source[name], parameter))


@contextmanager
def perturbed_weights(
    model: nn.Module, *, size: float, random_key: RandomKey, number: int = 0
) -> Iterator[None]:
    """Add Gaussian noise to the weights that a forward inside sees; gradients go to the weights.

    `size` is relative to the standard deviation of each tensor; each `number` has noise of its own.
    By hooks, on which a `WrappedModel` replays nothing: noisy weights lie elsewhere each
    time.
    """
    noisy = {
        id(weight): _with_noise(
            weight, size, random_key.at("noise", number, place, device=weight.device)
        )
        for place, weight in enumerate(model.parameters())
        if weight.is_floating_point()
    }
    own = [(module._parameters, dict(module._parameters)) for module in model.modules()]

    def put_in(*_: Any) -> None:
        for parameters, weights in own:
            found: Any = {name: noisy.get(id(weight), weight) for name, weight in weights.items()}
            parameters.update(found)

    def put_back(*_: Any) -> None:
        for parameters, weights in own:
            parameters.update(weights)

    handles = [
        model.register_forward_pre_hook(put_in, prepend=True),
        model.register_forward_hook(put_back, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        put_back()


def _with_noise(weight: Tensor, size: float, generator: torch.Generator) -> Tensor:
    noise = torch.randn(weight.shape, generator=generator, device=weight.device, dtype=weight.dtype)
    return weight + noise * (size * weight.detach().std(correction=0))


@contextmanager
def sam_ascent(parameters: Sequence[nn.Parameter], *, rho: float) -> Iterator[None]:
    """θ + ρ g / ‖g‖ inside, g being the gradient left in the parameters; exactly θ afterwards."""
    gradients = [(p, p.grad) for p in parameters if p.grad is not None]
    kept = [(parameter, parameter.detach().clone()) for parameter, _ in gradients]
    # One norm over all parameters; without any gradient nothing moves.
    norm = nn.utils.get_total_norm([gradient for _, gradient in gradients])
    try:
        with torch.no_grad():
            for parameter, gradient in gradients:
                parameter.add_(gradient * (rho / (norm + 1e-12)))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)
