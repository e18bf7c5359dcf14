"""Fine-tuning in a file: killed, it goes on from there; runs that begin with the same share it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import Tensor

from bitta.bench.leftovers import read_tuning
from bitta.bench.locks import alone
from bitta.results import table_hash
from bitta.statefile import save_state
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
        path = self.folder / f"{table_hash(identity)[:16]}.safetensors"
        with alone(path, wait=self.wait):
            yield Tuning(path, seconds=self.seconds)


class Tuning:
    """One fine-tuning, over all lives: how far it is, and what is told of it once it is over."""

    def __init__(self, path: Path | None = None, *, seconds: float = 30.0) -> None:
        state: State = read_tuning(path) if path is not None and path.exists() else {}
        self.done: int = state.get("done", 0)
        """Batches."""
        self.losses: list[float] = state.get("losses", [])
        """Of the batches of the present epoch."""
        self.told: dict[str, Any] | None = state.get("told")
        """What a result should tell, if it is over."""
        self._path = path
        self._values = state.get("values", [])
        self._momenta = state.get("momenta", [])
        self._before: float = state.get("seconds", 0.0)
        self._started = perf_counter()
        self._every = seconds
        self._due = monotonic() + seconds

    @property
    def seconds(self) -> float:
        """So far, over all lives."""
        return self._before + perf_counter() - self._started

    @torch.no_grad()
    def put(self, optimiser: torch.optim.Optimizer) -> None:
        """Give parameters and their momenta the values they had when it was written, if it was."""
        for parameter, value, momentum in zip(
            _parameters(optimiser), self._values, self._momenta, strict=bool(self._values)
        ):
            parameter.copy_(value)
            if momentum is not None:
                moving = torch.empty_like(parameter).copy_(momentum)
                optimiser.state[parameter]["momentum_buffer"] = moving

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return monotonic() >= self._due

    def write(self, optimiser: torch.optim.Optimizer) -> None:
        """To its file, if it has one."""
        if self._path is None:
            return
        parameters = _parameters(optimiser)
        save_state(
            self._path,
            {
                "done": self.done,
                "losses": self.losses,
                "told": self.told,
                "seconds": self.seconds,
                "values": parameters,
                "momenta": [optimiser.state[p].get("momentum_buffer") for p in parameters],
            },
        )
        self._due = monotonic() + self._every


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]
