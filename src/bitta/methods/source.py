"""Two methods that train nothing: the source model, and BatchNorm statistics of each batch.

Nado et al., 2020, https://arxiv.org/abs/2006.10963; Schneider et al., NeurIPS 2020.
Departures: none known. A model without BatchNorm is served as it is.
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
    """No adaptation at all: the bottom line of every comparison."""

    Config = SourceConfig
    learns_from_feedback: bool = False

    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:  # noqa: ARG002
        """Learn nothing."""
        self.version += 1
        return Losses()


class BNStats(Source):
    """Replace the source statistics by those of the batch being served."""

    paper: ClassVar[str] = "Nado et al., 2020"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
