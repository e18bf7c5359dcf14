"""What methods that follow a gradient share: parameters, optimiser, feedback memory, epochs."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from bitta.adapter import Adapter, AdapterConfig
from bitta.config import require
from bitta.errors import ModelError
from bitta.losses import complementary_loss
from bitta.memory import FeedbackMemory, Mixed
from bitta.nn import Network, room
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

    trains: ClassVar[str] = "parameters that are not frozen"
    """What a model must have, for the error where it has none."""

    def __init__(self, network: Network, config: G, *, seed: int = 0) -> None:
        super().__init__(network, config, seed=seed)
        self.memory = FeedbackMemory(
            correct=config.correct_memory, incorrect=config.incorrect_memory
        )
        self.parameters = self._trainable(network.model)
        network.train_only(self.parameters)
        network.low_memory = config.memory == "low"
        network.micro_batch = config.micro_batch
        self.optimiser = self.make_optimiser()

    @abstractmethod
    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that change, as far as the user has not frozen them."""

    @abstractmethod
    def make_optimiser(self) -> torch.optim.Optimizer:
        """A fresh optimiser over `self.parameters`."""

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
            epochs = [self._descend(mixed, epoch) for epoch in range(self.config.epochs)]
        self.step += 1
        names = dict.fromkeys(name for terms in epochs for name in terms)
        absent = unlabelled.new_full((), torch.nan, dtype=torch.float32)
        return Losses(
            {name: torch.stack([terms.get(name, absent) for terms in epochs]) for name in names}
        )

    def reset(self) -> None:
        """Source weights, empty memories, a fresh optimiser."""
        super().reset()
        self.memory.clear()
        self._start_optimiser()

    def state_dict(self) -> State:
        """Memories and optimiser beside the weights."""
        slots = self.optimiser.state_dict()["state"]
        return super().state_dict() | {
            "memory": self.memory.state_dict(),
            "optimiser": {str(place): slot for place, slot in slots.items()},
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"], device=self.network.device)
        self._start_optimiser()
        self.optimiser.load_state_dict(
            self.optimiser.state_dict()
            | {"state": {int(place): slot for place, slot in state["optimiser"].items()}}
        )

    def _trainable(self, model: nn.Module) -> list[nn.Parameter]:
        """What the user froze stays frozen, unless all of the model is: it was loaded to serve."""
        frozen = not any(parameter.requires_grad for parameter in model.parameters())
        chosen = [p for p in self.trained(model) if p.requires_grad or frozen]
        if not chosen:
            raise ModelError(
                f"{type(self).__name__} finds nothing to train in {type(model).__name__}; "
                f"it needs {self.trains}."
            )
        return chosen

    def _descend(self, mixed: Mixed, epoch: int) -> dict[str, Tensor]:
        if not len(mixed.inputs):
            return {}
        chance = Chance((self.seed, "adapt", self.step, epoch))
        return self.network.repeat("descend", self._step, mixed, chance, turn=self.step)

    def _step(self, *mixed: Tensor, chance: Chance) -> dict[str, Tensor]:
        counts = self.network.counts
        before = counts.tracked
        self.optimiser.zero_grad(set_to_none=True)
        terms = self.objective(Mixed(*mixed), chance)
        tracked = counts.tracked - before
        if terms:
            with self.network.execution.arithmetic():
                torch.stack(list(terms.values())).sum().backward()
            self.optimiser.step()
            counts.backwards += tracked
        return {name: term.detach() for name, term in terms.items()}

    def _start_optimiser(self) -> None:
        """A fresh one; what was captured has the state of the last one in it."""
        self.optimiser = self.make_optimiser()
        self.network.graphs.clear()

    def _align_optimiser(self) -> None:
        """Saved momenta may lie in memory in another order than the parameters do here."""
        for parameter, slot in self.optimiser.state.items():
            for name, value in slot.items():
                same = torch.is_tensor(value) and value.shape == parameter.shape
                if same and value.stride() != parameter.stride():
                    slot[name] = torch.empty_like(parameter).copy_(value)


def feedback_terms(mixed: Mixed, logits: Tensor) -> dict[str, Tensor]:
    """Cross-entropy on correct and complementary loss on incorrect samples."""
    correct, incorrect, _ = mixed.split(logits)
    terms = {}
    if len(correct):
        terms["correct"] = nn.functional.cross_entropy(correct, mixed.correct)
    if len(incorrect):
        terms["incorrect"] = complementary_loss(incorrect, mixed.incorrect)
    return terms
