"""Weights set aside, to go back to and to name."""

from hashlib import sha256
from typing import Self

import torch
from torch import Tensor, nn

from bitta.errors import InputError
from bitta.types import State


class Snapshot:
    """A private copy of a model's parameters and buffers, out of the way of a GPU's work."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self._near: dict[torch.device, dict[str, Tensor]] = {}

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Copy what the model holds now."""
        tensors = tensors_of(model)
        return cls({name: t.detach().to("cpu", copy=True) for name, t in tensors.items()})

    def near(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors on a device, for work that needs them again and again."""
        if device not in self._near:
            self._near[device] = {name: t.to(device) for name, t in self.tensors.items()}
        return self._near[device]

    @torch.no_grad()
    def put_back(self, model: nn.Module) -> None:
        """Make the model exactly what it was, in place."""
        target = tensors_of(model)
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


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer once, non-persistent ones included."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def weight_hash(model: nn.Module | Snapshot) -> str:
    """SHA-256 over names and values: two models with one hash serve the same."""
    tensors = model.tensors if isinstance(model, Snapshot) else tensors_of(model)
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().view(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
