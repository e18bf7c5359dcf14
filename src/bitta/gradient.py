"""What methods that follow a gradient share: parameters, optimiser, feedback memory, epochs."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from bitta.adapter import Adapter, AdapterConfig
from bitta.config import require
from bitta.errors import ModelError
from bitta.memory import FeedbackMemory, Mixed
from bitta.nn import Network, Snapshot, room
from bitta.nn.snapshot import tensors_of
from bitta.seeding import Chance
from bitta.types import Feedback, Losses, State


@dataclass(frozen=True, kw_only=True)
class GradientConfig(AdapterConfig):
    """Settings of every method that trains."""

    lr: float = 1e-3
    """Step size."""
    epochs: int = 1
    """Number E of steps on each batch."""
    correct_memory: int = 64
    """How many samples judged correct are remembered."""
    incorrect_memory: int = 64
    """How many samples judged incorrect are remembered."""
    memory: Literal["full", "low"] = "full"
    """low keeps one stochastic pass's activations at a time, by running each twice; the same
    gradient."""
    micro_batch: int = 0
    """Rows whose activations are kept at once; 0 for all. The same gradient only where nothing
    normalises by the batch: each part is normalised by itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        for name in ("correct_memory", "incorrect_memory"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(self.micro_batch >= 0, "micro_batch", self.micro_batch, "0 or more")


G = TypeVar("G", bound=GradientConfig)

_LESS_MEMORY = (
    "set memory='low', a micro_batch (see docs/performance.md), or smaller memories and batches."
)


class GradientAdapter(Adapter[G]):
    """Descend on `objective`, `epochs` times a batch."""

    trains: ClassVar[str] = "all"
    captured: bool = True
    """Whether a step can be captured as a CUDA graph: it decides nothing by a value it computed."""

    def __init__(self, network: Network, config: G, *, seed: int = 0) -> None:
        super().__init__(network, config, seed=seed)
        self.memory = FeedbackMemory(
            correct=config.correct_memory, incorrect=config.incorrect_memory
        )
        self.learner = self.make_learner()
        """The network that is trained; a method may serve another."""
        self.parameters = self._trainable(self.learner.model)
        self.learner.train_only(self.parameters)
        self.learner.low_memory = config.memory == "low"
        self.learner.micro_batch = config.micro_batch
        self.optimiser = self.make_optimiser()

    def make_learner(self) -> Network:
        """The network that serves, unless a method trains a student apart from it."""
        return self.network

    @abstractmethod
    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that change, as far as the user has not frozen them."""

    @abstractmethod
    def make_optimiser(self) -> torch.optim.Optimizer:
        """A fresh optimiser over `self.parameters`."""

    def sgd(
        self, *, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False
    ) -> torch.optim.Optimizer:
        """Stochastic gradient descent, on the path of the learner."""
        return torch.optim.SGD(
            self.parameters,
            lr=self.config.lr,
            momentum=momentum,
            weight_decay=weight_decay,
            nesterov=nesterov and momentum > 0,
            fused=self.learner.execution.fused,
        )

    def adam(self, *, weight_decay: float = 0.0) -> torch.optim.Optimizer:
        """Adam with the usual moments, on the path of the learner."""
        fused = self.learner.execution.fused
        return torch.optim.Adam(
            self.parameters,
            lr=self.config.lr,
            weight_decay=weight_decay,
            fused=fused,
            capturable=fused,
        )

    @abstractmethod
    def objective(self, mixed: Mixed, chance: Chance) -> dict[str, Tensor]:
        """The terms of the loss, weighted; a term without rows is left out.

        A function of its arguments and of the weights alone, without a look at any value: once the
        shapes have settled a GPU repeats it without coming back here.
        """

    @torch.enable_grad()
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Remember the answers, then take `epochs` steps; nothing to learn from, no step."""
        self.memory.add(feedback)
        mixed = self.memory.mixed_with(unlabelled)
        self._align_optimiser()
        samples = f"a step on {len(mixed.inputs)} samples with {self.config.passes} passes"
        with room(samples, _LESS_MEMORY):
            epochs = [self._descend(mixed, 0)]
            for epoch in range(1, self.config.epochs):
                self.between_steps()
                epochs.append(self._descend(mixed, epoch))
        self.step += 1
        names = dict.fromkeys(name for terms in epochs for name in terms)
        absent = unlabelled.new_full((), torch.nan, dtype=torch.float32)
        return Losses(
            {name: torch.stack([terms.get(name, absent) for terms in epochs]) for name in names}
        )

    def reset(self) -> None:
        """Source weights, empty memories, a fresh optimiser."""
        super().reset()
        if self.learner is not self.network:
            self.source.put_back(self.learner.model)
        self.memory.clear()
        self._start_optimiser()

    def state_dict(self) -> State:
        """Memories and optimiser beside the weights."""
        slots = self.optimiser.state_dict()["state"]
        apart = self.learner is not self.network
        return super().state_dict() | {
            "memory": self.memory.state_dict(),
            "optimiser": {str(place): slot for place, slot in slots.items()},
            "learner": tensors_of(self.learner.model) if apart else {},
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        if self.learner is not self.network:
            Snapshot(state["learner"]).put_back(self.learner.model)
        self.memory.load_state_dict(state["memory"], device=self.network.device)
        self._start_optimiser()
        self.optimiser.load_state_dict(
            self.optimiser.state_dict()
            | {"state": {int(place): slot for place, slot in state["optimiser"].items()}}
        )

    def close(self) -> None:
        """Give the model back, and let a student go."""
        self.learner.close()
        super().close()

    def _trainable(self, model: nn.Module) -> list[nn.Parameter]:
        """What the user froze stays frozen, unless all of the model is: it was loaded to serve."""
        frozen = not any(parameter.requires_grad for parameter in model.parameters())
        chosen = [p for p in self.trained(model) if p.requires_grad or frozen]
        if not chosen:
            raise ModelError(
                f"{type(self).__name__} finds nothing to train in {type(model).__name__}; "
                f"it trains {self.trains}, as far as not frozen."
            )
        return chosen

    def _descend(self, mixed: Mixed, epoch: int) -> dict[str, Tensor]:
        if not len(mixed.inputs):
            return {}
        chance = Chance((self.seed, "adapt", self.step, epoch))
        if not self.captured:
            return self._step(*mixed, chance=chance)
        return self.learner.repeat("descend", self._step, mixed, chance, turn=self.step)

    def _step(self, *mixed: Tensor, chance: Chance) -> dict[str, Tensor]:
        terms = self.gradients(Mixed(*mixed), chance)
        if terms:
            self.optimiser.step()
        return {name: term.detach() for name, term in terms.items()}

    def gradients(self, mixed: Mixed, chance: Chance) -> dict[str, Tensor]:
        """Leave the gradient of the objective in the parameters; no terms, no step."""
        return self.backward(lambda: self.objective(mixed, chance))

    def backward(self, objective: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Compute the terms of an objective and, alone in the parameters, their sum's gradient."""
        counts = self.network.counts
        before = counts.tracked
        self.optimiser.zero_grad(set_to_none=True)
        terms = objective()
        tracked = counts.tracked - before
        if terms:
            with self.learner.execution.arithmetic():
                torch.stack(list(terms.values())).sum().backward()
            counts.backwards += tracked
        return terms

    def _start_optimiser(self) -> None:
        """A fresh one; what was captured has the state of the last one in it."""
        self.optimiser = self.make_optimiser()
        self.learner.graphs.clear()

    def _align_optimiser(self) -> None:
        """Saved momenta may lie in memory in another order than the parameters do here."""
        for parameter, slot in self.optimiser.state.items():
            for name, value in slot.items():
                same = torch.is_tensor(value) and value.shape == parameter.shape
                if same and value.stride() != parameter.stride():
                    slot[name] = torch.empty_like(parameter).copy_(value)
