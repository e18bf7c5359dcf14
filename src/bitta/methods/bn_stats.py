"""BN-Stats: normalise each batch by its own statistics.

Nado et al., 2020, https://arxiv.org/abs/2006.10963; Schneider et al., NeurIPS 2020.
Departures: none known. A model without BatchNorm is served as it is.
"""

from dataclasses import dataclass
from typing import ClassVar

from bitta.adapter import AdapterConfig
from bitta.methods.source import Source
from bitta.nn import Statistics


@dataclass(frozen=True, kw_only=True)
class BNStatsConfig(AdapterConfig):
    """Settings of BN-Stats."""


class BNStats(Source):
    """Replace the source statistics by those of the batch being served."""

    Config = BNStatsConfig
    paper: ClassVar[str] = "Nado et al., 2020"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
