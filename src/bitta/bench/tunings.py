"""Fine-tuning in a file: killed, it goes on from there; runs that begin with the same share it."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import nn

from bitta.bench.leftovers import read_tuning
from bitta.bench.locks import alone
from bitta.nn import SavedWeights
from bitta.results import table_hash
from bitta.statefile import check_writable, save_state
from bitta.types import State


@dataclass(frozen=True, slots=True)
class Tunings:
    """A folder of them, each of its own identity."""

    folder: Path
    seconds: float
    """Between two writings of one that is under way."""
    wait: Callable[[], None]
    """Called while another process has the one that is wanted; may raise."""

    @contextmanager
    def tuning(self, identity: Mapping[str, Any]) -> Iterator["Tuning"]:
        """The one that an identity stands for, as far as it has come; nobody else has it."""
        check_writable(self.folder)
        path = self.folder / f"{table_hash(identity)[:16]}.safetensors"
        with alone(path, wait=self.wait):
            yield Tuning(path, identity, seconds=self.seconds)


class Tuning:
    """One fine-tuning, over all lives: how far it is, and what is told of it once it is over."""

    def __init__(
        self,
        path: Path | None = None,
        identity: Mapping[str, Any] | None = None,
        *,
        seconds: float = 30.0,
    ) -> None:
        state: State = read_tuning(path) if path is not None and path.exists() else {}
        self.told: dict[str, Any] | None = state.get("told")
        """What a result should tell, if it is over."""
        self.done: int = state.get("done", 0)
        """Batches."""
        self.losses: list[float] = state.get("losses", [])
        """Of the batches of the present epoch."""
        self._path = path
        self._identity = dict(identity or {})
        self._kept: State = {part: state[part] for part in ("weights", "momenta") if part in state}
        self._before: float = state.get("seconds", 0.0)
        self._started = perf_counter()
        self._every = seconds
        self._due = monotonic() + seconds

    @property
    def seconds(self) -> float:
        """So far, over all lives."""
        return self._before + perf_counter() - self._started

    def put(self, model: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> None:
        """Make both what they were when it was written, if it was."""
        if "weights" in self._kept:
            SavedWeights(self._kept["weights"]).restore(model)
        if optimiser is not None:
            moving = self._kept.get("momenta", {})
            for name, parameter in model.named_parameters():
                if name in moving:
                    buffer = torch.empty_like(parameter).copy_(moving[name])
                    optimiser.state[parameter]["momentum_buffer"] = buffer
        self._kept = {}

    def step(self, loss: float, *, first: bool) -> None:
        """A batch was learned from, the first of an epoch or another."""
        self.losses = [loss] if first else [*self.losses, loss]
        self.done += 1

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return monotonic() >= self._due

    def write(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """To its file; where that cannot be, say so and do without."""
        if self._path is None:
            return
        state: State = {
            "identity": self._identity,
            "weights": SavedWeights.copy_of(model).state_dict(),
        }
        if self.told is not None:
            state |= {"told": self.told}
        else:
            state |= {"done": self.done, "losses": self.losses, "seconds": self.seconds}
            state |= {"momenta": _momenta(model, optimiser)}
        try:
            save_state(self._path, state)
        except OSError as error:
            warnings.warn(
                f"{str(self._path)!r} cannot be written ({error.strerror}): fine-tuning goes on, "
                "and is not kept.",
                stacklevel=2,
            )
            self._path = None
        self._due = monotonic() + self._every


def _momenta(model: nn.Module, optimiser: torch.optim.Optimizer) -> State:
    """By name, where there are any."""
    states = {name: optimiser.state.get(p, {}) for name, p in model.named_parameters()}
    moving = {name: state.get("momentum_buffer") for name, state in states.items()}
    return {name: buffer for name, buffer in moving.items() if buffer is not None}
