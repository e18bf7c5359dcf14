"""MECTA as a setting: less memory for methods that learn on BatchNorm models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import Tensor

from bitta.config import require
from bitta.memory import MixedBatch
from bitta.methods.base import GradientAdapter, GradientConfig
from bitta.nn import MectaNorm, WrappedModel
from bitta.seeding import RandomKey


@dataclass(frozen=True, kw_only=True)
class MectaConfig(GradientConfig):
    """Settings of methods that can run with MECTA."""

    mecta: Literal["off", "gated", "fixed"] = "off"
    """gated: as its authors describe it; fixed: as the code published with BiTTA runs it, the rate
    fixed and no gate."""
    mecta_prune: float = 0.7
    """Share q of a BatchNorm layer's channels that are not kept for the gradient."""
    mecta_gate: float = 0.00125
    """Rate up to which a layer does not learn; its authors' for CIFAR-10 and ImageNet."""
    mecta_rate: float = 0.1
    """How fast statistics follow without a gate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        prune, rate, gate = self.mecta_prune, self.mecta_rate, self.mecta_gate
        require(0 <= prune < 1, "mecta_prune", prune, "at least 0 and below 1")
        require(0 <= rate <= 1, "mecta_rate", rate, "0 to 1")
        require(0 <= gate < 1, "mecta_gate", gate, "at least 0 and below 1")


M = TypeVar("M", bound=MectaConfig)


class MectaAdapter(GradientAdapter[M]):
    """Serves by running statistics that MECTA moves, where it is on; else it changes nothing."""

    def __init__(self, wrapped: WrappedModel, config: M, *, seed: int = 0) -> None:
        self.mecta = _normaliser(wrapped, config)
        if self.mecta is not None:
            wrapped.normaliser = self.mecta
            self.statistics = "running"
            self.is_capturable = (
                False  # the gate looks at a value, and a step remembers between calls
            )
        super().__init__(wrapped, config, seed=seed)

    def observe(self, inputs: Tensor) -> None:
        """Take a batch in before it is served, as MECTA's own forward does."""
        if self.mecta is None:
            return super().observe(inputs)
        with self.mecta.following():
            return self.wrapped.observe(inputs, momentum=1.0)  # MECTA knows the rate itself

    def compute_gradients(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """With the channels of this step."""
        if self.mecta is None:
            return super().compute_gradients(mixed, random_key)
        with self.mecta.step(random_key):
            return super().compute_gradients(mixed, random_key)

    def backward(self, objective: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """What is run again for its gradient does not count a second time."""
        mecta = self.mecta
        return super().backward(objective if mecta is None else lambda: mecta.noted(objective))


def _normaliser(wrapped: WrappedModel, config: MectaConfig) -> MectaNorm | None:
    if config.mecta == "off":
        return None
    return MectaNorm(
        wrapped.model,
        prune=config.mecta_prune,
        rate=config.mecta_rate,
        gate=config.mecta_gate if config.mecta == "gated" else None,
    )
