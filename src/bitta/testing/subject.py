"""What the contract is checked on, and how two outcomes are compared."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitta.adapter import Adapter
from bitta.nn.snapshot import tensors_of
from bitta.seeding import generator
from bitta.session import Session
from bitta.testing.models import Norm, toy_classifier
from bitta.types import Prediction, State

BATCH = 6
_EXECUTION = ("eager", "precision")


@dataclass(frozen=True)
class Subject:
    """A method on a norm family, with settings that suit a tiny model."""

    method: str | type[Adapter[Any]]
    norm: Norm = "batch"
    n_queries: int = 2
    device: str = "cpu"
    settings: dict[str, Any] = field(default_factory=dict)

    def session(self, model: nn.Module | None = None, **changed: Any) -> Session:
        """A new session on a new (or the given) model."""
        options: dict[str, Any] = {"n_queries": self.n_queries, "seed": 3, **self.settings}
        return Session(model or self.model(), self.method, **(options | changed))

    def load(self, path: Path) -> Session:
        """A saved session, on another model and on the path this subject is checked on."""
        again = {} if isinstance(self.method, str) else {"method": self.method}
        execution = {name: self.settings[name] for name in _EXECUTION if name in self.settings}
        return Session.load(path, self.model(seed=99), **again, **execution)

    def model(self, seed: int = 0) -> nn.Module:
        """A new model of the norm family."""
        return toy_classifier(self.norm, seed=seed).to(self.device)

    def batch(self, number: int, n: int = BATCH) -> Tensor:
        """Images of a stream whose brightness drifts."""
        drawn = torch.rand(n, 3, 8, 8, generator=generator(7, "contract", number))
        return (drawn * (1 + 0.1 * number)).to(self.device)


def run_steps(
    session: Session, subject: Subject, n: int, start: int = 0, *, size: int = BATCH
) -> list[Prediction]:
    """Some steps with a person who finds even rows right."""
    served = []
    for number in range(start, start + n):
        prediction = session.predict(subject.batch(number, size))
        for query in prediction.queries:
            session.answer(query.id, correct=query.index % 2 == 0)
        session.learn()
        served.append(prediction)
    return served


def asked_of(prediction: Prediction) -> list[tuple[int, int, int]]:
    """Which questions a prediction raised."""
    return [(query.id, query.index, query.label) for query in prediction.queries]


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of a model, copied."""
    return {name: tensor.detach().clone() for name, tensor in tensors_of(model).items()}


def leaves_of(tree: State) -> dict[str, Any]:
    """A state tree, flat, its tensors copied."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": leaf for key, leaf in leaves_of(value).items()}
        else:
            flat[name] = value.detach().clone() if isinstance(value, Tensor) else value
    return flat


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Equal names and, bit for bit, equal values."""
    return one.keys() == two.keys() and all(
        torch.equal(value, two[name]) if isinstance(value, Tensor) else value == two[name]
        for name, value in one.items()
    )


def flags_of(model: nn.Module) -> list[tuple[Any, ...]]:
    """All that a session borrows: modes, hooks, forwards, BN settings, gradients."""
    modules = [
        (
            name,
            module.training,
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            sorted(set(module.__dict__) & {"forward"}),
            getattr(module, "momentum", None),
            getattr(module, "track_running_stats", None),
        )
        for name, module in model.named_modules()
    ]
    return modules + [(name, p.requires_grad, p.grad) for name, p in model.named_parameters()]
