"""One optimiser step after another, as few launches of the device as possible."""

import math
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.bench.recipe import Recipe
from bitta.types import State

_EAGER_STEPS = 3
"""Before a graph is captured: libraries choose their kernels, gradients find their place."""


class Trainer:
    """A model on its way from first weights to last; on a GPU, forward and backward replay a graph.

    The step size follows from the number of the step, so a resumed training goes on alike.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, *, n_steps: int) -> None:
        self.model = model
        self.recipe = recipe
        self.n_steps = n_steps
        self.step_number = 0
        self.device = next(model.parameters()).device
        self.layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        model.to(memory_format=self.layout)  # type: ignore[call-overload]
        self._optimiser = _optimiser(model, recipe, fused=self.device.type == "cuda")
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager_steps = 0
        self._pixels = self._labels = self._loss = torch.empty(0)

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Learn from one batch of uint8 images; every batch has the same size."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.lr
        if self.device.type == "cuda" and self._eager_steps >= _EAGER_STEPS:
            loss = self._replay(images, labels)
        else:
            self._optimiser.zero_grad(set_to_none=True)
            loss = self._backward(self._float(images), labels)
            self._eager_steps += 1
        self._optimiser.step()
        self.step_number += 1
        return loss

    @property
    def lr(self) -> float:
        """The step size now."""
        if self.recipe.schedule == "constant":
            return self.recipe.lr
        return self.recipe.lr * (1 + math.cos(math.pi * self.step_number / self.n_steps)) / 2

    @torch.no_grad()
    def right(self, images: Tensor, labels: Tensor) -> int:
        """How many of these the model gets right, in full precision."""
        pixels = self._float(images.to(self.device))
        best, found = self.model(pixels).max(-1)
        return int(((found == labels.to(self.device)) & best.isfinite()).sum())

    def state_dict(self) -> State:
        """Weights, optimiser, number of steps."""
        slots = self._optimiser.state_dict()["state"]
        return {
            "step": self.step_number,
            "weights": self.model.state_dict(),
            "optimiser": {str(place): slot for place, slot in slots.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        self.step_number = state["step"]
        self.model.load_state_dict(state["weights"])
        slots = {int(place): slot for place, slot in state["optimiser"].items()}
        self._optimiser.load_state_dict(self._optimiser.state_dict() | {"state": slots})

    def _float(self, images: Tensor) -> Tensor:
        return (images.float() / 255).contiguous(memory_format=self.layout)

    def _precision(self) -> AbstractContextManager[None]:
        half = self.recipe.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half)

    def _backward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        with self._precision():
            loss = F.cross_entropy(self.model(pixels), labels)
        loss.backward()
        return loss.detach()

    def _replay(self, images: Tensor, labels: Tensor) -> Tensor:
        pixels = self._float(images)
        if self._graph is None:
            self._pixels, self._labels = pixels.clone(), labels.clone()
            self._optimiser.zero_grad(set_to_none=True)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._loss = self._backward(self._pixels, self._labels)
        self._pixels.copy_(pixels)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._loss.clone()


def _optimiser(model: nn.Module, recipe: Recipe, *, fused: bool) -> torch.optim.Optimizer:
    if recipe.optimiser == "adam":
        return torch.optim.Adam(
            model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay, fused=fused
        )
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=True,
        fused=fused,
    )
