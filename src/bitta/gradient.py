"""What methods that follow a gradient share: parameters, optimiser, feedback memory, epochs."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from bitta.adapter import Adapter, AdapterConfig
from bitta.config import require
from bitta.errors import ModelError
from bitta.losses import complementary_loss
from bitta.memory import FeedbackMemory
from bitta.nn import Network
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

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        for name in ("correct_memory", "incorrect_memory"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")


G = TypeVar("G", bound=GradientConfig)


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
        self.network.train_only(self.parameters)
        self.optimiser = self.make_optimiser()

    @abstractmethod
    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """The parameters that change, as far as the user has not frozen them."""

    @abstractmethod
    def make_optimiser(self) -> torch.optim.Optimizer:
        """A fresh optimiser over `self.parameters`."""

    @abstractmethod
    def objective(self, mixed: Tensor, epoch: int) -> dict[str, Tensor]:
        """The terms of the loss, weighted; a term with nothing to say is left out.

        `mixed` is [correct; incorrect; unlabelled], the batch that every step sees.
        """

    @torch.enable_grad()
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Remember the answers, then take `epochs` steps; nothing to learn from, no step."""
        self.memory.add(feedback)
        remembered = (self.memory.correct.inputs, self.memory.incorrect.inputs)
        mixed = torch.cat([*remembered, unlabelled])
        epochs = [self._descend(mixed, epoch) for epoch in range(self.config.epochs)]
        self.step += 1
        names = dict.fromkeys(name for terms in epochs for name in terms)
        absent = torch.tensor(torch.nan, device=unlabelled.device)
        return Losses(
            {name: torch.stack([terms.get(name, absent) for terms in epochs]) for name in names}
        )

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of a mixed batch: correct, incorrect, unlabelled."""
        n_correct, n_incorrect = len(self.memory.correct), len(self.memory.incorrect)
        correct, incorrect, unlabelled = outputs.tensor_split((n_correct, n_correct + n_incorrect))
        return correct, incorrect, unlabelled

    def feedback_terms(self, correct: Tensor, incorrect: Tensor) -> dict[str, Tensor]:
        """Cross-entropy on correct and complementary loss on incorrect samples, from logits."""
        terms = {}
        if len(correct):
            terms["correct"] = nn.functional.cross_entropy(correct, self.memory.correct.labels)
        if len(incorrect):
            terms["incorrect"] = complementary_loss(incorrect, self.memory.incorrect.labels)
        return terms

    def reset(self) -> None:
        """Source weights, empty memories, a fresh optimiser."""
        super().reset()
        self.memory.clear()
        self.optimiser = self.make_optimiser()

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
        self.optimiser = self.make_optimiser()
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

    def _descend(self, mixed: Tensor, epoch: int) -> dict[str, Tensor]:
        if not len(mixed):
            return {}
        before = self.network.tracked
        terms = self.objective(mixed, epoch)
        if terms:
            self.optimiser.zero_grad(set_to_none=True)
            torch.stack(list(terms.values())).sum().backward()
            self.optimiser.step()
            self.backwards += self.network.tracked - before
        return {name: term.detach() for name, term in terms.items()}
