"""Source: serve the model as it was trained."""

from dataclasses import dataclass

from torch import Tensor

from bitta.adapter import Adapter, AdapterConfig
from bitta.types import Feedback, Losses


@dataclass(frozen=True, kw_only=True)
class SourceConfig(AdapterConfig):
    """Settings of Source."""


class Source(Adapter[SourceConfig]):
    """No adaptation at all: the bottom line of every comparison."""

    Config = SourceConfig
    learns_from_feedback: bool = False

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:  # noqa: ARG002
        """Learn nothing."""
        self.step += 1
        return Losses()
