"""Two methods without training: the source model, and batch statistics in BatchNorm layers.

Nado et al., 2020, https://arxiv.org/abs/2006.10963; Schneider et al., NeurIPS 2020.
There are no known departures. A model without BatchNorm is served unchanged.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bitta.methods.base import Adapter, AdapterConfig
from bitta.nn import Statistics
from bitta.types import Feedback, Losses


@dataclass(frozen=True, kw_only=True)
class SourceConfig(AdapterConfig):
    """Settings of Source."""


class Source(Adapter[SourceConfig]):
    """Serves the source model without adaptation. It is the baseline of every comparison."""

    Config = SourceConfig
    learns_from_feedback: bool = False

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:  # noqa: ARG002
        """Learn nothing."""
        self.version += 1
        return Losses()


class BNStats(Source):
    """Normalises by the statistics of the batch instead of those of the source."""

    paper: ClassVar[str] = "Nado et al., 2020"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
