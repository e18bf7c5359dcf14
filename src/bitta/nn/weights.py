"""Operations on weights: copies, teachers, restoration, noise, sharpness-aware ascent.

SAM: Foret et al., ICLR 2021, https://openreview.net/forum?id=6Tm1mposlrM
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
    """Copy of the parameters and buffers of a model, on the CPU."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self._by_device: dict[torch.device, dict[str, Tensor]] = {}

    @classmethod
    def copy_of(cls, model: nn.Module) -> Self:
        """Copy the tensors of a model."""
        tensors = named_tensors(model)
        return cls({name: t.detach().to("cpu", copy=True) for name, t in tensors.items()})

    def on_device(self, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors on a device. They are moved once."""
        if device not in self._by_device:
            self._by_device[device] = {name: t.to(device) for name, t in self.tensors.items()}
        return self._by_device[device]

    @torch.no_grad()
    def restore(self, model: nn.Module) -> None:
        """Write the saved tensors into a model, in place."""
        target = named_tensors(model)
        if target.keys() != self.tensors.keys():
            unmatched = sorted(target.keys() ^ self.tensors.keys())
            raise InputError(
                f"saved weights belong to another model; {unmatched[0]!r} is in only one of the "
                "two. Give a model of the same architecture."
            )
        for name, tensor in target.items():
            saved = self.tensors[name]
            if (saved.shape, saved.dtype) != (tensor.shape, tensor.dtype):
                raise InputError(
                    f"saved weights belong to another model; {name!r} is {saved.dtype} "
                    f"{tuple(saved.shape)} there and {tensor.dtype} {tuple(tensor.shape)} here. "
                    "Give a model of the same architecture."
                )
            tensor.copy_(saved)

    def state_dict(self) -> State:
        """Return the tensors by name."""
        return dict(self.tensors)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer by name, including non-persistent buffers."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def weight_hash(model: nn.Module | SavedWeights) -> str:
    """Return the SHA-256 hash of names and values of all tensors."""
    tensors = model.tensors if isinstance(model, SavedWeights) else named_tensors(model)
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, *, rate: float) -> None:
    """Set teacher ← (1 - rate) teacher + rate student, in place. Buffers stay as they are."""
    for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
        average.lerp_(new, rate)


@torch.no_grad()
def restore_stochastically(
    model: nn.Module, source: Mapping[str, Tensor], *, rate: float, key: Key
) -> None:
    """Restore the source value of each weight with probability `rate`."""
    for number, (name, parameter) in enumerate(model.named_parameters()):
        rng = generator(*key, number, device=parameter.device)
        drawn = torch.rand(parameter.shape, generator=rng, device=parameter.device)
        parameter.copy_(torch.where(drawn < rate, source[name], parameter))


@contextmanager
def perturbed_weights(
    model: nn.Module, *, size: float, random_key: RandomKey, number: int = 0
) -> Iterator[None]:
    """Add Gaussian noise to the weights in the forward passes inside the block.

    Gradients reach the original weights. `size` is relative to the standard deviation of each
    tensor. Each `number` has its own noise. The noisy weights are at new addresses each time, so
    `WrappedModel` must not replay CUDA graphs; the hooks of this function prevent that.
    """
    noisy = {
        id(weight): _add_noise(
            weight, size, random_key.at("noise", number, place, device=weight.device)
        )
        for place, weight in enumerate(model.parameters())
        if weight.is_floating_point()
    }
    originals = [(module._parameters, dict(module._parameters)) for module in model.modules()]

    def insert_noisy(*_: Any) -> None:
        for parameters, weights in originals:
            found: Any = {name: noisy.get(id(weight), weight) for name, weight in weights.items()}
            parameters.update(found)

    def insert_originals(*_: Any) -> None:
        for parameters, weights in originals:
            parameters.update(weights)

    handles = [
        model.register_forward_pre_hook(insert_noisy, prepend=True),
        model.register_forward_hook(insert_originals, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        insert_originals()


def _add_noise(weight: Tensor, size: float, rng: torch.Generator) -> Tensor:
    noise = torch.randn(weight.shape, generator=rng, device=weight.device, dtype=weight.dtype)
    return weight + noise * (size * weight.detach().std(correction=0))


@contextmanager
def sam_ascent(parameters: Sequence[nn.Parameter], *, rho: float) -> Iterator[None]:
    """Set the parameters to θ + ρ g / ‖g‖, with their gradient g. Restore θ after the block."""
    gradients = [(p, p.grad) for p in parameters if p.grad is not None]
    originals = [(parameter, parameter.detach().clone()) for parameter, _ in gradients]
    # One norm over all parameters. Without gradients nothing moves.
    norm = nn.utils.get_total_norm([gradient for _, gradient in gradients])
    try:
        with torch.no_grad():
            for parameter, gradient in gradients:
                parameter.add_(gradient * (rho / (norm + 1e-12)))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in originals:
                parameter.copy_(value)
